"""JAX function -> `Program`. The only file of this package that knows how JAX traces."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from partita.errors import TraceError, UnsupportedError
from partita.frontend import constrain
from partita.frontend.specs import axes_of
from partita.mesh import Mesh
from partita.program.ir import GivenSharding, Program
from partita.program.memories import HOST
from partita.stablehlo import partitioned, tags
from partita.stablehlo.constants import hoist
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.internals import argument_shardings, lower, platform_of

_T = TypeVar("_T")

_RULES = (tags.LOWERING, constrain.LOWERING)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function: the program, and how its flat arguments and results are nested."""

    program: Program
    arguments: Any
    """`(args, kwargs)` as a pytree of `ShapeDtypeStruct`s."""
    results: Any
    """The results as a pytree of `ShapeDtypeStruct`s."""
    donate_argnums: tuple[int, ...]
    """Positions of the donated arguments."""
    closed_over: tuple[np.ndarray, ...] = ()
    """Closed-over constants that have become arguments of the program, the last ones."""


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    donate_argnums: int | Sequence[int] = (),
    hoist_from: int | None = None,
    mesh: Mesh | None = None,
    platform: str = "",
) -> Traced:
    """Traces `fn` on abstract arguments; no device memory is touched.

    Shardings that arguments come with, or that `fn` has from its own `jax.jit`, become facts of
    the program. An array has one if it is a `NamedSharding` over the axes of `mesh`; where an
    array lies on one device, or anyhow else, says nothing.

    Args:
      fn: a function, plain or already under `jax.jit` (whose donation is taken over).
      args: arrays or `ShapeDtypeStruct`s, nested as `fn` takes them.
      kwargs: the same by keyword.
      donate_argnums: positions of arguments whose buffers the results may take over.
      hoist_from: makes closed-over constants of at least that many bytes arguments of the program.
      mesh: what a bare `PartitionSpec` in `fn` is for, if no mesh is set.
      platform: what it is lowered for, as JAX names it; by default, that of the devices at hand.

    Raises:
      TraceError: `fn` does not trace on these arguments, or cannot be lowered for the platform.
      UnsupportedError: it traces, but has effects, callbacks or shapes that cannot be exported.
    """
    name = _name(fn)
    leaves = jax.tree.leaves((tuple(args), kwargs))
    shardings = [sharding_of(leaf, mesh) for leaf in leaves]
    memories = [memory_of(getattr(leaf, "sharding", None)) for leaf in leaves]
    args, kwargs = abstract(fn, args, kwargs)
    try:
        traced, donated, own = _with_mesh_where_needed(
            lambda: _traced(fn, args, kwargs, as_tuple(donate_argnums), memories, mesh), mesh
        )
    except Exception as error:
        raise TraceError(
            f"JAX cannot trace {name} on the arguments given: {type(error).__name__}: "
            f"{str(error).strip()}"
        ) from error
    effects = traced.jaxpr.effects
    if effects:
        raise UnsupportedError(
            f"{name} has side effects ({', '.join(sorted(map(str, effects)))}) that cannot be "
            "exported; take debug prints and callbacks out of it"
        )
    platform = platform or platform_of()
    found: dict[str, partitioned.Partitioned] = {}
    try:
        lowered = lower(traced, (*_RULES, partitioned.lowering(found)), platform)
    except Exception as error:
        raise TraceError(
            f"JAX cannot lower {name} for {platform}: {type(error).__name__}: {str(error).strip()}"
        ) from error
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    text, constants = (text, ()) if hoist_from is None else hoist(text, hoist_from)
    program = import_stablehlo(text, name, len(constants))
    keys = _keys(program.arguments, (args, kwargs)) | _keys(program.results, traced.out_info)
    given = _given(program, [a if o is None else o for a, o in zip(shardings, own, strict=True)])
    # Of arguments in the memory of the host, the module says a sharding that is none of the user's.
    placed = {v for v, memory in zip(program.arguments, memories, strict=False) if memory}
    given = [*(each for each in program.given if each.value not in placed), *given]
    program = dataclasses.replace(
        program, keys=keys, given=tuple(given), partitioned=found, platform=platform
    )
    return Traced(program, (args, kwargs), traced.out_info, donated, constants)


def _traced(
    fn: Any,
    args: Any,
    kwargs: Any,
    donated: tuple[int, ...],
    memories: Sequence[str],
    mesh: Mesh | None,
) -> tuple[Any, tuple[int, ...], list[Any]]:
    """`fn` traced, what it donates, and the shardings that its own `jax.jit` gives arguments."""
    own: list[Any] = [None] * len(jax.tree.leaves((args, kwargs)))
    args, kwargs = _in_memories((args, kwargs), memories, mesh)
    if hasattr(fn, "trace"):
        inner = fn.trace(*args, **kwargs)
        donated = donated or _donation(inner)
        named = [s if isinstance(s, NamedSharding) else None for s in argument_shardings(inner)]
        own = named if len(named) == len(own) else own
    jitted = jax.jit(fn, keep_unused=True, donate_argnums=donated)
    return jitted.trace(*args, **kwargs), donated, own


def memory_of(sharding: Any) -> str:
    """The kind of memory that a sharding names, if it is one of the host; else empty."""
    kind = getattr(sharding, "memory_kind", None)
    return kind if kind in HOST else ""


def _in_memories(tree: Any, memories: Sequence[str], mesh: Mesh | None) -> Any:
    """Abstract arguments, with a sharding that says only in which memory of the host they lie."""
    if not any(memories):
        return tree
    sizes, names = (mesh.sizes, mesh.names) if mesh else ((1,), ("devices",))
    abstract_mesh = jax.sharding.AbstractMesh(sizes, names)
    leaves, structure = jax.tree.flatten(tree)
    placed = [
        jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            weak_type=leaf.weak_type,
            sharding=NamedSharding(abstract_mesh, PartitionSpec(), memory_kind=memory),
        )
        if memory
        else leaf
        for leaf, memory in zip(leaves, memories, strict=True)
    ]
    return jax.tree.unflatten(structure, placed)


def _given(program: Program, shardings: Sequence[Any]) -> list[GivenSharding]:
    """Facts from the shardings of arguments, None where there is none."""
    found = []
    named = zip(program.argument_names, program.arguments, shardings, strict=False)
    for name, value, sharding in named:
        if sharding is not None:
            rank = len(program.values[value].type.shape)
            theirs = tuple((axis, sharding.mesh.shape[axis]) for axis in sharding.mesh.axis_names)
            axes, _ = axes_of(sharding.spec, rank, name)
            found.append(GivenSharding(name, value, axes, False, theirs))
    return found


def sharding_of(leaf: Any, mesh: Mesh | None) -> NamedSharding | None:
    """The sharding that an argument comes with, as a fact; None without."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return sharding
    ours = mesh is not None and dict(sharding.mesh.shape) == dict(mesh)
    return sharding if ours else None


def _with_mesh_where_needed(make: Callable[[], _T], mesh: Mesh | None) -> _T:
    """Tries without a mesh, and with that of the plan if JAX asks for one and none is set."""
    try:
        return make()
    except Exception as error:
        unset = jax.sharding.get_abstract_mesh().empty
        asks = "mesh" in str(error) and "empty" in str(error)
        if mesh is None or not unset or not asks:
            raise
    automatic = (jax.sharding.AxisType.Auto,) * len(mesh.names)
    of_plan = jax.sharding.AbstractMesh(mesh.sizes, mesh.names, axis_types=automatic)
    with jax.sharding.use_abstract_mesh(of_plan):
        return make()


def _keys(values: Sequence[int], tree: Any) -> frozenset[int]:
    """The values that hold typed random keys; constants hold none."""
    leaves = zip(values, jax.tree.leaves(tree), strict=False)
    return frozenset(v for v, leaf in leaves if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def abstract(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments of `fn` with every array as a `ShapeDtypeStruct`.

    Raises `TraceError` for a leaf that is no array.
    """
    leaves, structure = jax.tree.flatten_with_path((tuple(args), kwargs))
    shapes = []
    for path, leaf in leaves:
        try:
            shapes.append(_abstract(leaf))
        except TypeError as error:
            raise TraceError(
                f"{_argument(fn, path)} of {_name(fn)} is no array, but a {type(leaf).__name__} "
                f"({getattr(leaf, '__name__', leaf)}); pass arrays or jax.ShapeDtypeStruct, and "
                "bind anything else with functools.partial; in a module that holds other things "
                "than arrays, separate them with equinox.partition(module, equinox.is_array)"
            ) from error
    made: tuple[Any, Any] = jax.tree.unflatten(structure, shapes)
    return made


def _argument(fn: Any, path: Sequence[Any]) -> str:
    """A leaf of `(args, kwargs)` as JAX would name it, or by number where parameters have none."""
    _, first, *rest = path
    if isinstance(first, jax.tree_util.DictKey):
        name = str(first.key)
    else:
        try:
            name = list(inspect.signature(fn).parameters)[first.idx]
        except (TypeError, ValueError, IndexError):
            name = f"argument {first.idx}"
    return name + jax.tree_util.keystr(tuple(rest))


def _name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def as_tuple(numbers: int | Sequence[int]) -> tuple[int, ...]:
    """Positions of arguments, given as one or several."""
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _donation(traced: Any) -> tuple[int, ...]:
    """Argument positions that a function under `jax.jit` donates by itself."""
    positional, _ = traced.args_info
    return tuple(
        i
        for i, info in enumerate(positional)
        if (leaves := jax.tree.leaves(info)) and all(leaf.donated for leaf in leaves)
    )
