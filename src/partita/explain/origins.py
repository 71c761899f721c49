"""Origins of a dimension's axes: the tactic, its action, and the path along which it propagated.

A tactic put an axis on those nodes (dimensions of values, factors of operations) whose layout has
it after the tactic and not before. The path from an action to one of them is a shortest path
through the name graph that stays on such nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property

from partita.analysis import ClassGraph
from partita.analysis.describe import factor_place
from partita.decisions import EVERY_COLOR, Action, ShardClass, ShardColor
from partita.escape import printed
from partita.planning.schedule import Scheduled
from partita.tiling import Assignment, Node

MOST_STEPS = 6
"""Operations of a chain that are printed; of longer ones, the first and last."""

LONGEST_NAME = 60
"""Characters of a tactic's name that are printed."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Why a dimension is sharded along an axis."""

    where: str
    """The dimension, in words."""
    axis: str
    tactic: str
    position: int
    """Index of the tactic in the plan's history."""
    action: str
    """Place where the tactic put the axis, in words; empty if unknown."""
    color: int | None
    """The color group that the action tiled as a whole, if it did."""
    chain: tuple[str, ...]
    """The operations along which the axis propagated, in order, with their source lines."""

    @printed
    def __str__(self) -> str:
        lines = [f"{self.where} along {self.axis}: {_tactic(self.position, self.tactic)}"]
        if self.color is not None:
            lines.append(f"  tiled color {self.color} as a whole: {self.action}")
        elif self.action and not self.chain:
            lines.append(f"  put it at {self.action}")
        elif self.action:
            lines.append(f"  put it at {self.action}, and it propagates along")
            lines += [f"    {step}" for step in _shortened(self.chain)]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Why a dimension has not taken an axis that a tactic wanted there, or that came up to it."""

    dim: int
    axis: str
    tactic: str
    position: int
    """Index of the tactic in the plan's history."""
    reason: str

    @printed
    def __str__(self) -> str:
        return (
            f"dim {self.dim} not along {self.axis}: {_tactic(self.position, self.tactic)}\n"
            f"  left it out: {self.reason}"
        )


@dataclasses.dataclass(frozen=True)
class Trail:
    """Path by which a node got an axis."""

    position: int
    action: Action | None
    path: tuple[Node, ...]
    """Nodes from a seed of the action to this node; empty if there is no such path."""


class Origins:
    """Reads from a schedule's history where axes come from."""

    def __init__(self, done: Scheduled) -> None:
        self.done = done
        self.context = done.stage.context
        self.program = self.context.analysis.program
        self.mesh = self.context.mesh
        self.propagator = self.context.single
        self._parents: dict[tuple[int, int], dict[Node, Node | None]] = {}
        self._folded: dict[int, ClassGraph] = {}

    @cached_property
    def states(self) -> list[Assignment]:
        """Before every tactic, and after the last."""
        return [self.done.before(n).assignment for n in range(len(self.done.history) + 1)]

    def axes(self, node: Node, position: int = -1) -> tuple[int, ...]:
        """The axes of a node before the tactic at a position; by default after all."""
        kind, index, place = node
        state = self.states[position]
        return (state.ops if kind == "op" else state.values)[index][place]

    def took(self, node: Node, axis: int) -> int | None:
        """Position of the tactic by which a node took an axis."""
        if axis not in self.axes(node):
            return None
        return next(n for n in range(len(self.done.history)) if axis in self.axes(node, n + 1))

    def gained(self, node: Node, axis: int, position: int) -> bool:
        """Returns whether a node took an axis with the tactic at a position."""
        return axis in self.axes(node, position + 1) and axis not in self.axes(node, position)

    def trail(self, node: Node, axis: int) -> Trail | None:
        """Returns the path by which a node got an axis; None if it does not have it."""
        position = self.took(node, axis)
        if position is None:
            return None
        color, name = self.color(node), self.mesh.names[axis]
        actions = [a for a in self.done.history[position].actions if a.axis == name]
        local = (a for a in actions if self._is_local(a, node, position))
        whole = (a for a in actions if a.color in (color, EVERY_COLOR))
        found = next(itertools.chain(local, whole), None)
        if found is not None:
            return Trail(position, found, ())
        parents = self._propagate(position, axis)
        if node not in parents:
            return Trail(position, None, ())
        path, at = [node], parents[node]
        while at is not None:
            path.append(at)
            at = parents[at]
        path.reverse()
        seed = path[0][1:]
        action = next(a for a in actions if seed in a.seeds)
        return Trail(position, action, tuple(path))

    def _is_local(self, action: Action, node: Node, position: int) -> bool:
        """Returns whether an action of the tactic at a position put its axis on exactly this
        node."""
        move, (kind, index, place) = action.move, node
        if not isinstance(move, ShardClass) or (move.kind, move.place) != (kind, place):
            return False
        graph = self._classes(position)
        numbers = graph.op_class if kind == "op" else graph.value_class
        return numbers[index] == numbers[move.member]

    def _classes(self, position: int) -> ClassGraph:
        """The classes of the program before the tactic at a position."""
        if position not in self._folded:
            self._folded[position] = self.done.before(position).folded[0]
        return self._folded[position]

    def decision(self, node: Node, axis: int, where: str) -> Decision | None:
        """Returns the decision that gave a node an axis; `where` is the node in words."""
        trail = self.trail(node, axis)
        if trail is None:
            return None
        action = trail.action
        return Decision(
            where,
            self.mesh.names[axis],
            self.done.history[trail.position].name,
            trail.position,
            "" if action is None else action.what,
            None if action is None else action.color,
            tuple(self._steps(trail.path)),
        )

    def left_out(self, value: int) -> Iterator[LeftOut]:
        """The axes that a value's dimensions have not, though tactics wanted or nearly had them."""
        for dim in range(len(self.program.values[value].type.shape)):
            node: Node = ("value", value, dim)
            for axis, name in enumerate(self.mesh.names):
                if axis in self.axes(node):
                    continue
                told = set()
                for position, report in enumerate(self.done.history):
                    reason = self._kept_from(node, axis, position)
                    if reason and reason not in told:
                        told.add(reason)
                        yield LeftOut(dim, name, report.name, position, reason)

    def reason(self, node: Node, axis: int, position: int) -> str:
        """Why a node did not take an axis with the tactic at a position."""
        name = self.mesh.names[axis]
        if refused := self._refusal(node, axis, position):
            return refused
        role = self.propagator.role(node)
        if role >= 0:
            conflict = self.propagator.conflict_of[role]
            colors = self.context.colors
            roles = self.context.analysis.groups.conflict_groups[conflict]
            winner = self.winner(conflict, axis, position)
            if winner is None:
                return f"unresolved: {colors.conflict(conflict)}"
            if winner != role:
                told = colors.conflicts[conflict].roles
                return (
                    f"{colors.name(colors.conflicts[conflict].color)} meets itself, and {name} "
                    f"went to {told[roles.index(winner)]}"
                )
        if refused := self._refusal(node, axis, position + 1):
            return refused
        if any(action.move is not None for action in self.done.history[position].actions):
            return "the search left it out"
        return f"{name} did not propagate up to it"

    def free(self, node: Node, axis: int) -> bool:
        """Returns whether a node could still take an axis after all tactics."""
        refused = self._refusal(node, axis, len(self.done.history))
        return not refused and self.propagator.size(node) > 1

    def near(self, node: Node, axis: int, position: int) -> bool:
        """Returns whether a neighbour of a node took an axis with the tactic at a position."""
        neighbours = self.propagator.neighbours.get(node, ())
        return any(self.gained(other, axis, position) for other in neighbours)

    def describe(self, node: Node) -> str:
        """A node in words: `w1 dim 0`, or `dot_general at mlp.py:5`."""
        kind, index, place = node
        if kind == "value":
            return f"{self.program.describe(index)} dim {place}"
        return self.operation(index)

    def operation(self, index: int) -> str:
        """An operation with its source line."""
        op = self.program.operations[index]
        return f"{op.title} at {op.source}" if op.source else op.title

    def _kept_from(self, node: Node, axis: int, position: int) -> str | None:
        """Returns why a node has not taken an axis; None if nothing wanted the axis there."""
        if self._wanted(node, axis, position) or self.near(node, axis, position):
            return self.reason(node, axis, position)
        for other in self.propagator.neighbours.get(node, ()):
            if axis not in self.axes(other, position + 1) and self.near(other, axis, position):
                return f"{self.describe(other)} did not take it: " + self.reason(
                    other, axis, position
                )
        return None

    def _wanted(self, node: Node, axis: int, position: int) -> bool:
        name = self.mesh.names[axis]
        refused = self.done.history[position].refused
        return node[0] == "value" and any(r.axis == name and node[1:] in r.seeds for r in refused)

    def _refusal(self, node: Node, axis: int, position: int) -> str:
        tiling = self.states[position].tiling
        refused = self.propagator.refusal(tiling, node, axis)
        if refused is None:
            return ""
        kind, index, _ = node
        layout = self.propagator.layout(tiling, node)
        place = next((n for n, axes in enumerate(layout) if axis in axes), None)
        if place is None:
            return refused[0]
        rule = self.program.operations[index].rule if kind == "op" else None
        where = f"dimension {place}" if rule is None else factor_place(rule, place)
        return f"{refused[0]}, on {where}"

    def winner(self, conflict: int, axis: int, position: int) -> int | None:
        """The role that got an axis in a conflict."""
        for move in (action.move for action in self.done.history[position].actions):
            if not isinstance(move, ShardColor):
                continue
            if move.axis == axis and conflict in dict(move.roles):
                return dict(move.roles)[conflict]
        return self._winners(axis, position).get(conflict)

    def _winners(self, axis: int, position: int) -> dict[int, int]:
        found = {}
        for node in self._propagate(position, axis):
            role = self.propagator.role(node)
            if role >= 0:
                found[self.propagator.conflict_of[role]] = role
        return found

    def color(self, node: Node) -> int:
        """The color group of a node."""
        kind, index, place = node
        graph = self.propagator.graph
        return (graph.ops if kind == "op" else graph.values)[index].colors[place]

    def _propagate(self, position: int, axis: int) -> dict[Node, Node | None]:
        """Returns, for every node that a tactic's seeds reach, its predecessor on a shortest
        path."""
        key = (position, axis)
        if key not in self._parents:
            name = self.mesh.names[axis]
            seeds: list[Node] = [
                ("value", *seed)
                for action in self.done.history[position].actions
                if action.axis == name
                for seed in action.seeds
            ]
            parents: dict[Node, Node | None] = {
                seed: None for seed in seeds if self.gained(seed, axis, position)
            }
            queue = deque(parents)
            while queue:
                node = queue.popleft()
                for other in self.propagator.neighbours.get(node, ()):
                    if other not in parents and self.gained(other, axis, position):
                        parents[other] = node
                        queue.append(other)
            self._parents[key] = parents
        return self._parents[key]

    def nearest(self, node: Node, axis: int, values: set[int]) -> int | None:
        """Returns the one of some values nearest to a node, through nodes that took the axis with
        it."""
        position = self.took(node, axis)
        if position is None:
            return None
        seen, queue = {node}, deque([node])
        while queue:
            at = queue.popleft()
            if at[0] == "value" and at[1] in values:
                return at[1]
            for other in self.propagator.neighbours.get(at, ()):
                if other not in seen and self.gained(other, axis, position):
                    seen.add(other)
                    queue.append(other)
        return None

    def _steps(self, path: Sequence[Node]) -> Iterator[str]:
        """The operations of a path, and the buffers that pass between arguments and results."""
        for before, node in itertools.pairwise(path):
            if node[0] == "op":
                yield self.operation(node[1])
            elif before[0] == "value":
                yield f"the donated buffer of {self._argument(before[1], node[1])}"

    def _argument(self, *values: int) -> str:
        arguments = (v for v in values if self.program.values[v].producer is None)
        return self.program.describe(next(arguments, values[0]))


def _tactic(position: int, name: str) -> str:
    """A tactic as people find it: `history[0], ManualPartition(...)`."""
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
    return f"history[{position}], {short}"


def _shortened(steps: Sequence[str]) -> list[str]:
    """Steps for print: equal ones in a row once, and of many the first and last."""
    rows: list[tuple[str, int]] = []
    for step in steps:
        if rows and rows[-1][0] == step:
            rows[-1] = (step, rows[-1][1] + 1)
        else:
            rows.append((step, 1))
    shown = [step + (f" x{times}" if times > 1 else "") for step, times in rows]
    if len(shown) <= MOST_STEPS:
        return shown
    half = MOST_STEPS // 2
    hidden = sum(times for _, times in rows[half:-half])
    return [*shown[:half], f"... {hidden} more ...", *shown[-half:]]
