"""Rules by which XLA's partitioner runs operations, once Shardy has given every value a sharding.

The partitioner goes through a program operation by operation. Most are run as their result is
sharded, and operands are moved to fit. A reduction is run as its operand is sharded. Products weigh
three layouts, those of both operands and of the result, by `PRODUCTS`. Every sum is completed where
it is made. Each rule of the table has an experiment that shows it, which a test compiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from partita.decisions import Stage
from partita.mesh import Mesh
from partita.program import Operation, Program
from partita.stablehlo.propagated import propagated
from partita.tactics.placement import sharing_a_buffer
from partita.tactics.product import Product, carried, is_product, product_of
from partita.tactics.protocol import Outcome
from partita.tactics.uncertain import uncertain
from partita.tiling import Axes, Layout, replicated

_Tensor = tuple[int, tuple[tuple[int, ...], ...]]
"""A value, and the factors of each of its dimensions."""


@dataclasses.dataclass(frozen=True)
class ProductRule:
    """A rule by which an axis of a product is decided; of several that apply, the first counts."""

    name: str
    decides: Callable[[Product, int], int | None]
    """Function from a product and an axis to the factor that the axis splits; None if it does not
    apply."""
    experiments: tuple[tuple[str, str, str], ...]
    """Products of `f32[192,320]` and `f32[320,448]` over a mesh `x=4,y=2` that show it: the axes of
    both dimensions of the left operand, the right one and the result, as in `x,-`. Without this
    rule the first would run otherwise."""


def _summed_alike(product: Product, axis: int) -> int | None:
    left, right, _ = product.factors(axis)
    if left is None or left != right or product.lhs[left] != product.rhs[left]:
        return None
    return left


def _as_result(product: Product, axis: int) -> int | None:
    *_, result = product.factors(axis)
    return result


def _smaller_sum(product: Product, axis: int) -> int | None:
    left, right, _ = product.factors(axis)
    number, factor = (0, left) if right is None else (1, right)
    others = [a for a in product.axes if a != axis and product.factors(a)[2] is None]
    if (left is None) == (right is None) or others:
        return None
    return factor if product.sizes[2] < product.sizes[number] else None


PRODUCTS = (
    ProductRule(
        "both operands are split alike where they are summed: the sum is completed, then cut",
        _summed_alike,
        (("x,y", "y,-", "x,-"), ("x,y", "y,-", "x+y,-"), ("x+y,-", "-,-", "-,-")),
    ),
    ProductRule(
        "as the result is split: the operand that is split elsewhere is gathered or moved",
        _as_result,
        (("-,x", "-,-", "x,-"), ("x,-", "x,y", "x,y"), ("x,y", "x,y", "x,y")),
    ),
    ProductRule(
        "only one operand is split, where it is summed, and is larger than the result: the other "
        "one is cut",
        _smaller_sum,
        (("x,-", "y,-", "x,-"),),
    ),
)
"""Rules for an axis in a product. If none applies, operands are gathered over it."""


def as_xla_does(stage: Stage, placed: Mapping[int, Layout]) -> Outcome:
    """Partitions a program from the shardings that it comes with, as XLA does.

    Args:
      stage: nothing is sharded; its pins stay.
      placed: values that are given a layout, those that share a buffer with them included.
    """
    program, mesh = stage.context.analysis.program, stage.context.mesh
    found = propagated(program, mesh)
    values = list(replicated(program).values)
    for value, layout in {**found.layouts, **placed}.items():
        values[value] = layout
    for argument in program.arguments:
        for value in sharing_a_buffer(program, argument):
            values[value] = values[argument]
    ops = tuple(layout_of(op, program, values, mesh) for op in program.operations)
    warnings = uncertain(program, mesh, values, found.lost)
    return Outcome(
        dataclasses.replace(stage.assignment, ops=ops, values=tuple(values)),
        warnings=tuple(warnings),
    )


def layout_of(op: Operation, program: Program, values: Sequence[Layout], mesh: Mesh) -> Layout:
    """The axes of every factor of an operation, given the layout of every value."""
    if is_product(op):
        return _of_product(op, program, values, mesh)
    operands = list(zip(op.operands, op.rule.operands, strict=True))
    results = list(zip(op.results, op.rule.results, strict=True))
    found: list[Axes] = [()] * len(op.rule.factors)
    for value, dims in _by_weight(op, operands, results):
        used = {axis for axes in found for axis in axes}
        for factor, axes in carried(op, dims, values[value]):
            if not found[factor] and used.isdisjoint(axes):
                found[factor] = axes
    return _fitting(op, found, mesh)


def _by_weight(op: Operation, operands: list[_Tensor], results: list[_Tensor]) -> list[_Tensor]:
    """The tensors by whose layout an operation runs, the one that counts most first."""
    traits = op.traits
    if traits.reduces:
        return operands
    if traits.looks_up:  # the table, then the indices
        return [*operands, *results]
    if traits.scatters:  # after what is updated the updates, then the indices
        return [*results, *reversed(operands)]
    return results


def _of_product(op: Operation, program: Program, values: Sequence[Layout], mesh: Mesh) -> Layout:
    product = product_of(op, program, values)
    chosen = {axis: _decided(product, axis) for axis in product.axes}
    found: list[Axes] = []
    for factor in range(len(op.rule.factors)):
        sides = (product.result, product.lhs, product.rhs)
        orders = sorted((side[factor] for side in sides), key=len)
        order = dict.fromkeys(a for axes in reversed(orders) for a in axes)
        found.append(tuple(axis for axis in order if chosen[axis] == factor))
    return _fitting(op, found, mesh)


def _decided(product: Product, axis: int) -> int | None:
    """The factor that an axis splits in a product; None if operands are gathered over it."""
    decided = (rule.decides(product, axis) for rule in PRODUCTS)
    return next((factor for factor in decided if factor is not None), None)


def _fitting(op: Operation, layout: Sequence[Axes], mesh: Mesh) -> Layout:
    """A layout of factors, as far as devices can follow it: no axis twice, no uneven shards."""
    used: set[int] = set()
    found: list[Axes] = []
    for factor, axes in zip(op.rule.factors, layout, strict=True):
        kept: Axes = ()
        for axis in axes:
            size = mesh.size((*kept, axis))
            if factor.kind == "blocked" or axis in used or factor.size % size:
                break
            if factor.size // size < factor.least:
                break
            kept = (*kept, axis)
        used |= set(kept)
        found.append(kept)
    return tuple(found)
