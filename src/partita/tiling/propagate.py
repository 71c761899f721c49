"""Propagation: an axis spreads along identity and flow from where an action puts it.

An operation takes the axis on a factor, a value on a dimension, on three conditions. It does not
use the axis already, the size divides, and no conflict is resolved in favour of another role.
Earlier tilings stay: that is how strategies compose, and why order matters.

There is one algorithm, `reached`: from some nodes on to their neighbours, as long as those can
take the axis. Actions differ in where they start. `tile_nodes` starts from named dimensions, and
records where it stopped, and why. `tile_color` starts from every operation and argument of a color
group. A search does that thousands of times, so the nodes are numbered, and most of the test of
whether one can take the axis is done beforehand.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from functools import cached_property

from partita.analysis import ClassGraph, OpClass, ValueClass
from partita.mesh import Axes, Layout, Mesh
from partita.tiling.candidates import Candidate, Candidates, Places, Rooms, reached
from partita.tiling.tiling import Pinned, Tiling, uses_axis

Node = tuple[str, int, int]
"""`("op", operation class, factor)` or `("value", value class, dimension)`."""

Resolution = Mapping[int, int]
"""Map from each group of conflict sets to the role group that gets the axis."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """A node where propagation stopped, and why."""

    node: Node
    reason: str
    divides: bool
    """False if it stopped because the size does not divide, or shards would be too narrow."""


@dataclasses.dataclass(frozen=True)
class Propagation:
    """Outcome of one tile action."""

    tiling: Tiling
    ops: dict[int, int]
    """Operation classes that have taken the axis -> factor."""
    values: dict[int, int]
    """Value classes that have taken the axis -> dimension."""
    stops: tuple[Stop, ...] = ()
    unresolved: frozenset[int] = frozenset()
    """Groups of conflict sets that were met and for which no role was chosen."""
    resolved: frozenset[int] = frozenset()
    """Groups of conflict sets that were met and of which a role was chosen."""
    places: Places | None = dataclasses.field(default=None, repr=False, compare=False)
    """The same operation and value classes, if a propagator remembers them as one."""

    @property
    def taken(self) -> frozenset[Node]:
        """The nodes that have taken the axis."""
        ops: list[Node] = [("op", i, f) for i, f in self.ops.items()]
        return frozenset([*ops, *(("value", v, d) for v, d in self.values.items())])


class Propagator:
    """Applies tile actions to tilings of one class graph over one mesh."""

    def __init__(
        self, graph: ClassGraph, mesh: Mesh, conflict_groups: tuple[tuple[int, ...], ...]
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self._known: dict[tuple[int, int, frozenset[int]], Candidates] = {}
        self._rooms: dict[int, Rooms] = {}
        self._seeded: dict[object, tuple[dict[Node, int], Candidates]] = {}
        """Cache: seed component, axis, resolution -> (node numbering, candidates)."""
        self._parts: dict[object, list[frozenset[Node]]] = {}
        self._some: dict[object, Places] = {}
        self._sharing: dict[int, list[int]] = {}
        self._joined: dict[tuple[int, ...], Places] = {}
        """Cache: identities of several `Places` -> their union."""
        self._refusals: dict[tuple[Layout, Node, int, bool], tuple[str, bool] | None] = {}
        """Cache: layout, node, axis, whether pinned -> why the node cannot take the axis."""
        self.moved: dict[Pinned, dict[tuple[int, int, int, int], int]] = {}
        """Cache of layouts after decisions on classes, by pinned values; see `take_each`."""
        self.conflict_of = {
            role: number for number, roles in enumerate(conflict_groups) for role in roles
        }

    @cached_property
    def neighbours(self) -> defaultdict[Node, list[Node]]:
        """Neighbours of nodes, by identity (inside an operation) or flow (definition to use)."""
        joined: defaultdict[Node, list[Node]] = defaultdict(list)

        def join(a: Node, b: Node) -> None:
            joined[a].append(b)
            joined[b].append(a)

        for op in self.graph.ops:
            rule = op.op.rule
            sides = ((rule.operands, op.operands), (rule.results, op.results))
            for mappings, classes in sides:
                for tensor, sources in zip(mappings, classes, strict=True):
                    for dim, made_of in enumerate(tensor):
                        *given, factor = rule.carriers(made_of) or (None,)
                        if factor is None or not self._carries(op, factor):
                            continue
                        for source in sources:
                            value = self.graph.values[source]
                            if value.colors[dim] >= 0 or self._closed(value, dim):
                                join(("op", op.index, factor), ("value", source, dim))
                                for each in given:  # axes leave from there, none gets there
                                    joined["op", op.index, each].append(("value", source, dim))
        for value in self.graph.values:
            for partner in value.aliases:
                if partner > value.index:
                    for dim, color in enumerate(value.colors):
                        if color >= 0:
                            join(("value", value.index, dim), ("value", partner, dim))
        return joined

    def _carries(self, op: OpClass, factor: int) -> bool:
        """Returns whether a factor can be split, or its split is fixed by the program."""
        return op.colors[factor] >= 0 or op.op.rule.factors[factor].kind == "given"

    def _closed(self, value: ValueClass, dim: int) -> bool:
        """Returns whether the split of a dimension of a value is fixed by the program."""
        return (value.value.index, dim) in self.graph.program.closed

    @cached_property
    def _nodes_of(self) -> dict[Node, list[Node]]:
        """The connected components of all nodes, ignoring directions, by their first nodes."""
        both: dict[Node, list[Node]] = {node: [] for node in self.neighbours}
        for node, others in self.neighbours.items():
            both[node] += others
            for other in others:
                both.setdefault(other, []).append(node)
        found: dict[Node, list[Node]] = {}
        known: set[Node] = set()
        for node in both:
            if node not in known:
                found[node] = sorted(reached([node], lambda _: True, both))
                known.update(found[node])
        return found

    @cached_property
    def _parts_of(self) -> dict[Node, Node]:
        """The first node of each node's connected component."""
        return {node: part for part, nodes in self._nodes_of.items() for node in nodes}

    def sharing(self, index: int) -> list[int]:
        """Returns the value classes that share buffers with one, itself included."""
        if index not in self._sharing:
            found = self._sharing[index] = [index]
            for each in found:
                found += [v for v in self.graph.values[each].aliases if v not in found]
        return self._sharing[index]

    def layout(self, tiling: Tiling, node: Node) -> Layout:
        """Returns the layout of the operation or value that a node belongs to."""
        return tiling.ops[node[1]] if node[0] == "op" else tiling.values[node[1]]

    def size(self, node: Node) -> int:
        """Returns the number of indices along a node."""
        kind, index, place = node
        if kind == "op":
            return self.graph.ops[index].op.rule.factors[place].size
        return self.graph.values[index].value.type.shape[place]

    def role(self, node: Node) -> int:
        """Returns the role group of a node, -1 outside conflicts."""
        kind, index, place = node
        owner = self.graph.ops[index] if kind == "op" else self.graph.values[index]
        return owner.roles[place]

    def refusal(self, tiling: Tiling, node: Node, axis: int) -> tuple[str, bool] | None:
        """Returns why a node cannot take an axis, and whether the size divides; None if it can."""
        return self.refused(self.layout(tiling, node), node, axis, tiling.pinned)

    def refused(
        self, layout: Layout, node: Node, axis: int, pinned: Pinned
    ) -> tuple[str, bool] | None:
        """Returns the same, given the layout of the operation or value, and the pinned values."""
        key = layout, node, axis, node[0] == "value" and (node[1], axis) in pinned
        if key not in self._refusals:
            self._refusals[key] = self._refused(*key)
        return self._refusals[key]

    def _refused(
        self, layout: Layout, node: Node, axis: int, pinned: bool
    ) -> tuple[str, bool] | None:
        name, size = self.mesh.names[axis], self.size(node)
        if given := self.given(node):
            return f"{given} says how it is split", True
        if uses_axis(layout, axis):
            return f"{name} is already used there", True
        if pinned:
            return f"it is pinned along {name}", True
        if node[0] == "value" and size > 1 and self.graph.values[node[1]].colors[node[2]] < 0:
            return "the words of a random key stay together", True
        here = layout[node[2]]
        if size % (self.mesh.size(here) * self.mesh.sizes[axis]):
            axes = " x ".join(f"{self.mesh.names[a]}={self.mesh.sizes[a]}" for a in (*here, axis))
            return f"{size} is not divisible by {axes}{self._made_of(node)}", False
        shard = size // (self.mesh.size(here) * self.mesh.sizes[axis])
        if node[0] == "op" and shard < self.graph.ops[node[1]].op.rule.factors[node[2]].least:
            return f"shards of {shard} are narrower than the halo that their neighbours need", False
        return None

    def given(self, node: Node) -> str:
        """Returns the operation that fixes how a node is split, in words; empty if none does."""
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
        """Returns the factors of the composite dimension that a factor leads, in words."""
        if node[0] != "op":
            return ""
        rule = self.graph.ops[node[1]].op.rule
        for tensor in (*rule.operands, *rule.results):
            for dimension in tensor:
                if len(dimension) > 1 and rule.leading(dimension) == node[2]:
                    sizes = [rule.factors[f].size for f in dimension]
                    made = " x ".join(map(str, sizes))
                    return f" (the dimension of {math.prod(sizes)} is made of {made}, major first)"
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

        With `inside`, it takes only factors and dimensions that exactly these axes split already.
        """
        stops: dict[Node, Stop] = {}
        unresolved: set[int] = set()
        resolved: set[int] = set()

        def can_take(node: Node) -> bool:
            if node in stops:
                return False
            refused = self.refusal(tiling, node, axis)
            if refused is None and inside not in (None, self.layout(tiling, node)[node[2]]):
                refused = "other axes split it already", True
            if refused:
                stops[node] = Stop(node, *refused)
                return False
            role = self.role(node)
            if role < 0:
                return True
            conflict = self.conflict_of[role]
            (resolved if conflict in resolution else unresolved).add(conflict)
            return resolution.get(conflict) == role

        taken = sorted(reached(dict.fromkeys(seeds), can_take, self.neighbours))
        propagation = self._taken(tiling, self._places(taken), axis)
        return dataclasses.replace(
            propagation,
            stops=tuple(stops.values()),
            unresolved=frozenset(unresolved),
            resolved=frozenset(resolved),
        )

    def some(
        self,
        tiling: Tiling,
        propagation: Propagation,
        axis: int,
        without: Container[int],
        sums: bool,
    ) -> Propagation:
        """Returns a propagation that takes only some parts of what another takes.

        Args:
          tiling: the tiling that it started from.
          propagation: the propagation of one color group, or of all.
          axis: the axis that it propagated.
          without: the numbers of the parts to leave out, see `parts`.
          sums: whether operations that sum over the axis take it.
        """
        key = (_key(propagation), sums, without)
        if key not in self._some:
            parts = enumerate(self.parts(propagation, sums))
            taken = (node for number, part in parts if number not in without for node in part)
            self._some[key] = self._places(sorted(node for node in taken if not self.given(node)))
        return self._taken(tiling, self._some[key], axis)

    def tile_every(self, tiling: Tiling, axis: int, chosen: frozenset[int]) -> Propagation:
        """Propagates an axis from every color group, those with more data first.

        Args:
          tiling: the tiling to start from.
          axis: the axis to propagate.
          chosen: the roles that get the axis in conflicts.
        """
        found: list[Places] = []
        for color in self.heaviest_first:
            places = self._candidates(color, axis, chosen).reached(tiling)
            if len(places.row):
                tiling = tiling.split(places.row, places.place, axis)
                found.append(places)
        key = tuple(map(id, found))
        if key not in self._joined:
            ops = {index: factor for each in found for index, factor in each.ops.items()}
            values = {index: dim for each in found for index, dim in each.values.items()}
            self._joined[key] = Places(ops, values, len(self.graph.ops))
        joined = self._joined[key]
        return Propagation(tiling, joined.ops, joined.values, places=joined)

    @cached_property
    def heaviest_first(self) -> tuple[int, ...]:
        """All color groups, those with more data first."""
        weight: dict[int, int] = {}
        for value in self.graph.values:
            for color in set(value.colors):
                if color >= 0:
                    size = value.value.type.bytes * len(value.members)
                    weight[color] = weight.get(color, 0) + size
        return tuple(sorted(weight, key=lambda color: (-weight[color], color)))

    def tile_color(
        self, tiling: Tiling, color: int, axis: int, resolution: Resolution
    ) -> Propagation:
        """Propagates an axis from every operation and argument of a color group."""
        candidates = self._candidates(color, axis, frozenset(resolution.values()))
        places = candidates.reached(tiling)
        return dataclasses.replace(self._taken(tiling, places, axis), places=places)

    def tile_seeds(
        self, tiling: Tiling, seeds: Iterable[Node], axis: int, resolution: Resolution
    ) -> Propagation:
        """Propagates like `tile_nodes`, but faster: stops and conflicts are not recorded."""
        seeds = list(dict.fromkeys(seeds))
        around = frozenset(self._parts_of.get(seed, seed) for seed in seeds)
        key = around, axis, frozenset(resolution.items())
        if key not in self._seeded:
            nodes = sorted(node for part in around for node in self._nodes_of.get(part, (part,)))
            self._seeded[key] = self._numbered(
                [row for node in nodes if (row := self._row(node))],
                axis,
                frozenset(resolution.values()),
            )
        numbers, candidates = self._seeded[key]
        places = candidates.reached_from([numbers[s] for s in seeds if s in numbers], tiling)
        return dataclasses.replace(self._taken(tiling, places, axis), places=places)

    def _candidates(self, color: int, axis: int, chosen: frozenset[int]) -> Candidates:
        key = (color, axis, chosen)
        if key not in self._known:
            self._known[key] = self._numbered(self._colored[color], axis, chosen)[1]
        return self._known[key]

    def _numbered(
        self, rows: Iterable[tuple[Node, int, int]], axis: int, chosen: frozenset[int]
    ) -> tuple[dict[Node, int], Candidates]:
        """Filters nodes by divisibility and role, and numbers them.

        Args:
          rows: nodes, with their sizes and the fewest indices of a shard.
          axis: the axis that they may take.
          chosen: the roles that get the axis in conflicts.
        """
        shards = self.mesh.sizes[axis]
        numbers: dict[Node, int] = {}
        rooms = self._rooms.setdefault(axis, Rooms(self.mesh, axis))
        sides: dict[str, list[Candidate]] = {"op": [], "value": []}
        for node, size, least in rows:
            role = self.role(node)
            if size % shards == 0 and size // shards >= least and (role < 0 or role in chosen):
                numbers[node] = len(numbers)
                kind, index, place = node
                sides[kind].append(Candidate(index, place, rooms.number(place, size, least)))
        seeds = [
            number
            for (kind, index, _), number in numbers.items()
            if kind == "op" or self.graph.values[index].producer is None
        ]
        neighbours = [
            [numbers[n] for n in self.neighbours.get(node, ()) if n in numbers] for node in numbers
        ]
        count = len(self.graph.ops)
        return numbers, Candidates(
            sides["op"], sides["value"], seeds, neighbours, axis, rooms, count
        )

    def _row(self, node: Node) -> tuple[Node, int, int] | None:
        """Returns a node, its size and its least shard; None if no axis may ever split it."""
        kind, index, place = node
        if self.given(node):
            return None
        if kind == "op":
            factor = self.graph.ops[index].op.rule.factors[place]
            return node, factor.size, factor.least
        value = self.graph.values[index]
        size = value.value.type.shape[place]
        return None if size > 1 and value.colors[place] < 0 else (node, size, 1)

    @cached_property
    def _colored(self) -> dict[int, list[tuple[Node, int, int]]]:
        """Nodes by color group, in order, with size and the fewest indices of a shard."""
        found: dict[int, list[tuple[Node, int, int]]] = {}
        for op in self.graph.ops:
            for factor, color in enumerate(op.colors):
                if color >= 0:
                    made = op.op.rule.factors[factor]
                    row = (("op", op.index, factor), made.size, made.least)
                    found.setdefault(color, []).append(row)
        for value in self.graph.values:
            for dim, color in enumerate(value.colors):
                if color >= 0:
                    row = (("value", value.index, dim), value.value.type.shape[dim], 1)
                    found.setdefault(color, []).append(row)
        return found

    def parts(self, propagation: Propagation, sums: bool) -> list[frozenset[Node]]:
        """Returns the connected components of what a propagation takes, by number.

        If `sums` is false, operations that sum over the axis are left out.
        """
        key = (_key(propagation), sums)
        if key not in self._parts:
            taken = propagation.taken
            if not sums:
                taken = frozenset(node for node in taken if not self._sums(node))
            self._parts[key] = self.connected(taken)
        return self._parts[key]

    def _sums(self, node: Node) -> bool:
        """Returns whether a node is a factor that an operation sums over."""
        kind, index, place = node
        return kind == "op" and self.graph.ops[index].op.rule.factors[place].kind == "reduction"

    def connected(self, taken: frozenset[Node]) -> list[frozenset[Node]]:
        """Returns the connected components of what an action took, in a fixed order."""
        left, found = set(taken), []
        for start in sorted(taken):
            if start in left:
                part = reached([start], left.__contains__, self.neighbours)
                left -= part
                found.append(frozenset(part))
        return found

    def restrict(self, tiling: Tiling, taken: Iterable[Node], axis: int) -> Propagation:
        """Propagates an axis to exactly these nodes, where they still can take it."""
        can = sorted(node for node in taken if self.refusal(tiling, node, axis) is None)
        return self._taken(tiling, self._places(can), axis)

    def _taken(self, tiling: Tiling, places: Places, axis: int) -> Propagation:
        """Returns the propagation that takes the axis at these places."""
        return Propagation(tiling.split(places.row, places.place, axis), places.ops, places.values)

    def _places(self, nodes: Iterable[Node]) -> Places:
        """Keeps the first node of each operation and value."""
        ops: dict[int, int] = {}
        values: dict[int, int] = {}
        for kind, index, place in nodes:
            (ops if kind == "op" else values).setdefault(index, place)
        return Places(ops, values, len(self.graph.ops))


def _key(propagation: Propagation) -> object:
    """Returns a key for what a propagation has taken."""
    if propagation.places is not None:
        return propagation.places  # by identity
    return tuple(propagation.ops.items()), tuple(propagation.values.items())
