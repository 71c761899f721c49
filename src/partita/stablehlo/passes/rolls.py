"""Rolls, read as one operation: a dimension whose first elements come after its last.

`jnp.roll`, the halves of a rotary embedding that change places, and their gradients are written as
two slices that are put together in the other order. Such slices are not as long as each other, so
they cannot be sharded alike, while of the roll itself each device needs no more than a shard.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo import rolls
from partita.stablehlo.building import again, bounds_of, shape_of, within
from partita.stablehlo.manual_regions import is_manual
from partita.stablehlo.mlir import hlo, maker, number_of
from partita.stablehlo.operations.moves import padding
from partita.stablehlo.passes.driver import Pattern

_SPELT = ("stablehlo.concatenate", "stablehlo.add")
"""Operations that a roll ends with: its halves are put together, or padded with zeros and added."""


def note_rolls(module: Any) -> None:
    """Puts a call in place of everything that rolls a dimension."""
    rolls.forget(module)
    Pattern(_matches, functools.partial(_rewrite, functools.partial(rolls.roll, module, {})))(
        module
    )


def _matches(op: Any) -> bool:
    return op.name in _SPELT and not is_manual(op)


def _rewrite(roll: Any, op: Any) -> list[Any] | None:
    halves = _halves(op)
    if halves is None:
        return None
    first, second = halves
    rolled = roll(first.source, first.dim, first.start)
    made = _applied(first, rolled)
    if first.done or second.done:
        other = _applied(second, rolled)
        made = hlo.select(within(made.type, first.dim, 0, first.stop - first.start), made, other)
    return [made]


@dataclasses.dataclass(frozen=True)
class _Half:
    """A slice, from the index `start` to `stop` of a dimension, with what is done to it."""

    source: Any
    dim: int
    start: int
    stop: int
    done: tuple[Any, ...]
    """Elementwise operations of one operand, first one first."""


def _halves(op: Any) -> tuple[_Half, _Half] | None:
    """The two halves that an operation joins in the other order, that which comes first first."""
    if len(op.operands) != 2:
        return None
    if op.name == "stablehlo.concatenate":
        dim = op.attributes["dimension"].value
        pair: list[_Half | None] = [_half(value, dim) for value in op.operands]
    else:
        found = [each for each in map(_padded, op.operands) if each is not None]
        if len(found) != 2:
            return None
        (low, before), (place, after) = sorted(found, key=lambda each: each[0])
        if low or place != before.stop - before.start:
            return None
        pair = [before, after]
    first, second = pair
    if first is None or second is None or (first.source, first.dim) != (second.source, second.dim):
        return None
    size = shape_of(first.source)[first.dim]
    joins = second.start == 0 and second.stop == first.start and first.stop == size
    return (first, second) if joins and op.results[0].type == first.source.type else None


def _padded(value: Any) -> tuple[int, _Half] | None:
    """Returns a half that zeros surround, as in gradients of slices, after its place in them."""
    op = maker(value)
    if op is None or op.name != "stablehlo.pad" or number_of(op.operands[1]) != 0:
        return None
    widths = [padding(op, dim) for dim in range(len(shape_of(value)))]
    moved = [dim for dim, each in enumerate(widths) if any(each)]
    if len(moved) != 1 or min(widths[moved[0]]) < 0 or widths[moved[0]][2]:
        return None
    half = _half(op.operands[0], moved[0])
    return None if half is None else (widths[moved[0]][0], half)


def _half(value: Any, dim: int) -> _Half | None:
    done: list[Any] = []
    while (op := maker(value)) is not None:
        if op.name == "stablehlo.slice":
            whole, (starts, limits, strides) = shape_of(op.operands[0]), bounds_of(op)
            rest = [d for d in range(len(whole)) if (starts[d], limits[d]) != (0, whole[d])]
            if rest != [dim] or set(strides) != {1}:
                return None
            return _Half(op.operands[0], dim, starts[dim], limits[dim], tuple(reversed(done)))
        alike = traits(op.name).elementwise and len(op.operands) == 1 == len(op.results)
        if not alike or op.operands[0].type != op.results[0].type or op.regions:
            return None
        done.append(op)
        value = op.operands[0]
    return None


def _applied(half: _Half, value: Any) -> Any:
    """The operations of a half, done to all of a value."""
    for op in half.done:
        (value,) = again(op, [value], shape_of(value))
    return value
