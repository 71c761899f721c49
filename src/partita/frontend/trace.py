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

from partita.errors import PartitaWarning, TraceError, UnsupportedError, warn
from partita.frontend import calling, constrain
from partita.frontend.callbacks import Observing
from partita.frontend.calling import NOTHING_STATIC, UNMARKED, Marked, Static, name_of
from partita.frontend.in_place import watched
from partita.frontend.modules.functional import Functional, functional
from partita.frontend.modules.kinds import changed_outside
from partita.frontend.specs import axes_of
from partita.mesh import Mesh
from partita.program.ir import GivenSharding, Program
from partita.program.memories import HOST
from partita.stablehlo import partitioned, tags
from partita.stablehlo.callbacks import dropped, has_callbacks, identities, refuse
from partita.stablehlo.constants import hoist
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.internals import (
    LoweringRule,
    argument_shardings,
    jit_options,
    lower,
    platform_of,
    result_shardings,
)

_T = TypeVar("_T")

_RULES = (tags.LOWERING, constrain.LOWERING, calling.LOWERING)


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
    donate_argnames: tuple[str, ...] = ()
    """Names of the donated keyword arguments."""
    static: Static = NOTHING_STATIC
    """The static arguments, which are part of the program."""
    fn: Any = None
    """Function as traced, if it is not the one given."""
    own_results: frozenset[int] = frozenset()
    """Results to which the function's own `jax.jit` gives a sharding, by number."""


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    marked: Marked = UNMARKED,
    hoist_from: int | None = None,
    mesh: Mesh | None = None,
    platform: str = "",
) -> Traced:
    """Traces `fn` on abstract arguments; no device memory is touched.

    Shardings of the arguments, or of `fn`'s own `jax.jit`, become facts of the program. An array
    has one if it is a `NamedSharding` over the axes of `mesh`. Any other placement, on one device
    for example, is ignored.

    Args:
      fn: a function, plain or already under `jax.jit` (whose donated and static arguments are
        adopted).
      args: arrays or `ShapeDtypeStruct`s, nested as `fn` takes them.
      kwargs: the same by keyword.
      marked: which arguments are static, and whose buffers results may reuse.
      hoist_from: makes closed-over constants of at least that many bytes arguments of the program.
      mesh: mesh of bare `PartitionSpec`s in `fn`, if no mesh is set.
      platform: platform to lower for, as JAX names it; by default, that of the available devices.

    Raises:
      TraceError: `fn` does not trace on these arguments, or cannot be lowered for the platform.
      UnsupportedError: it traces, but has effects, callbacks or shapes that cannot be exported.
    """
    name = name_of(fn)
    watch = None if isinstance(fn, Functional) or jit_options(fn) else watched(fn)
    said = marked
    jitted, marked = marked.jitted(watch or fn)
    static = Static.of(marked, args, kwargs)
    args, kwargs = static.without(args, kwargs)
    if isinstance(fn, Functional):
        args, kwargs = fn.split((args, kwargs))
    leaves = jax.tree.leaves((args, kwargs))
    shardings = [sharding_of(leaf, mesh) for leaf in leaves]
    memories = [memory_of(getattr(leaf, "sharding", None)) for leaf in leaves]
    args, kwargs = abstract(fn, args, kwargs, static)
    forms = [static.among(*_in_memories((args, kwargs), memories, mesh))]
    typed = _typed((args, kwargs), shardings)
    if typed is not None:
        forms.insert(
            0 if is_explicit(jax.sharding.get_abstract_mesh()) else 1, static.among(*typed)
        )
    donated = marked.donated(*forms[0])
    try:
        traced, own, made, every = _first_traced(fn, jitted, forms, mesh)
    except Exception as error:
        if (changes := changed_outside(fn, error)) is not None:
            raise TraceError(
                f"{name} changes {changes}, which it does not take as an argument; pass the module "
                f"that has it to {name}, so that what changes is written back"
            ) from error
        raise TraceError(
            f"JAX cannot trace {name} on the arguments given: {type(error).__name__}: "
            f"{str(error).strip()}"
        ) from error
    if watch is not None and watch.lost:
        lost = watch.missed(*every, lambda fn: said.jitted(fn)[0])
        names = dict.fromkeys(argument_name(fn, first, path) for _, first, *path in lost)
        if names:
            raise TraceError(
                f"{name} changes {', '.join(names)} in place and does not return what comes of it, "
                f"so that the change is lost; return it, and pass it to the next call"
            )
    refuse(traced.jaxpr)
    for what, instead in dropped(traced.jaxpr).items():
        warn(f"{what} is left out of the plan of {name}: {instead}", PartitaWarning)
    observing = None
    if has_callbacks(traced.jaxpr):
        observing = Observing(fn)
        jitted = said.jitted(observing)[0]
        traced, _, _, every = _first_traced(observing, jitted, [every], mesh)
    effects = [e for e in traced.jaxpr.effects if type(e).__name__ != "InternalMutableArrayEffect"]
    if any(type(effect).__name__ in ("ReadEffect", "WriteEffect") for effect in effects):
        raise UnsupportedError(
            f"{name} reads or changes a jax.Ref that it does not make itself, which devices of a "
            f"partitioned program cannot share; pass what it holds to {name}, and return what "
            "comes of it"
        )
    if effects:
        raise UnsupportedError(
            f"{name} has side effects ({', '.join(sorted(map(str, effects)))}) that cannot be "
            "exported; take debug prints and callbacks out of it"
        )
    platform = platform or platform_of()
    found: dict[str, partitioned.Partitioned] = {}
    rules: list[LoweringRule] = [*_RULES, *identities(traced.jaxpr), partitioned.lowering(found)]
    try:
        lowered = lower(traced, rules, platform)
    except Exception as error:
        raise TraceError(
            f"JAX cannot lower {name} for {platform}: {type(error).__name__}: {str(error).strip()}"
        ) from error
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    text, constants = (text, ()) if hoist_from is None else hoist(text, hoist_from)
    program = import_stablehlo(text, name, len(constants))
    if len(program.arguments) != len(shardings) + len(constants):
        raise TraceError(
            f"{name} reads an array from outside that another function holds while it is traced "
            f"(under jax.grad, jax.jit or jax.vmap); make it an argument of {name}"
        )
    keys = _keys(program.arguments, (args, kwargs)) | _keys(program.results, traced.out_info)
    given = _given(program, [a if o is None else o for a, o in zip(shardings, own, strict=True)])
    # Of arguments in the memory of the host, the module says a sharding that is none of the user's.
    # Likewise the shardings in types, which are given here, too.
    said_here = [memory or sharding for memory, sharding in zip(memories, shardings, strict=True)]
    placed = {v for v, said in zip(program.arguments, said_here, strict=False) if said}
    given = [*(each for each in program.given if each.value not in placed), *given]
    program = dataclasses.replace(
        program, keys=keys, given=tuple(given), partitioned=found, platform=platform
    )
    return Traced(
        program,
        (args, kwargs),
        traced.out_info,
        donated.donate_argnums,
        constants,
        donated.donate_argnames,
        static,
        observing,
        made,
    )


def of_arrays(fn: Any, args: Any, kwargs: Any, marked: Marked) -> Any:
    """A function of modules of a library as one of trees of arrays; others as they are."""
    made = functional(fn, args, kwargs, argument_name)
    if made is None or made is fn:
        return fn
    donated = marked.jitted(made)[1].donated(args, kwargs)
    return made.donating((*donated.donate_argnums, *donated.donate_argnames))


def _traced(fn: Any, jitted: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any], frozenset[int]]:
    """`fn` traced, the shardings that its own `jax.jit` gives its arguments, and the results to
    which that gives one."""
    traced = jitted.trace(*args, **kwargs)
    own: list[Any] = [None] * len(jax.tree.leaves(traced.args_info))
    made: frozenset[int] = frozenset()
    if jit_options(fn) is not None:
        itself = fn.trace(*args, **kwargs)
        shardings = argument_shardings(itself)
        results = enumerate(result_shardings(itself))
        made = frozenset(n for n, each in results if isinstance(each, NamedSharding))
        named = [s if isinstance(s, NamedSharding) else None for s in shardings]
        own = named if len(named) == len(own) else own
    return traced, own, made


def _first_traced(fn: Any, jitted: Any, forms: Sequence[Any], mesh: Mesh | None) -> Any:
    """`fn` traced on the first form of its arguments that JAX takes, as `_traced`; and the form.

    Raises what JAX says of the first.
    """
    first: Exception | None = None
    for form in forms:
        try:
            make = functools.partial(_traced, fn, jitted, *form)
            return *_with_mesh_where_needed(make, mesh), form
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _typed(tree: Any, shardings: Sequence[Any]) -> Any:
    """Returns abstract arguments with the shardings that are part of their types; None if none are.

    Those are over explicit axes of a mesh. Under `jax.set_mesh` JAX derives the shardings of all
    values from them, and fails where it has no rule. In that case, and where no mesh is set, the
    function is traced as if the axes were automatic.
    """
    if not any(sharding is not None and is_explicit(sharding.mesh) for sharding in shardings):
        return None
    return _sharded(
        tree,
        [None if s is None or not is_explicit(s.mesh) or memory_of(s) else s for s in shardings],
    )


def _sharded(tree: Any, shardings: Sequence[Any]) -> Any:
    """Returns abstract arguments with shardings in their types, where that is not None."""
    leaves, structure = jax.tree.flatten(tree)
    pairs = zip(leaves, shardings, strict=True)
    return jax.tree.unflatten(
        structure, [leaf if s is None else leaf.update(sharding=s) for leaf, s in pairs]
    )


def is_explicit(mesh: Any) -> bool:
    """Returns whether shardings over some axes of a mesh are part of types."""
    return jax.sharding.AxisType.Explicit in mesh.axis_types


def memory_of(sharding: Any) -> str:
    """The kind of memory that a sharding names, if it is one of the host; else empty."""
    kind = getattr(sharding, "memory_kind", None)
    return kind if kind in HOST else ""


def _in_memories(tree: Any, memories: Sequence[str], mesh: Mesh | None) -> Any:
    """Returns abstract arguments with a sharding that gives only their memory of the host."""
    if not any(memories):
        return tree
    sizes, names = (mesh.sizes, mesh.names) if mesh else ((1,), ("devices",))
    abstract_mesh = jax.sharding.AbstractMesh(sizes, names)
    spec = PartitionSpec()
    return _sharded(
        tree, [NamedSharding(abstract_mesh, spec, memory_kind=m) if m else None for m in memories]
    )


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
        if mesh is None or not unset or not asks_for_mesh(error):
            raise
    automatic = (jax.sharding.AxisType.Auto,) * len(mesh.names)
    of_plan = jax.sharding.AbstractMesh(mesh.sizes, mesh.names, axis_types=automatic)
    with jax.sharding.use_abstract_mesh(of_plan):
        return make()


def asks_for_mesh(error: Exception) -> bool:
    """Returns whether JAX asks for a mesh to be set, for a bare `PartitionSpec`."""
    return "mesh" in str(error) and "empty" in str(error)


def _keys(values: Sequence[int], tree: Any) -> frozenset[int]:
    """The values that hold typed random keys; constants hold none."""
    leaves = zip(values, jax.tree.leaves(tree), strict=False)
    return frozenset(v for v, leaf in leaves if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def abstract(
    fn: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: Static = NOTHING_STATIC,
) -> tuple[Any, Any]:
    """Returns arguments of `fn` without static ones, with every array as a `ShapeDtypeStruct`.

    Raises `TraceError` for a leaf that is not an array.
    """
    leaves, structure = jax.tree.flatten_with_path((tuple(args), kwargs))
    shapes = []
    for (_, first, *path), leaf in leaves:
        try:
            if isinstance(leaf, jax.Ref):
                what = argument_name(fn, _in_call(first, static), path)
                raise UnsupportedError(
                    f"{what} of {name_of(fn)} is a jax.Ref, which it would change in "
                    f"place; pass what it holds, {what}[...], and return what comes of it"
                )
            shapes.append(_abstract(leaf))
        except TypeError as error:
            what = argument_name(fn, _in_call(first, static), path)
            raise TraceError(
                f"{what} of {name_of(fn)} is no array, but a "
                f"{type(leaf).__name__} ({getattr(leaf, '__name__', leaf)}); pass arrays or "
                "jax.ShapeDtypeStruct, name what is part of the program in static_argnames, and "
                "bind anything else with functools.partial; in a module that holds other things "
                "than arrays, separate them with equinox.partition(module, equinox.is_array)"
            ) from error
    made: tuple[Any, Any] = jax.tree.unflatten(structure, shapes)
    return made


def _in_call(first: Any, static: Static) -> Any:
    """The key of an argument in a call, from that among arguments that are not static."""
    if isinstance(first, jax.tree_util.SequenceKey):
        return jax.tree_util.SequenceKey(static.position(first.idx))
    return first


def argument_name(fn: Any, first: Any, path: Sequence[Any] = ()) -> str:
    """A leaf of an argument as JAX would name it, or by number where parameters have none.

    Args:
      fn: the function.
      first: the key of the argument: its position in the call, or its name.
      path: of the leaf in the argument.
    """
    if isinstance(first, jax.tree_util.DictKey):
        name = str(first.key)
    else:
        try:
            parameters = list(inspect.signature(fn).parameters.values())
            rest = [n for n, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL]
            if rest and first.idx >= rest[0]:
                name = f"{parameters[rest[0]].name}[{first.idx - rest[0]}]"
            else:
                name = parameters[first.idx].name
        except (TypeError, ValueError, IndexError):
            name = f"argument {first.idx}"
    return name + jax.tree_util.keystr(tuple(path))


def as_tuple(numbers: int | Sequence[int]) -> tuple[int, ...]:
    """Positions of arguments, given as one or several."""
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
