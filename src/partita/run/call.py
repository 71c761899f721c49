"""Planned functions at run time: their arguments are checked and placed, and transforms apply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from partita.errors import ArgumentError, ReshardWarning, UnsupportedError, warn
from partita.escape import printed
from partita.frontend.callbacks import Observed, observe, observer, result_of, with_modules
from partita.frontend.calling import PLANNED, Static
from partita.frontend.files import Module
from partita.frontend.trace import argument_name
from partita.program.memories import HOST
from partita.run.explicit import automatic, without_explicit_types
from partita.stablehlo.internals import cached_weakly, runs_at_once, signatures
from partita.text import size


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A planned function in its original form, and how it is called."""

    fn: Callable[..., Any]
    name: str
    """Name of the function."""
    static: Static
    """Its static arguments."""
    arguments: tuple[Any, Any]
    """The other `(args, kwargs)` as pytrees of `ShapeDtypeStruct`s."""
    results: Any
    """Its results, likewise."""
    names: tuple[str, ...]
    """Name of each array of the arguments."""

    @cached_property
    def keywords(self) -> tuple[str, ...]:
        """The names of keyword arguments, in the order in which the program takes them."""
        return tuple(sorted(self.arguments[1]))

    @cached_property
    def inputs(self) -> tuple[Any, ...]:
        """Positional arguments, then the values of keyword arguments."""
        args, kwargs = self.arguments
        return (*args, *(kwargs[name] for name in self.keywords))

    def key(self, number: int) -> Any:
        """Returns the position or the name by which a call passes an input."""
        positional = len(self.inputs) - len(self.keywords)
        if number < positional:
            return jax.tree_util.SequenceKey(self.static.position(number))
        return jax.tree_util.DictKey(self.keywords[number - positional])

    def original(self, *leaves: Any) -> list[Any]:
        """The function of flat arguments; closed-over constants, the last ones, it knows itself."""
        structure: Any = jax.tree.structure(self.arguments)
        args, kwargs = jax.tree.unflatten(structure, leaves[: structure.num_leaves])
        args, kwargs = self.static.among(args, kwargs)
        return jax.tree.leaves(self.fn(*args, **kwargs))

    def transformed(self, *leaves: Any) -> list[Any]:
        """Returns the original function's results, for differentiation and batching."""
        if isinstance(self.fn, Module):
            raise UnsupportedError(
                f"{self.name} is read from a file, and cannot be differentiated, batched or "
                "planned as a part of another function: write that whole function to a file"
            )
        return self.original(*leaves)


@cached_weakly
@dataclasses.dataclass(frozen=True, eq=False)
class _Forms:
    """The partitioned program and the original function, as the primitive `PLANNED` wants them."""

    run: Callable[..., list[Any]]
    original: Callable[..., list[Any]]
    transformed: Callable[..., list[Any]]
    results: list[jax.ShapeDtypeStruct]


class Planned:
    """A function planned for a mesh; called and transformed like those of `jax.jit`.

    If it is called, lowered or part of another function, it is the partitioned program. Its
    derivatives, and its batched form under `jax.vmap`, are those of the original function, with the
    arguments and results sharded as planned; XLA propagates shardings through the rest.

    Args:
      function: the original one.
      partitioned: the program, of flat arguments, constants last.
      shardings: of positional arguments, then the values of keyword arguments, then closed-over
        constants.
      out_shardings: of the results.
      donated: the numbers of donated arguments, in the same order.
      constants: closed-over constants, placed.
    """

    def __init__(
        self,
        function: Function,
        partitioned: Callable[..., list[Any]],
        shardings: tuple[Any, ...],
        out_shardings: Any,
        donated: tuple[int, ...],
        constants: tuple[Any, ...] = (),
    ) -> None:
        self._function = function
        self._modules = with_modules(function.fn)
        made = function.results
        self._observe = observer(made.callbacks if isinstance(made, Observed) else ())
        self._shardings, self._out_shardings = shardings, out_shardings
        self._constants = constants
        self.exact = False
        """True to refuse arguments with other weak types, which may lead to another program."""
        self._moved = self._careful = False
        self._seen = 0
        self._plain = not (function.keywords or constants or function.static)
        structure = jax.tree.structure(function.results)

        def forms(out_shardings: Any) -> _Forms:
            trees = function.results, out_shardings
            leaves = zip(*map(jax.tree.leaves, trees), strict=True)
            results = [leaf.update(sharding=sharding) for leaf, sharding in leaves]
            return _Forms(partitioned, function.original, function.transformed, results)

        own, (inner, out_inner) = forms(out_shardings), automatic((shardings, out_shardings))
        inside = forms(out_inner)

        def call(*args: Any) -> Any:
            self._check(args)
            return jax.tree.unflatten(structure, PLANNED.bind(*jax.tree.leaves(args), forms=own))

        def constrained(*args: Any) -> Any:
            self._check(args)
            args = jax.tree.map(constrain, args, inner)
            made = PLANNED.bind(*jax.tree.leaves(args), forms=inside)
            return jax.tree.map(constrain, jax.tree.unflatten(structure, made), out_inner)

        def within(*args: Any) -> Any:
            return without_explicit_types(constrained, args, out_shardings)

        self.__name__ = self.__qualname__ = call.__name__ = within.__name__ = function.name
        self.__wrapped__ = function.fn
        self._jitted: Any = jax.jit(
            call, in_shardings=shardings, out_shardings=out_shardings, donate_argnums=donated
        )
        # Inside of other functions, values lie as these have them: they are constrained instead.
        self._within: Any = jax.jit(within)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it like the original function.

        Raises:
          ArgumentError: the plan is not for these arguments.
        """
        return self._with_modules(self._called, args, kwargs)

    def _with_modules(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs it with the modules of libraries among its arguments split, and puts them back."""
        if self._modules is not None:
            return self._modules.around(run, args, kwargs)
        return run(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._attempted(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            flat = self._checked(args, kwargs)
            placed = self._placed(flat)
            if placed is None:
                raise
        return self._run(placed)

    def _run(self, flat: tuple[Any, ...]) -> Any:
        if not runs_at_once():
            return observe(self._within(*flat), self._observe)
        if self._careful:
            flat = self._placed(flat) or flat
        made = self._jitted(*flat)
        if (seen := signatures(self._jitted)) != self._seen:
            self._see(seen, flat)
        return observe(made, self._observe)

    def _see(self, seen: int, flat: tuple[Any, ...]) -> None:
        """After a call of a new signature: finds what JAX takes and must not be given again.

        That is an array over the same devices in another order: the first call moves it, the
        second ends the process, at least up to JAX 0.10.2. From then on arguments are looked at.
        """
        self._seen = seen
        if self._away(jax.tree.leaves(flat)):
            self._placed(flat)  # warns
            self._jitted.clear_cache()
            self._seen, self._careful = 0, True

    def _away(self, leaves: Sequence[Any]) -> list[int]:
        """Returns the arguments that are sharded differently from the plan."""
        wanted = jax.tree.leaves(self._shardings)
        return [n for n, pair in enumerate(zip(leaves, wanted, strict=True)) if _elsewhere(*pair)]

    def attempt(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it, and raises `TypeError` or `ValueError` for arguments that are sharded
        differently."""
        return self._with_modules(self._attempted, args, kwargs)

    def _attempted(self, *args: Any, **kwargs: Any) -> Any:
        flat = args if self._plain and not kwargs else self._flat(args, kwargs)
        return self._run(flat)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lowers it for these arguments, as `jax.jit`'s `lower` does."""
        return self._jitted.lower(*self._checked(*self._split(args, kwargs)))

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Traces it for these arguments, as `jax.jit`'s `trace` does."""
        return self._jitted.trace(*self._checked(*self._split(args, kwargs)))

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the results, as `jax.jit`'s `eval_shape` gives them."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return result_of(self._jitted.eval_shape(*self._checked(args, kwargs)))

        if self._modules is not None:  # what it changes stays as it is
            args, kwargs = self._modules.copied((args, kwargs))
        return self._with_modules(run, args, kwargs)

    def _split(self, args: Any, kwargs: Any) -> Any:
        """Arguments with modules of libraries split."""
        return (args, kwargs) if self._modules is None else self._modules.split((args, kwargs))

    def clear_cache(self) -> None:
        """Forgets what was compiled."""
        self._jitted.clear_cache()

    @cached_property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self.__wrapped__)

    @printed
    def __repr__(self) -> str:
        return f"<planned {self.__name__}>"

    def _flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Positional arguments, then keyword arguments in order, then constants."""
        function = self._function
        if function.static:
            function.static.check(function.name, args, kwargs)
            args, kwargs = function.static.without(args, kwargs)
        if tuple(sorted(kwargs)) != function.keywords:
            raise ArgumentError(
                f"{function.name} is planned for {_keyword_arguments(function.keywords)}, and "
                f"{_keyword_arguments(sorted(kwargs))} came; call it as in the call that was "
                "planned, or use pt.jit, which plans for each way"
            )
        constants = (self._constants,) if self._constants else ()
        return (*args, *(kwargs[name] for name in function.keywords), *constants)

    def _checked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments of `_flat`; raises `ArgumentError` if the plan is not for them."""
        flat = self._flat(args, kwargs)
        self._check(flat)
        return flat

    def _check(self, args: Sequence[Any]) -> None:
        """Raises `ArgumentError` for arguments that the plan is not for."""
        args = args[: len(args) - bool(self._constants)]
        check(self._function, args)
        if self.exact:
            pairs = zip(jax.tree.leaves(self._function.inputs), jax.tree.leaves(args), strict=True)
            if any(wanted.weak_type != weakly_typed(leaf) for wanted, leaf in pairs):
                raise ArgumentError(f"{self.__name__} is planned for other weak types")

    def _placed(self, flat: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The arguments where the plan takes them; None if they are there already."""
        leaves, structure = jax.tree.flatten(flat)
        wanted = jax.tree.leaves(self._shardings)
        away = self._away(leaves)
        if not away:
            return None
        if not self._moved:
            self._moved = True
            sizes = {self._function.names[n]: size_of(leaves[n]) for n in away}
            largest = max(sizes, key=lambda name: sizes[name])
            warn(
                f"{self.__name__} got arguments that lie otherwise than it is planned for: "
                f"{size(sum(sizes.values()))} in {len(away)} of {len(self._function.names)} arrays "
                f"(the largest is {largest}) are moved, now and in every such call; place them "
                "once with plan.shard(...), or pass on what the function returns",
                ReshardWarning,
            )
        for n in away:
            leaves[n] = jax.device_put(leaves[n], wanted[n])
        made: tuple[Any, ...] = jax.tree.unflatten(structure, leaves)
        return made


def check(function: Function, args: Sequence[Any], fewer: bool = False) -> None:
    """Raises `ArgumentError` for arguments that a plan is not for, and names the first.

    Args:
      function: that was planned.
      args: arguments of the call, the values of keyword arguments last.
      fewer: whether the last ones may be missing.
    """
    wanted, keywords = function.inputs, function.keywords
    positional = len(wanted) - len(keywords)
    fits = len(args) <= positional if fewer else len(args) == len(wanted)
    if not fits:
        static = len(function.static.positional)
        came = len(args) + static - (0 if fewer else len(keywords))
        raise ArgumentError(
            f"{function.name} is planned for {_count(positional + static)}, and {came} came; call "
            "it as in the call that was planned"
        )
    for number, (want, came) in enumerate(zip(wanted, args, strict=False)):
        _check_one(function, number, want, came)


def _check_one(function: Function, number: int, want: Any, came: Any) -> None:
    """Raises `ArgumentError` for an argument that the plan is not for."""
    wanted, structure = jax.tree.flatten(want)
    given_structure: Any = jax.tree.structure(came)
    if structure != given_structure:
        raise ArgumentError(
            f"{argument_name(function.fn, function.key(number))} of {function.name} is planned as "
            f"{_shown(want)}, and {_shown(came)} came; pass it nested as in the call that was "
            "planned, or use pt.jit, which plans for each"
        )
    before = len(jax.tree.leaves(function.inputs[:number]))
    for place, (planned, leaf) in enumerate(zip(wanted, jax.tree.leaves(came), strict=True)):
        if (given := _type(leaf)) != (planned.shape, planned.dtype):
            shown = f"a {type(leaf).__name__}" if given is None else _type_text(*given)
            raise ArgumentError(
                f"{function.names[before + place]} of {function.name} is planned as "
                f"{_type_text(planned.shape, planned.dtype)}, and {shown} came; convert it, or "
                "use pt.jit, which plans for each shape and type"
            )


def constrain(value: Any, sharding: jax.sharding.NamedSharding) -> Any:
    """Constrains a value to a sharding where it is traced, over axes that are not part of its
    type."""
    if sharding.memory_kind in HOST:
        return jax.device_put(value, sharding)
    return jax.lax.with_sharding_constraint(value, sharding)


def _elsewhere(leaf: Any, wanted: Any) -> bool:
    """Returns whether an array is committed to another sharding than wanted."""
    if isinstance(leaf, jax.core.Tracer):
        return True  # what it stands for may; moving it is nothing if not
    if not isinstance(leaf, jax.Array):
        return False
    return leaf.committed and not leaf.sharding.is_equivalent_to(wanted, leaf.ndim)


def weakly_typed(leaf: Any) -> bool:
    """Returns whether an argument is weakly typed, as a Python scalar is."""
    typed = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return bool(getattr(typed, "weak_type", False))


def size_of(leaf: Any) -> int:
    """Bytes of an array, random keys included."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return int(leaf.size * leaf.dtype.itemsize)


def _type(leaf: Any) -> tuple[tuple[int, ...], Any] | None:
    """Returns the shape and type that an argument has for JAX; None if it is not an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        return None
    return aval.shape, aval.dtype


def _type_text(shape: Sequence[int], dtype: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _shown(tree: Any) -> str:
    """A pytree with the type of each leaf, cut where it is long."""

    def leaf_text(leaf: Any) -> Any:
        given = _type(leaf)
        return _Word(type(leaf).__name__ if given is None else _type_text(*given))

    text = str(jax.tree.map(leaf_text, tree))
    return text if len(text) <= 300 else text[:300] + "..."


class _Word(str):
    """Text that shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _count(number: int) -> str:
    return f"{number} positional argument{'' if number == 1 else 's'}"


def _keyword_arguments(names: Sequence[str]) -> str:
    if not names:
        return "no keyword arguments"
    return f"keyword argument{'' if len(names) == 1 else 's'} {', '.join(names)}"
