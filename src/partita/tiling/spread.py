"""`tile`: spreads an axis from seeds along identity and flow, and stops where it must.

An operation takes the axis on a factor, a value on a dimension, only if it does not use the axis
already, the size divides, and no conflict speaks against it. Earlier tilings stay: that is how
strategies compose, and why order matters.

Two forms of the same thing: `tile_nodes` starts from named dimensions and spreads step by step,
`tile_color` takes a whole color group at once (every operation of it is a seed).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property

from partita.analysis import ClassGraph
from partita.mesh import Mesh
from partita.tiling.tiling import Layout, Tiling, uses_axis

Node = tuple[str, int, int]
"""`("op", operation class, factor)` or `("value", value class, dimension)`."""

Resolution = Mapping[int, int]
"""For each group of conflict sets, the role group that gets the axis."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where spreading stopped, and why."""

    node: Node
    reason: str
    divides: bool
    """False when the size is what stands in the way."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Outcome of one tile action."""

    tiling: Tiling
    taken: frozenset[Node]
    stops: tuple[Stop, ...] = ()
    unresolved: frozenset[int] = frozenset()
    """Groups of conflict sets that were met and for which no role was chosen."""


class Spreader:
    """Applies tile actions to tilings of one class graph over one mesh."""

    def __init__(
        self, graph: ClassGraph, mesh: Mesh, conflict_groups: tuple[tuple[int, ...], ...]
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.conflict_of = {
            role: number for number, roles in enumerate(conflict_groups) for role in roles
        }

    @cached_property
    def neighbours(self) -> dict[Node, list[Node]]:
        """Nodes joined by identity (inside an operation) or flow (from definition to use)."""
        joined: dict[Node, list[Node]] = {}

        def join(a: Node, b: Node) -> None:
            joined.setdefault(a, []).append(b)
            joined.setdefault(b, []).append(a)

        for op in self.graph.ops:
            rule = op.op.rule
            sides = ((rule.operands, op.operands), (rule.results, op.results))
            for mappings, classes in sides:
                for tensor, sources in zip(mappings, classes, strict=True):
                    for dim, made_of in enumerate(tensor):
                        factor = rule.leading(made_of)
                        if factor is None or op.colors[factor] < 0:
                            continue
                        for source in sources:
                            if self.graph.values[source].colors[dim] >= 0:
                                join(("op", op.index, factor), ("value", source, dim))
        for value in self.graph.values:
            for partner in value.aliases:
                if partner > value.index:
                    for dim, color in enumerate(value.colors):
                        if color >= 0:
                            join(("value", value.index, dim), ("value", partner, dim))
        return joined

    @cached_property
    def nodes_of_color(self) -> dict[int, tuple[list[Node], list[Node]]]:
        """For every color group, its operation nodes and its value nodes."""
        found: dict[int, tuple[list[Node], list[Node]]] = {}
        for op in self.graph.ops:
            for factor, color in enumerate(op.colors):
                if color >= 0:
                    found.setdefault(color, ([], []))[0].append(("op", op.index, factor))
        for value in self.graph.values:
            for dim, color in enumerate(value.colors):
                if color >= 0:
                    found.setdefault(color, ([], []))[1].append(("value", value.index, dim))
        return found

    def layout(self, tiling: Tiling, node: Node) -> Layout:
        """Layout of the operation or value that a node belongs to."""
        return tiling.ops[node[1]] if node[0] == "op" else tiling.values[node[1]]

    def size(self, node: Node) -> int:
        """Number of indices along a node."""
        kind, index, place = node
        if kind == "op":
            return self.graph.ops[index].op.rule.factors[place].size
        return self.graph.values[index].value.type.shape[place]

    def role(self, node: Node) -> int:
        """Role group of a node, -1 outside conflicts."""
        kind, index, place = node
        owner = self.graph.ops[index] if kind == "op" else self.graph.values[index]
        return owner.roles[place]

    def refusal(self, tiling: Tiling, node: Node, axis: int) -> tuple[str, bool] | None:
        """Why a node cannot take an axis, and whether the size divides; None if it can."""
        layout = self.layout(tiling, node)
        name, size = self.mesh.names[axis], self.size(node)
        if uses_axis(layout, axis):
            return f"{name} is already used there", True
        if node[0] == "value" and (node[1], axis) in tiling.pins:
            return f"it is kept whole along {name}", True
        here = layout[node[2]]
        if size % (self.mesh.size(here) * self.mesh.sizes[axis]):
            axes = " x ".join(
                f"{self.mesh.names[a]}={self.mesh.sizes[a]}" for a in (*here, axis)
            )
            return f"{size} is not divisible by {axes}{self._made_of(node)}", False
        return None

    def _made_of(self, node: Node) -> str:
        """For a factor of a composite dimension, the factors that the dimension is made of."""
        if node[0] != "op":
            return ""
        rule = self.graph.ops[node[1]].op.rule
        for tensor in (*rule.operands, *rule.results):
            for dimension in tensor:
                if len(dimension) > 1 and rule.leading(dimension) == node[2]:
                    sizes = [rule.factors[f].size for f in dimension]
                    whole = 1
                    for size in sizes:
                        whole *= size
                    made = " x ".join(map(str, sizes))
                    return f" (the dimension of {whole} is made of {made}, major first)"
        return ""

    def tile_nodes(
        self, tiling: Tiling, seeds: Iterable[Node], axis: int, resolution: Resolution
    ) -> Spread:
        """Spreads `axis` from `seeds` as far as it goes."""
        reached: set[Node] = set()
        stops: dict[Node, Stop] = {}
        unresolved: set[int] = set()
        queue = list(dict.fromkeys(seeds))
        while queue:
            node = queue.pop()
            if node in reached or node in stops:
                continue
            if refused := self.refusal(tiling, node, axis):
                stops[node] = Stop(node, *refused)
                continue
            if (role := self.role(node)) >= 0:
                conflict = self.conflict_of[role]
                if conflict not in resolution:
                    unresolved.add(conflict)
                    continue
                if resolution[conflict] != role:
                    continue
            reached.add(node)
            queue.extend(self.neighbours.get(node, ()))
        taken = _one_per_owner(reached)
        return Spread(
            self._commit(tiling, taken, axis), taken, tuple(stops.values()), frozenset(unresolved)
        )

    def tile_color(
        self, tiling: Tiling, color: int, axis: int, resolution: Resolution
    ) -> Spread:
        """Tiles every operation of a color group that can take the axis, and values with them.

        A value goes along if an operation next to it does, or if it is an argument.
        """
        op_nodes, value_nodes = self.nodes_of_color[color]
        chosen = frozenset(resolution.values())
        ops = _one_per_owner(n for n in op_nodes if self._can(tiling, n, axis, chosen))
        able = [n for n in value_nodes if self._can(tiling, n, axis, chosen)]
        neighbours, values = self.neighbours, self.graph.values
        joined = {
            n
            for n in able
            if values[n[1]].producer is None
            or any(other in ops for other in neighbours.get(n, ()))
        }
        joined.update(
            n for n in able if n not in joined and any(o in joined for o in neighbours.get(n, ()))
        )
        taken = ops | _one_per_owner(joined)
        return Spread(self._commit(tiling, taken, axis), taken)

    def _can(self, tiling: Tiling, node: Node, axis: int, chosen: frozenset[int]) -> bool:
        kind, index, place = node
        if kind == "op":
            layout, owner = tiling.ops[index], self.graph.ops[index]
            size = owner.op.rule.factors[place].size
            role = owner.roles[place]
        else:
            if (index, axis) in tiling.pins:
                return False
            layout, value = tiling.values[index], self.graph.values[index]
            size = value.value.type.shape[place]
            role = value.roles[place]
        if role >= 0 and role not in chosen:
            return False
        parts = self.mesh.sizes[axis]
        for axes in layout:
            if axis in axes:
                return False
        for a in layout[place]:
            parts *= self.mesh.sizes[a]
        return size % parts == 0

    def parts(self, taken: frozenset[Node]) -> list[frozenset[Node]]:
        """The connected parts of what an action took, in a fixed order."""
        left, found = set(taken), []
        for start in sorted(taken):
            if start not in left:
                continue
            left.discard(start)
            part, queue = {start}, [start]
            while queue:
                for other in self.neighbours.get(queue.pop(), ()):
                    if other in left:
                        left.discard(other)
                        part.add(other)
                        queue.append(other)
            found.append(frozenset(part))
        return found

    def commit(self, tiling: Tiling, taken: frozenset[Node], axis: int) -> Tiling:
        """The tiling in which these nodes have taken the axis, where they still can."""
        able = frozenset(n for n in taken if self.refusal(tiling, n, axis) is None)
        return self._commit(tiling, able, axis)

    def _commit(self, tiling: Tiling, taken: frozenset[Node], axis: int) -> Tiling:
        if not taken:
            return tiling
        ops, values = list(tiling.ops), list(tiling.values)
        for kind, index, place in taken:
            row = ops if kind == "op" else values
            layout = row[index]
            row[index] = (*layout[:place], (*layout[place], axis), *layout[place + 1 :])
        return Tiling(tuple(ops), tuple(values), tiling.pins)


def _one_per_owner(nodes: Iterable[Node]) -> frozenset[Node]:
    """Of several nodes of one operation or value the first: an axis is used once in each."""
    first: dict[tuple[str, int], Node] = {}
    for node in nodes:
        key = node[:2]
        if key not in first or node < first[key]:
            first[key] = node
    return frozenset(first.values())
