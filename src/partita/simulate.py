"""`simulate`: what the shardings cost that a user has, without a search and without tactics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partita.cost import Hardware
from partita.errors import AxisError, SpecError, UnknownNameError
from partita.frontend.callbacks import of_result, with_modules
from partita.frontend.calling import Marked
from partita.frontend.meant import apart
from partita.frontend.specs import Axes, axes_of
from partita.frontend.trace import Traced
from partita.mesh import Mesh, MeshInput
from partita.options import positions, wrong
from partita.plan import Plan
from partita.planning.fixed_layouts import simulated
from partita.planning.prepare import Prepared, targeted, traced_or_read
from partita.program import Program
from partita.program.names import matches, nearest
from partita.tactics import Tactic
from partita.tactics.options import as_tactics


@apart
def simulate(
    fn: Callable[..., Any] | str | Path,
    *args: Any,
    mesh: MeshInput | Mesh,
    hardware: str | Hardware | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    memory: float | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    tactics: Tactic | Sequence[Tactic] = (),
    compile: bool | str = False,
    **kwargs: Any,
) -> Plan:
    """Prices the shardings that you have, as XLA executes them, without a search.

    The quick answer propagates them with Shardy's own passes, and has operations run as XLA's
    default partitioner does. `compile=True` gives XLA the last word: it compiles the program with
    your shardings, and `plan.compiled` prices what comes out and says where the quick answer
    differs. Shardings inside of the function count too. The plan is one like any other: it prints,
    runs, explains itself, can be saved, and compared with others.

    Args:
      fn: a JAX function, plain or under `jax.jit`, whose shardings and donation are taken over; or
        a program in a file: its path, or what `read` returns.
      *args: arrays or `jax.ShapeDtypeStruct`s, nested as `fn` takes them.
      mesh: as for `plan`.
      hardware: as for `plan`.
      in_shardings: `PartitionSpec`s of the positional arguments, as `jax.jit` takes them: a tuple,
        a pytree prefix in it, None for what is left open; or a dict of patterns of argument names,
        with `*` and `?` as wildcards. What has a spec is split just so; an axis that the spec does
        not name does not split it.
      out_shardings: the same for results. A dict that is nested as the results are is a pytree.
      memory: bytes per device that the plan may use, or a string such as `"12GiB"`.
      donate_argnums: positions of arguments whose buffers the results may take over.
      donate_argnames: names of such arguments.
      static_argnums: as for `plan`.
      static_argnames: as for `plan`.
      tactics: what to decide beyond the given shardings, in order: a schedule as for `plan`, which
        leaves alone what was given.
      compile: whether XLA compiles the program with these shardings: for the host devices of this
        process, of which there must be enough, or for a topology as `Plan.verify` takes it. With
        tactics it is still the program with the given shardings.
      **kwargs: keyword arguments of `fn`.

    Raises:
      SpecError: a spec with more entries than dimensions, an axis twice, a size that does not
        divide, a tree that does not fit.
      AxisError: a spec names an axis that the mesh does not have.
      UnknownNameError: a pattern matches nothing.
      VerifyError: the program was to be compiled, and there is no such topology, or it fails.
      PartitaError: as from `plan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.sharding import PartitionSpec as P
      >>> x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
      >>> w = jax.ShapeDtypeStruct((32, 16), jnp.float32)
      >>> p = simulate(lambda x, w: x @ w, x, w, mesh="data=8", hardware="tpu_v5e",
      ...              in_shardings=(P(None, "data"), P("data")))
      >>> [(c.kind, c.axes, c.bytes) for c in p.collectives]
      [('all_reduce', ('data',), 4096)]
    """
    mesh = Mesh.of(mesh)
    schedule = as_tactics(tactics)
    if not isinstance(compile, bool | str):
        raise wrong("compile", compile, "True, False, or a topology such as 'v5e:2x4'")
    donate_argnums = positions(donate_argnums, "donate_argnums")
    target = targeted(hardware, memory)
    platform = target[0].platform
    marked = Marked.of(static_argnums, static_argnames, donate_argnums, donate_argnames)
    fn, traced = traced_or_read(fn, args, kwargs, mesh, marked, platform=platform)
    if (modules := with_modules(fn)) is not None:
        in_shardings = modules.split(in_shardings)
    program = _with_specs(traced, in_shardings, out_shardings, mesh)
    prepared = Prepared(fn, traced, program, mesh, *target)
    made = Plan.of(prepared, prepared.schedule([], decides=True))
    if compile:
        from partita.verify.compiled_shardings import as_compiled

        compiled = as_compiled(made, compile if isinstance(compile, str) else None)
        made = dataclasses.replace(made, compiled=compiled)
    if not schedule:
        return made
    return dataclasses.replace(made.then(*schedule), compiled=made.compiled)


def _with_specs(traced: Traced, in_shardings: Any, out_shardings: Any, mesh: Mesh) -> Program:
    """The program of a trace with the user's specs as facts; these replace what it came with."""
    arguments = dict(_specs(traced, in_shardings, False, mesh))
    results = dict(_specs(traced, out_shardings, True, mesh))
    return simulated(traced, arguments, results, mesh)


def _specs(traced: Traced, specs: Any, of_results: bool, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """The number of each argument or result that has a spec, and its axes, checked."""
    program = traced.program
    tree = traced.results if of_results else traced.arguments[0]
    leaves = jax.tree.leaves(traced.results if of_results else traced.arguments)
    values = program.results if of_results else program.arguments
    names = program.result_names if of_results else program.argument_names
    if _are_patterns(specs, tree, of_results):
        found = _matched(specs, names, program.name)
    else:
        specs = of_result(tree, specs) if of_results else specs
        found = _broadcast(specs, tree, "out_shardings" if of_results else "in_shardings")
    for number, spec in found:
        if spec is not None:
            rank = len(leaves[number].shape) if number < len(leaves) else None
            shape = program.values[values[number]].type.shape
            yield number, _checked(spec, shape, rank, names[number], mesh)


def _are_patterns(specs: Any, tree: Any, of_results: bool) -> bool:
    """Returns whether specs are a dict by pattern, rather than a pytree."""
    alike = (
        of_results and isinstance(tree, Mapping) and tree.keys() == getattr(specs, "keys", set)()
    )
    return isinstance(specs, Mapping) and not alike


def _matched(
    specs: Mapping[str, Any], names: Sequence[str], program: str
) -> Iterator[tuple[int, Any]]:
    """Specs by pattern; of several that match a name, the last one counts."""
    found: dict[int, Any] = {}
    for pattern, spec in specs.items():
        numbers = [number for number, name in enumerate(names) if matches(pattern, name)]
        if not numbers:
            raise UnknownNameError(
                f"{pattern!r} matches none of what {program} has{nearest(pattern, names)}; names "
                f"are pytree paths as JAX prints them, such as {names[0]!r}, and * and ? are "
                "wildcards"
            )
        found.update(dict.fromkeys(numbers, spec))
    yield from found.items()


def _broadcast(specs: Any, tree: Any, what: str) -> Iterator[tuple[int, Any]]:
    """Specs of a pytree prefix, one for each leaf of the tree."""

    def is_spec(leaf: Any) -> bool:
        return leaf is None or isinstance(leaf, PartitionSpec | NamedSharding)

    if isinstance(specs, list):
        specs = tuple(specs)
    try:
        wide = jax.tree.broadcast(specs, tree, is_leaf=is_spec)
    except ValueError as error:
        raise SpecError(
            f"{what} is nested otherwise than what it is for: {error}; give a prefix of the tree, "
            "or a dict of patterns of names"
        ) from None
    yield from enumerate(jax.tree.leaves(wide, is_leaf=is_spec))


def _checked(spec: Any, shape: Sequence[int], rank: int | None, name: str, mesh: Mesh) -> Axes:
    """The axes that a spec gives each dimension; it must fit the mesh and the shape."""
    if isinstance(spec, NamedSharding):
        theirs = Mesh.of(spec.mesh)
        if dict(theirs) != dict(mesh):
            raise SpecError(f"{name}: its sharding is for mesh {theirs}, but the plan for {mesh}")
        spec = spec.spec
    axes, is_open = axes_of(spec, len(shape) if rank is None else rank, name)
    if any(is_open):
        raise SpecError(
            f"{name}: its sharding {spec} leaves some dimensions open; give None or an axis, leave "
            "all of it out, or say it inside of the function with partita.constrain"
        )
    for dim, row in enumerate(axes):
        try:
            size = math.prod(mesh.sizes[mesh.axis(axis)] for axis in row)
        except AxisError as error:
            raise AxisError(f"{name}: its sharding {spec} does not fit: {error}") from None
        if shape[dim] % size:
            by = " x ".join(f"{axis}={dict(mesh)[axis]}" for axis in row)
            raise SpecError(
                f"{name}: its sharding {spec} splits dimension {dim} of {shape[dim]}, which does "
                f"not divide by {by}; pad it, or give it another axis"
            )
    return (*axes, *[()] * (len(shape) - len(axes)))
