"""Named dimension analysis: every dimension gets a name, names that must go together a color.

Names are the dimensions of value definitions and the factors of operations. Two relations join them
(TOAST, "named dimension analysis"): *identity*, inside one operation, all dimensions mapped to one
factor; and *flow*, a use is its definition. A color is a connected component. Sharding a whole
color on one axis never needs a reshard, unless some operation or value holds it twice.

Dimensions of size one, the words of random keys and blocked factors carry no shards and have no
color (-1). Neither have dimensions whose sharding the program itself prescribes: a color ends
there.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import numpy as np

from partita.program.ir import Program
from partita.program.rule import Rule


@dataclasses.dataclass(frozen=True)
class Names:
    """The name graph of a program. Nodes are numbered: all value dimensions, then all factors."""

    program: Program
    value_base: list[int]
    """First node of every value's dimensions; one more entry at the end."""
    factor_base: list[int]
    """First node of every operation's factors; one more entry at the end."""
    edges: np.ndarray
    """`[E, 2]` pairs of joined nodes."""
    color: np.ndarray
    """Color of every node, -1 where it has none."""
    colors: int
    """Number of colors."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.factor_base[-1]

    def dim_colors(self, value: int) -> list[int]:
        """Returns the color of every dimension of a value."""
        row: list[int] = self.color[self.value_base[value] : self.value_base[value + 1]].tolist()
        return row

    def factor_colors(self, operation: int) -> list[int]:
        """Returns the color of every factor of an operation."""
        base = self.factor_base
        row: list[int] = self.color[base[operation] : base[operation + 1]].tolist()
        return row


def analyse_names(program: Program) -> Names:
    """Names and colors of a program. Time is linear in the number of operations."""
    value_base = list(accumulate((len(v.type.shape) for v in program.values), initial=0))
    factor_base = list(
        accumulate((len(op.rule.factors) for op in program.operations), initial=value_base[-1])
    )
    carries = np.zeros(factor_base[-1], bool)
    sizes = [size for value in program.values for size in value.type.shape]
    carries[: value_base[-1]] = np.array(sizes, dtype=np.int64) > 1
    carries[[value_base[key + 1] - 1 for key in program.keys]] = False
    carries[[value_base[value] + dim for value, dim in program.closed]] = False
    pairs: list[tuple[int, int]] = []
    links: dict[Rule, _Links] = {}
    for op in program.operations:
        rule = links.get(op.rule)
        if rule is None:
            rule = links[op.rule] = _links(op.rule)
        base = factor_base[op.index]
        for factor in rule.shardable:
            carries[base + factor] = True
        for number, dim, factor in rule.operands:
            pairs.append((value_base[op.operands[number]] + dim, base + factor))
        for number, dim, factor in rule.results:
            pairs.append((value_base[op.results[number]] + dim, base + factor))
    for argument, result in program.aliases.items():
        # A result that takes over an argument's buffer must have its layout.
        a, r = program.arguments[argument], program.results[result]
        for dim in range(len(program.values[a].type.shape)):
            pairs.append((value_base[a] + dim, value_base[r] + dim))
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    edges = edges[carries[edges].all(axis=1)]
    count, color = components(len(carries), edges, carries)
    return Names(program, value_base, factor_base, edges, color, count)


@dataclasses.dataclass(frozen=True)
class _Links:
    """The (tensor number, dimension, factor) triples of a rule that can carry shards."""

    shardable: tuple[int, ...]
    operands: tuple[tuple[int, int, int], ...]
    results: tuple[tuple[int, int, int], ...]


def _links(rule: Rule) -> _Links:
    open_ = ("parallel", "reduction")
    shardable = tuple(i for i, f in enumerate(rule.factors) if f.kind in open_ and f.size > 1)

    def triples(
        tensors: tuple[tuple[tuple[int, ...], ...], ...],
    ) -> tuple[tuple[int, int, int], ...]:
        return tuple(
            (number, dim, leading)
            for number, tensor in enumerate(tensors)
            for dim, made_of in enumerate(tensor)
            if (leading := rule.leading(made_of)) in shardable and leading is not None
        )

    return _Links(shardable, triples(rule.operands), triples(rule.results))


def components(nodes: int, edges: np.ndarray, member: np.ndarray) -> tuple[int, np.ndarray]:
    """Numbers connected components among the `member` nodes by first node; others get -1."""
    from scipy.sparse import coo_array  # here, since importing partita should take no time for it
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(edges), dtype=np.int8)
    graph = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    _, raw = connected_components(graph, directed=False)
    labels = np.full(nodes, -1, dtype=np.int64)
    kept, first, inverse = np.unique(raw[member], return_index=True, return_inverse=True)
    rank = np.empty(len(kept), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(kept))
    labels[member] = rank[inverse]
    return len(kept), labels
