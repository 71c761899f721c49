"""Smaller arguments for a function whose plan is too large to run on host devices.

All dimensions of arguments that are equally long shrink together, to a part of their size that the
same axes of the mesh divide, as long as the function traces on them: a batch or a vocabulary does,
a width that the model's code knows by its own configuration does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax

from partita.errors import PartitaError, UnsupportedError
from partita.frontend.calling import Marked, Static
from partita.frontend.files import Module
from partita.frontend.trace import trace
from partita.mesh import Mesh
from partita.planning.schedule import Scheduled
from partita.program import Program
from partita.text import quantity, size

MOST_FLOPS = 3e11
"""Floating point operations of a step that host devices do in a few seconds, on both sides."""
MOST_BYTES = 2 << 30
"""Bytes of arguments and results, unsharded."""
LEAST = 8
"""No dimension becomes smaller."""

Arguments = tuple[Any, Any]


def smaller(done: Scheduled, fn: Any, marked: Marked, static: Static) -> Arguments | None:
    """Arguments on which a function can be run on host devices.

    Args:
      done: the plan.
      fn: what it is a plan of.
      marked: what is static and donated.
      static: the static arguments of the plan.

    Returns:
      `(args, kwargs)` but for static ones, as `ShapeDtypeStruct`s; None if those of the plan do.

    Raises:
      UnsupportedError: the plan is too large, and the function traces on no smaller arguments.
    """
    context = done.stage.context
    program, arguments = done.spmd.program, context.arguments
    if _runs(program):
        return None
    refusal = UnsupportedError(
        f"{program.name} is too large to run on host devices: {quantity(_flops(program), 'FLOP')} "
        f"and {size(_bytes(program))} of arguments and results; give smaller arguments, or plan "
        "the function on smaller ones"
    )
    if isinstance(fn, Module):
        raise refusal
    for old in _sizes(arguments):
        new = _part(old, context.mesh)
        if new is None:
            continue
        shrunk = _replaced(arguments, old, new)
        args, kwargs = static.among(*shrunk)
        try:
            traced = trace(fn, args, kwargs, marked, None, context.mesh, program.platform)
        except PartitaError:
            continue
        arguments = shrunk
        if _runs(traced.program):
            return arguments
    raise refusal


def changes(before: Arguments, after: Arguments) -> str:
    """Describes the sizes that have changed, as a sentence goes on: `128 in place of 4096`."""
    pairs = zip(_shapes(before), _shapes(after), strict=True)
    changed = {(m, n) for old, new in pairs for n, m in zip(old, new, strict=True) if n != m}
    return ", ".join(f"{new} in place of {old}" for new, old in sorted(changed))


def _sizes(arguments: Arguments) -> list[int]:
    """The sizes of dimensions, those of small arguments first: of examples, not of parameters."""
    held: dict[int, int] = {}
    for shape in _shapes(arguments):
        for n in set(shape):
            held[n] = held.get(n, 0) + math.prod(shape)
    return sorted(held, key=lambda n: (held[n], -n))


def _part(old: int, mesh: Mesh) -> int | None:
    """The smallest part of a size that the axes divide that divide all of it."""
    counts = range(len(mesh.sizes) + 1)
    axes = (c for count in counts for c in itertools.combinations(mesh.sizes, count))
    shards = math.lcm(*(s for each in axes if old % (s := math.prod(each)) == 0))
    least = shards * -(-LEAST // shards)
    return next((new for new in range(least, old, shards) if old % new == 0), None)


def _shapes(arguments: Arguments) -> Sequence[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(arguments)]


def _replaced(arguments: Arguments, old: int, new: int) -> Arguments:
    def replace(leaf: Any) -> Any:
        shape = tuple(new if n == old else n for n in leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type)

    made: Arguments = jax.tree.map(replace, arguments)
    return made


def _runs(program: Program) -> bool:
    return _flops(program) <= MOST_FLOPS and _bytes(program) <= MOST_BYTES


def _flops(program: Program) -> float:
    """Names of products and convolutions."""
    return sum(
        2.0 * op.times * math.prod(factor.size for factor in op.rule.factors)
        for op in program.operations
        if op.traits.multiplies
    )


def _bytes(program: Program) -> int:
    return sum(program.values[v].type.bytes for v in (*program.arguments, *program.results))
