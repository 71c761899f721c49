"""`tile`: propagates an axis from seeds along identity and flow, and stops where it must.

An operation takes the axis on a factor, a value on a dimension, only if it does not use the axis
already, the size divides, and no conflict speaks against it. Earlier tilings stay: that is how
strategies compose, and why order matters.

Two forms of the same thing: `tile_nodes` starts from named dimensions and propagates step by step,
`tile_color` takes a whole color group at once (every operation of it is a seed).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property

from partita.analysis import ClassGraph, OpClass, ValueClass
from partita.mesh import Mesh
from partita.tiling.tiling import Axes, Layout, Tiling, uses_axis

Node = tuple[str, int, int]
"""`("op", operation class, factor)` or `("value", value class, dimension)`."""

Resolution = Mapping[int, int]
"""For each group of conflict sets, the role group that gets the axis."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where propagation stopped, and why."""

    node: Node
    reason: str
    divides: bool
    """False when the size is what stands in the way."""


@dataclasses.dataclass(frozen=True)
class Propagation:
    """Outcome of one tile action."""

    tiling: Tiling
    ops: dict[int, int]
    """The operation classes that have taken the axis, and on which factor."""
    values: dict[int, int]
    """The value classes that have taken the axis, and on which dimension."""
    stops: tuple[Stop, ...] = ()
    unresolved: frozenset[int] = frozenset()
    """Groups of conflict sets that were met and for which no role was chosen."""
    resolved: frozenset[int] = frozenset()
    """Groups of conflict sets that were met and of which a role was chosen."""

    @property
    def taken(self) -> frozenset[Node]:
        """The nodes that have taken the axis."""
        ops: list[Node] = [("op", i, f) for i, f in self.ops.items()]
        return frozenset([*ops, *(("value", v, d) for v, d in self.values.items())])


@dataclasses.dataclass(frozen=True, slots=True)
class _ValueRow:
    """A value dimension of a color, with the operation nodes and values joined to it."""

    value: int
    dim: int
    size: int
    argument: bool
    ops: tuple[int, ...]
    """Operation nodes, each as `_code(class, factor)`."""
    partners: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _ColorRows:
    """The nodes of a color group; operations as (class, factor, size, fewest of a piece)."""

    ops: list[tuple[int, int, int, int]]
    values: list[_ValueRow]


class Propagator:
    """Applies tile actions to tilings of one class graph over one mesh."""

    def __init__(
        self, graph: ClassGraph, mesh: Mesh, conflict_groups: tuple[tuple[int, ...], ...]
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self._candidates: dict[tuple[int, int, frozenset[int]], _ColorRows] = {}
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
                        if factor is None or not self._carries(op, factor):
                            continue
                        for source in sources:
                            value = self.graph.values[source]
                            if value.colors[dim] >= 0 or self._closed(value, dim):
                                join(("op", op.index, factor), ("value", source, dim))
        for value in self.graph.values:
            for partner in value.aliases:
                if partner > value.index:
                    for dim, color in enumerate(value.colors):
                        if color >= 0:
                            join(("value", value.index, dim), ("value", partner, dim))
        return joined

    def _carries(self, op: OpClass, factor: int) -> bool:
        """Whether a factor can be split, or is split as the program says."""
        return op.colors[factor] >= 0 or op.op.rule.factors[factor].kind == "given"

    def _closed(self, value: ValueClass, dim: int) -> bool:
        """Whether a dimension of a value is split as the program says, and not otherwise."""
        return (value.value.index, dim) in self.graph.program.closed

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
        if given := self._given(node):
            return f"{given} says how it is split", True
        if uses_axis(layout, axis):
            return f"{name} is already used there", True
        if node[0] == "value" and (node[1], axis) in tiling.pins:
            return f"it is kept whole along {name}", True
        if node[0] == "value" and size > 1 and self.graph.values[node[1]].colors[node[2]] < 0:
            return "the words of a random key stay together", True
        here = layout[node[2]]
        if size % (self.mesh.size(here) * self.mesh.sizes[axis]):
            axes = " x ".join(f"{self.mesh.names[a]}={self.mesh.sizes[a]}" for a in (*here, axis))
            return f"{size} is not divisible by {axes}{self._made_of(node)}", False
        piece = size // (self.mesh.size(here) * self.mesh.sizes[axis])
        if node[0] == "op" and piece < self.graph.ops[node[1]].op.rule.factors[node[2]].least:
            return f"pieces of {piece} are narrower than what their neighbours need of them", False
        return None

    def _given(self, node: Node) -> str:
        """The operation that says how a node is split, if one does."""
        kind, index, place = node
        ops = self.graph.ops
        if kind == "op":
            op = ops[index].op if ops[index].op.rule.factors[place].kind == "given" else None
        else:
            value = self.graph.values[index]
            closed = value.producer is not None and self._closed(value, place)
            op = ops[value.producer[0]].op if closed and value.producer else None
        return "" if op is None else f"{op.title} at {op.source}" if op.source else op.title

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
        self,
        tiling: Tiling,
        seeds: Iterable[Node],
        axis: int,
        resolution: Resolution,
        inside: Axes | None = None,
    ) -> Propagation:
        """Propagates `axis` from `seeds` as far as it goes.

        With `inside`, only to where these axes, and no others, split already.
        """
        reached: set[Node] = set()
        stops: dict[Node, Stop] = {}
        unresolved: set[int] = set()
        resolved: set[int] = set()
        queue = list(dict.fromkeys(seeds))
        while queue:
            node = queue.pop()
            if node in reached or node in stops:
                continue
            refused = self.refusal(tiling, node, axis)
            if refused is None and inside not in (None, self.layout(tiling, node)[node[2]]):
                refused = "other axes split it already", True
            if refused:
                stops[node] = Stop(node, *refused)
                continue
            if (role := self.role(node)) >= 0:
                conflict = self.conflict_of[role]
                if conflict not in resolution:
                    unresolved.add(conflict)
                    continue
                resolved.add(conflict)
                if resolution[conflict] != role:
                    continue
            reached.add(node)
            queue.extend(self.neighbours.get(node, ()))
        propagation = self._propagate(tiling, reached, axis)
        return dataclasses.replace(
            propagation,
            stops=tuple(stops.values()),
            unresolved=frozenset(unresolved),
            resolved=frozenset(resolved),
        )

    def tile_color(
        self, tiling: Tiling, color: int, axis: int, resolution: Resolution
    ) -> Propagation:
        """Tiles every operation of a color group that can take the axis, and values with them.

        A value goes along if an operation next to it does, or if it is an argument.
        """
        rows = self._rows(color, axis, frozenset(resolution.values()))
        ops: dict[int, int] = {}
        for index, factor, size, least in rows.ops:
            layout = tiling.ops[index]
            if not any(layout) or self._open(layout, factor, size, axis, least):
                ops.setdefault(index, factor)
        codes = {_code(index, factor) for index, factor in ops.items()}
        values: dict[int, int] = {}
        alone = []
        for row in rows.values:
            if tiling.pins and (row.value, axis) in tiling.pins:
                continue
            layout = tiling.values[row.value]
            if not any(layout) or self._open(layout, row.dim, row.size, axis):
                if row.argument or not codes.isdisjoint(row.ops):
                    values.setdefault(row.value, row.dim)
                elif row.partners:
                    alone.append(row)
        for row in alone:
            if any(values.get(partner) == row.dim for partner in row.partners):
                values.setdefault(row.value, row.dim)
        return Propagation(self._commit(tiling, ops, values, axis), ops, values)

    def _open(self, layout: Layout, place: int, size: int, axis: int, least: int = 1) -> bool:
        """Whether a layout has room for an axis at a place of this size."""
        for axes in layout:
            if axis in axes:
                return False
        here = layout[place]
        if not here:
            return True
        parts = self.mesh.size(here) * self.mesh.sizes[axis]
        return size % parts == 0 and size // parts >= least

    def _rows(self, color: int, axis: int, chosen: frozenset[int]) -> _ColorRows:
        """The nodes of a color that an axis divides and that no conflict keeps it from."""
        key = (color, axis, chosen)
        if key not in self._candidates:
            every, parts = self._color_rows[color], self.mesh.sizes[axis]
            self._candidates[key] = _ColorRows(
                [
                    (index, factor, size, least)
                    for index, factor, size, least in every.ops
                    if size % parts == 0
                    and size // parts >= least
                    and self._chosen(self.graph.ops[index].roles[factor], chosen)
                ],
                [
                    row
                    for row in every.values
                    if row.size % parts == 0
                    and self._chosen(self.graph.values[row.value].roles[row.dim], chosen)
                ],
            )
        return self._candidates[key]

    def _chosen(self, role: int, chosen: frozenset[int]) -> bool:
        return role < 0 or role in chosen

    @cached_property
    def _color_rows(self) -> dict[int, _ColorRows]:
        rows: dict[int, _ColorRows] = {}
        for op in self.graph.ops:
            for factor, color in enumerate(op.colors):
                if color >= 0:
                    made = op.op.rule.factors[factor]
                    row = (op.index, factor, made.size, made.least)
                    rows.setdefault(color, _ColorRows([], [])).ops.append(row)
        for value in self.graph.values:
            for dim, color in enumerate(value.colors):
                if color >= 0:
                    near = self.neighbours.get(("value", value.index, dim), [])
                    rows.setdefault(color, _ColorRows([], [])).values.append(
                        _ValueRow(
                            value.index,
                            dim,
                            value.value.type.shape[dim],
                            value.producer is None,
                            tuple({_code(i, p): None for kind, i, p in near if kind == "op"}),
                            tuple(i for kind, i, _ in near if kind == "value"),
                        )
                    )
        return rows

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

    def restrict(self, tiling: Tiling, taken: Iterable[Node], axis: int) -> Propagation:
        """The action by which just these nodes take the axis, where they still can."""
        return self._propagate(
            tiling, (n for n in taken if self.refusal(tiling, n, axis) is None), axis
        )

    def _propagate(self, tiling: Tiling, nodes: Iterable[Node], axis: int) -> Propagation:
        """Takes the axis on these nodes, at most one of each operation and value."""
        ops: dict[int, int] = {}
        values: dict[int, int] = {}
        for kind, index, place in sorted(nodes):
            (ops if kind == "op" else values).setdefault(index, place)
        tiled = self._commit(tiling, ops, values, axis)
        return Propagation(tiled, ops, values)

    def _commit(
        self, tiling: Tiling, ops: dict[int, int], values: dict[int, int], axis: int
    ) -> Tiling:
        if not ops and not values:
            return tiling
        rows = list(tiling.ops), list(tiling.values)
        for row, places in zip(rows, (ops, values), strict=True):
            for index, place in places.items():
                layout = row[index]
                row[index] = (*layout[:place], (*layout[place], axis), *layout[place + 1 :])
        return Tiling(tuple(rows[0]), tuple(rows[1]), tiling.pins)


def _code(index: int, factor: int) -> int:
    """An operation node as one number."""
    return index * 256 + factor
