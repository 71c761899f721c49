"""Finds places where XLA may execute something else than the rules of the partitioner say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from partita.mesh import Mesh
from partita.program import Operation, Program
from partita.program.ir import show_axes
from partita.tactics.product import Product, is_product, product_of
from partita.text import times
from partita.tiling import Axes, Layout

MOST_SHOWN = 3
"""Operations or values that a warning names."""

_KNOWN = frozenset(
    f"stablehlo.{kind}"
    for kind in (
        *("dot_general", "reduce", "dynamic_slice", "dynamic_update_slice"),
        *("reshape", "broadcast_in_dim"),
    )
)
"""Operations with factors that are not plainly parallel, and whose partitioning the rules know."""


def uncertain(
    program: Program, mesh: Mesh, values: Sequence[Layout], lost: Mapping[int, str]
) -> Iterator[str]:
    """Warnings about a program that is partitioned by the rules.

    Args:
      program: the program.
      mesh: over which.
      values: the layout of every value.
      lost: what Shardy says of values and a plan cannot.
    """
    for value, said in list(lost.items())[:MOST_SHOWN]:
        here = show_axes(map(mesh.axis_names, values[value]))
        yield _tell(f"Shardy has {program.describe(value)} as {said}, a plan {here}")
    beyond = [op for op in program.operations if _beyond_rules(op, values)]
    if beyond:
        where = [f"{op.title} at {op.source}" if op.source else op.title for op in beyond]
        yield _tell(
            "operations are sharded along dimensions for which XLA's partitioner has ways of its "
            f"own: {_counted(where)}"
        )
    again = list(map(program.describe, _gathered_again(program, mesh, values)))
    if again:
        yield _tell(
            "XLA may gather operands of products again that are gathered once here: "
            f"{_counted(again)}"
        )


def _tell(what: str) -> str:
    return f"{what}; compile=True shows what XLA executes"


def _counted(names: Sequence[str]) -> str:
    """Names, each with how often it is there, as far as there is room."""
    found = dict.fromkeys(names, 0)
    for name in names:
        found[name] += 1
    shown = ", ".join(f"{name}{times(found[name])}" for name in list(found)[:MOST_SHOWN])
    more = len(found) - MOST_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _beyond_rules(op: Operation, values: Sequence[Layout]) -> bool:
    """Returns whether an operand is sharded along a dimension that is not plainly parallel and that
    the rules do not cover."""
    rule = op.rule
    if op.kind in _KNOWN:
        return False
    for number, (value, dims) in enumerate(zip(op.operands, rule.operands, strict=True)):
        halo = rule.halos[number] if rule.halos else ()
        for dim, (made_of, axes) in enumerate(zip(dims, values[value], strict=True)):
            factor = rule.leading(made_of)
            parallel = factor is not None and rule.factors[factor].kind in ("parallel", "given")
            if axes and (not parallel or (halo and halo[dim] is not None)):
                return True
    return False


def _gathered_again(program: Program, mesh: Mesh, values: Sequence[Layout]) -> list[int]:
    """Values that XLA's partitioner gathers twice in the same way.

    It divides the devices of a product into groups by one operand and the result after the other.
    What is gathered inside of groups it does not find again outside of them, or in other groups.
    The compiler for TPUs drops the second gather, that for hosts keeps it.
    """
    found: dict[tuple[int, Axes], set[Axes]] = defaultdict(set)
    for op in program.operations:
        if is_product(op):
            product = product_of(op, program, values)
            for side, over, inside in _gathers(product, mesh):
                found[op.operands[side], over].add(inside)
    return [value for (value, _), groups in found.items() if len(groups) > 1]


def _gathers(product: Product, mesh: Mesh) -> Iterator[tuple[int, Axes, Axes]]:
    """Yields what a product gathers since the other operand agrees with the result: the number of
    the operand, the axes, and those along which it is gathered inside of groups."""
    kept = [_kept(product, side) for side in (0, 1)]
    moves = [_elsewhere(product, side, kept[1 - side]) for side in (0, 1)]
    local = [
        product.sizes[side] // mesh.size(tuple(a for axes in product.sides[side] for a in axes))
        for side in (0, 1)
    ]
    first = 1
    if _divides(product, 0, kept[0]):
        less = local[1] * mesh.size(kept[0]) < local[0] * mesh.size(kept[1])
        first = 0 if less or not _divides(product, 1, kept[1]) else 1
    for side in (0, 1):
        if moves[side]:
            yield side, moves[side], kept[first] if side == first else ()


def _divides(product: Product, side: int, kept: Axes) -> bool:
    """Returns whether an operand divides devices into groups: it agrees with the result in all
    axes by which it is split where it is not summed."""
    factors = (product.factors(axis)[side] for axis in product.axes if axis not in kept)
    return bool(kept) and all(f is None or f in product.summed for f in factors)


def _kept(product: Product, side: int) -> Axes:
    """The axes along which an operand and the result agree."""
    return tuple(
        axis
        for axis in product.axes
        if (place := product.factors(axis))[side] is not None and place[side] == place[2]
    )


def _elsewhere(product: Product, side: int, axes: Axes) -> Axes:
    """Returns axes that the other operand keeps and that split another dimension of this one."""
    found = []
    for axis in axes:
        place = product.factors(axis)
        if place[side] is not None and place[side] != place[1 - side]:
            found.append(axis)
    return tuple(found)
