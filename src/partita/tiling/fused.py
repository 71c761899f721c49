"""Fused projections: an axis on a dimension that holds several parts goes to each of the parts.

The weight `[embed, 3 * n]` of a fused projection is read as `[embed, 3, n]`, see
`partita.stablehlo.passes.dimensions.fused`. Whoever shards `3 * n` wants queries, keys and values
sharded along `n`. So the axis starts from there, too. The weight is stored as it was asked for, and
exchanged where it is reshaped. That is along another of its dimensions, if there is one, so that
each device sends at most its shard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from partita.analysis import ClassGraph, OpClass
from partita.tiling import Node, Propagation, Propagator, Tiling, uses_axis


def tile_with_parts(
    propagator: Propagator,
    tiling: Tiling,
    seeds: Sequence[Node],
    axis: int,
    roles: Mapping[int, int],
    quick: bool = False,
) -> Propagation:
    """Propagates an axis from dimensions and, where these are fused, from the parts in them.

    With `quick`, stops and conflicts are not recorded.
    """
    tile = propagator.tile_seeds if quick else propagator.tile_nodes
    found = list(_fused(propagator.graph, seeds))
    parts = tile(tiling, [each.part for each in found], axis, roles)
    if not all(computed := [_is_computed(propagator, parts, each) for each in found]):
        # Where parts are only stored so, as by FSDP, they would be exchanged for nothing.
        found = [each for each, used in zip(found, computed, strict=True) if used]
        parts = tile(tiling, [each.part for each in found], axis, roles)
    whole = tile(parts.tiling, seeds, axis, roles)
    if not found:
        return whole
    beside = [_beside(propagator, whole.tiling, each, axis) for each in found]
    nodes = [node for node in beside if node is not None]
    exchanged = tile(whole.tiling, nodes, axis, roles)
    return _together(propagator, axis, parts, whole, exchanged)


def _together(propagator: Propagator, axis: int, *each: Propagation) -> Propagation:
    """Joins propagations made one after the other; drops stops at nodes that another one took."""
    tiling = each[-1].tiling
    return Propagation(
        tiling,
        {op: factor for one in each for op, factor in one.ops.items()},
        {value: dim for one in each for value, dim in one.values.items()},
        tuple(
            stop
            for one in each[:-1]
            for stop in one.stops
            if not uses_axis(propagator.layout(tiling, stop.node), axis)
        ),
        frozenset().union(*(one.unresolved for one in each)),
        frozenset().union(*(one.resolved for one in each)),
    )


def holds_parts(graph: ClassGraph, value: int, dim: int) -> bool:
    """Returns whether a dimension holds several parts that are used one by one."""
    return any(_fused(graph, [("value", value, dim)]))


@dataclasses.dataclass(frozen=True)
class _Fused:
    """A reshape between a dimension and its parts."""

    op: OpClass
    part: Node
    """The dimension along which each of the parts can be sharded."""
    factors: tuple[int, ...]
    """Factors of the fused dimension."""


def _fused(graph: ClassGraph, seeds: Sequence[Node]) -> Iterator[_Fused]:
    """Yields the reshapes of all dimensions that have the color of one of these."""
    colors = {graph.values[value].colors[dim] for _, value, dim in seeds}
    for op in graph.ops:
        if not op.op.takes_apart:
            continue
        rule = op.op.rule
        sides = ((rule.operands[0], op.operands[0][0]), (rule.results[0], op.results[0][0]))
        for (flat, value), (apart, other) in (sides, sides[::-1]):
            for dim, factors in enumerate(flat):
                if len(factors) > 1 and graph.values[value].colors[dim] in colors:
                    part = next(d for d, f in enumerate(apart) if factors[-1] in f)
                    yield _Fused(op, ("value", other, part), factors)


def _is_computed(propagator: Propagator, propagation: Propagation, fused: _Fused) -> bool:
    """Returns whether an operation that uses or makes the parts is split as they are."""
    around = propagator.neighbours[fused.part]
    return any(
        kind == "op" and index != fused.op.index and propagation.ops.get(index) == factor
        for kind, index, factor in around
    )


def _beside(propagator: Propagator, tiling: Tiling, fused: _Fused, axis: int) -> Node | None:
    """Returns a factor of another dimension along which the reshape can be split, or None."""
    for factor, each in enumerate(fused.op.op.rule.factors):
        node: Node = ("op", fused.op.index, factor)
        other = factor not in fused.factors and each.kind == "parallel" and each.size > 1
        if other and propagator.refusal(tiling, node, axis) is None:
            return node
    return None
