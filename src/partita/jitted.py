"""Functions that `jit` returns: they are planned when they are called."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from partita.errors import ArgumentError
from partita.exclusive import Exclusive
from partita.frontend.calling import NOTHING_STATIC, Marked, Static
from partita.frontend.modules.functional import functional
from partita.frontend.specs import axes_of
from partita.frontend.trace import abstract, argument_name, memory_of, sharding_of
from partita.mesh import Mesh
from partita.plan import Plan
from partita.planning.prepare import prepare
from partita.program.fingerprint import fingerprint
from partita.run.call import Planned, weakly_typed

_Type = tuple[tuple[int, ...], str, str, bool]
"""The shape, type, memory of the host, and whether the type is a weak one, of an argument."""


@dataclasses.dataclass(frozen=True)
class _Signature:
    """Signature that a plan may depend on: how arguments are nested, their types, and shardings.

    Hashable: plans are found by it.
    """

    structure: Any
    types: tuple[_Type, ...]
    given: tuple[Any, ...]
    """The shardings over the axes of the mesh that they come with; None for any."""

    @property
    def strong(self) -> Any:
        """The signature without weak types and shardings."""
        return self.structure, tuple(type_[:3] for type_ in self.types)


_Path = tuple[Any, ...]
"""Path of a leaf in `(args, kwargs)`."""


class _Calls:
    """The planned functions for one choice of static arguments, and which one a call is for.

    Going over all leaves of the arguments takes as long as a small step. So the latest function is
    tried: `jax.jit` finds out, in C++, whether it knows the arguments. Where there are several, a
    few leaves tell them apart.

    Threads may call at once: each signature is planned by one of them, for which others wait that
    need the same, and a call never sees a table that is being written.
    """

    def __init__(self) -> None:
        self.known: dict[_Signature, Planned] = {}
        self._planning: dict[_Signature, Exclusive] = {}
        self._writing = Exclusive()
        self._leaves: dict[_Signature, dict[_Path, Any]] = {}
        self._latest: Planned | None = None
        self._hints: tuple[tuple[_Path, ...], dict[Any, Planned]] = (), {}
        """The paths of leaves that tell functions apart, and the functions by these leaves."""

    def planning(self, signature: _Signature) -> Exclusive:
        """To be held by whoever plans for a signature."""
        return self._planning.setdefault(signature, Exclusive())

    def add(self, signature: _Signature, planned: Planned, paths: Sequence[_Path]) -> None:
        """Another signature, with the paths of its leaves, for a function that may be known."""
        kinds = list(zip(signature.types, signature.given, strict=True))
        ours = dict(zip(paths, kinds, strict=True))
        with self._writing:
            self._leaves[signature] = ours
            self.known[signature] = self._latest = planned
            telling = list(self._hints[0])
            for other, leaves in self._leaves.items():
                told = any(leaves.get(path) != ours.get(path) for path in telling)
                if self.known[other] is not planned and not told:
                    differing = (path for path in ours if leaves.get(path) != ours[path])
                    telling += list(differing)[:1]
            self._hints = (
                tuple(telling),
                {
                    tuple(leaves.get(path) for path in telling): self.known[other]
                    for other, leaves in self._leaves.items()
                },
            )

    def guess(self, arguments: Any, kind: Callable[[Any], Any]) -> Planned | None:
        """The function that a call is most likely for; None if there is none yet."""
        telling, hints = self._hints
        if not telling:
            return self._latest
        hint = []
        for path in telling:
            try:
                hint.append(kind(_at(arguments, path)))
            except (LookupError, AttributeError, TypeError):
                hint.append(None)
        return hints.get(tuple(hint), self._latest)


def _at(tree: Any, path: _Path) -> Any:
    """Returns the value at a path of a tree of tuples, lists, dicts and named attributes."""
    for key in path:
        if isinstance(key, jax.tree_util.SequenceKey):
            tree = tree[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            tree = tree[key.key]
        elif isinstance(key, jax.tree_util.GetAttrKey):
            tree = getattr(tree, key.name)
        else:
            raise LookupError(key)
    return tree


class Jitted:
    """A function that is planned at its first call, and then runs partitioned.

    Args:
      fn: the function.
      make: plans it for arguments and keyword arguments.
      mesh: over whose axes shardings of arguments count; None if none do.
      marked: what is static, and donated.
      hoist_from: bytes of the smallest closed-over constant that is made an argument.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        make: Callable[..., Plan],
        mesh: Mesh | None,
        marked: Marked,
        hoist_from: int | None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))
        self.plans: dict[Any, Plan] = {}
        self._fn, self._make, self._mesh = fn, make, mesh
        self._said, self._hoist_from = marked, hoist_from
        plain = functional(fn, (), {}, argument_name) or fn  # not under the jit of a library
        self._static = marked if not callable(fn) else marked.jitted(plain)[1]
        self._has_static = bool(self._static.static_argnums or self._static.static_argnames)
        self._without_static = _Calls()
        self._calls = {NOTHING_STATIC.key: self._without_static}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, planned for these arguments."""
        if self._has_static:
            static = Static.of(self._static, args, kwargs)
            calls, dynamic = self._calls_for(static), static.without(args, kwargs)
        else:
            calls, dynamic = self._without_static, (args, kwargs)
        guess = calls.guess(dynamic, self._leaf)
        if guess is not None:
            try:
                return guess.attempt(*args, **kwargs)
            except (TypeError, ValueError):
                pass  # the arguments are others, or lie elsewhere
        return self._planned(args, kwargs)(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where it decorates one."""
        return self if instance is None else functools.partial(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Lowers it for these arguments, as `jax.jit`'s `lower` does."""
        return self._planned(args, kwargs).lower(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Traces it for these arguments, as `jax.jit`'s `trace` does."""
        return self._planned(args, kwargs).trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the results, as `jax.jit`'s `eval_shape` gives them."""
        return self._planned(args, kwargs).eval_shape(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have no plans yet: these are bound to the devices of a process."""
        return Jitted, (self._fn, self._make, self._mesh, self._said, self._hoist_from)

    def clear_cache(self) -> None:
        """Forgets all plans."""
        self.plans.clear()
        self._without_static = _Calls()
        self._calls = {NOTHING_STATIC.key: self._without_static}

    def _calls_for(self, static: Static) -> _Calls:
        try:
            return self._calls.setdefault(static.key, _Calls())
        except TypeError as error:
            raise ArgumentError(
                f"a static argument of {self.__name__} cannot be hashed ({error}); pass a tuple "
                "for a list, a frozen dataclass for a dict, or make it no static argument"
            ) from None

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Planned:
        """The function that is planned for these arguments; plans it if there is none."""
        static = Static.of(self._static, args, kwargs)
        calls = self._calls_for(static)
        others = static.without(args, kwargs)
        if (lifted := functional(self._fn, args, kwargs, argument_name)) is not None:
            others = lifted.split(others)
        leaves, structure = jax.tree.flatten_with_path(others)
        try:
            kinds = [self._leaf(leaf) for _, leaf in leaves]
        except TypeError:
            abstract(self._fn, *others, static)  # says which leaf is no array
            raise
        signature = _Signature(structure, tuple(t for t, _ in kinds), tuple(g for _, g in kinds))
        with calls.planning(signature):
            planned = calls.known.get(signature)
            if planned is None:
                planned = self._found(calls, static, signature, args, kwargs)
                if planned is None:
                    made = self._make(args, kwargs)
                    planned = _exactly(made)
                    self.plans[static.key, signature] = made
                calls.add(signature, planned, [path for path, _ in leaves])
        return planned

    def _found(
        self, calls: _Calls, static: Static, signature: _Signature, args: Any, kwargs: Any
    ) -> Planned | None:
        """A plan that was made for other arguments, and is right for these, too."""
        for (key, made_for), plan in self.plans.copy().items():
            if (key, made_for.strong) != (static.key, signature.strong):
                continue
            if made_for.given != signature.given and not _takes(plan, signature.given):
                continue
            if made_for.types == signature.types:
                return calls.known.get(made_for) or _exactly(plan)
            again = _retyped(plan, args, kwargs, self._said, self._hoist_from)
            if again is not None:
                return _exactly(again)
        return None

    def _leaf(self, leaf: Any) -> tuple[_Type, Any]:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        memory = memory_of(getattr(leaf, "sharding", None))
        type_ = aval.shape, str(aval.dtype), memory, weakly_typed(leaf)
        return type_, None if self._mesh is None else sharding_of(leaf, self._mesh)


def _exactly(plan: Plan) -> Planned:
    """Returns the runnable plan, for arguments of exactly the types that it was made for."""
    planned = plan.jit()
    planned.exact = True
    return planned


def _takes(made: Plan, given: Sequence[Any]) -> bool:
    """Returns whether these shardings, None for any, are those a plan has for its arguments."""
    return all(
        sharding is None
        or axes_of(sharding.spec, len(layout), "")[0] == tuple(map(made.mesh.axis_names, layout))
        for sharding, layout in zip(given, made.spmd.argument_layouts, strict=False)
    )


def _retyped(
    made: Plan, args: Any, kwargs: Any, marked: Marked, hoist_from: int | None
) -> Plan | None:
    """A plan for arguments that differ in weak types only; None if these make another program.

    Python scalars have weak types, and a counter that begins as one goes on as an array.
    """
    stage = made.done.stage
    target = (made.hardware, stage.context.capacity)
    prepared = prepare(made.fn, args, kwargs, made.mesh, target, marked, hoist_from)
    was = stage.context.traced
    program = dataclasses.replace(prepared.program, given=was.given)
    if fingerprint(program).digest != fingerprint(was).digest:
        return None
    traced = prepared.traced
    context = dataclasses.replace(stage.context, arguments=traced.arguments, results=traced.results)
    stage = dataclasses.replace(stage, context=context)
    return Plan.of(prepared, dataclasses.replace(made.done, stage=stage), made.meshes)
