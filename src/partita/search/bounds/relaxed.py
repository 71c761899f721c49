"""The relaxed problem: every class takes any layout that its own sizes allow, each for itself.

The cost is never more than that of a plan with these layouts. Every plan that a search can reach is
one of its choices. So its minimum is a lower bound on their step times, and so is any lower bound
on that. It leaves out these costs of plans:

- memory, and gathering again for lack of it;
- the order of several axes along one dimension;
- windows that reach into other shards;
- some of what kernels write and read because it moves;
- collectives in loops that compute too little, and inside of manual computations;
- latency that combining collectives may save.

Reshards of a value for several uses are shared out among these: the same one for all counts once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from partita.analysis import ValueClass
from partita.program.op_traits import CARRY
from partita.search.bounds.choices import NONE, Choices
from partita.search.bounds.combined import latency_saved
from partita.search.bounds.messages import Energy, joined
from partita.search.bounds.shortest import Shortest, Unreduced, in_order
from partita.search.bounds.tables import Tables
from partita.search.bounds.uses import Moves, Uses
from partita.search.problem import Problem
from partita.spmd import Lowering
from partita.tiling import LAYOUTS, Layout, OpForm, Tiling, local_type


class Relaxed:
    """The relaxed problem of a search. Nodes are operation classes, then value classes."""

    def __init__(self, problem: Problem) -> None:
        """Prepares the problem.

        Raises:
          TooLargeError: a class has too many layouts.
        """
        self.graph, self.model, self._start = problem.graph, problem.cost_model, problem.start
        self._mesh = problem.mesh
        self.choices = Choices(problem)
        self.ops, self.values = self.choices.ops, self.choices.values
        self._shortest = Shortest(self.model, problem.mesh, self.choices.axes)
        self._saved = latency_saved(self.choices, self.model)
        self._never = 10 * problem.start.cost.time.serial_time
        """Seconds of forbidden pairs of choices: more than any useful bound."""
        self._chosen: dict[Hashable, int] = {}
        """Cache: class with its form or plan -> number of the choice."""
        self._forms: dict[int, dict[Hashable, int]] = {}
        """Cache: operation class -> (its form up to the order of axes, axes passed -> choice)."""
        uses = [uses for value in self.graph.values if (uses := self._using(value))]
        places = np.argsort(self._order).tolist()
        self._tables = Tables(places, self._all_moves(), uses)

    def energy(self, compute: float) -> Energy:
        """Returns exposed seconds, plus compute weighted from 0 to 1, plus links with the rest.

        That is at most the step time: exposed seconds, plus the longest of the others.
        """
        sizes, seconds = self._alone
        beside = (1 - compute) / self.model.interconnect.links
        costs = self._tables.costs(compute, beside)
        return Energy(sizes, self._tables.ends, compute * seconds, costs)

    @functools.cached_property
    def _alone(self) -> tuple[list[int], np.ndarray]:
        """Number of choices of every node, in order, and compute seconds of all choices."""
        seconds = [node.seconds for node in self.ops]
        seconds += [np.zeros(len(node.layouts)) for node in self.values]
        ordered = [seconds[node] for node in self._order]
        return list(map(len, ordered)), joined(ordered)

    @functools.cached_property
    def _order(self) -> list[int]:
        """Nodes in the order of the program, so that messages follow it."""
        ops = [(op.op.index, 0) for op in self.graph.ops]
        values = [
            (-1 if v.producer is None else self.graph.ops[v.producer[0]].op.index, 1)
            for v in self.graph.values
        ]
        keys = [*ops, *values]
        return sorted(range(len(keys)), key=lambda node: (keys[node], node))

    def slope(self, ordered: Sequence[int]) -> tuple[float, float]:
        """Returns the compute seconds of some choices, and their hidden seconds per link."""
        choices = self._by_node(ordered)
        ops = zip(self.ops, choices.tolist(), strict=False)
        compute, hidden = self._tables.sums(choices)
        compute += sum(float(node.seconds[choice]) for node, choice in ops)
        return compute, hidden / self.model.interconnect.links

    def tiling(self, ordered: Sequence[int]) -> Tiling:
        """Returns the layouts of some choices."""
        first, layouts = self._layouts
        return self._start.tiling.with_row(layouts[first + self._by_node(ordered)])

    @functools.cached_property
    def _layouts(self) -> tuple[np.ndarray, np.ndarray]:
        """Start of the choices of every node, one node after the other; layout number of each."""
        nodes = [node.layouts for node in self.ops] + [node.layouts for node in self.values]
        numbers = [LAYOUTS[layout] for layout in itertools.chain.from_iterable(nodes)]
        first = np.array([0, *itertools.accumulate(map(len, nodes))])[:-1]
        return first, np.array(numbers, dtype=np.int32)

    def shards(self) -> list[np.ndarray]:
        """Returns the bytes of a shard for every choice of a value, by node; 0 for operations."""
        sizes = [np.zeros(len(node.layouts)) for node in self.ops]
        for value, node in zip(self.graph.values, self.values, strict=True):
            sizes.append(np.array([self._bytes(value, layout) for layout in node.layouts]))
        return [sizes[node] for node in self._order]

    def of(self, lowering: Lowering) -> list[int]:
        """Returns the choices, in order, that correspond to the plan of a lowering."""
        chosen, unreduced = list[int](), [plan.unreduced for plan in lowering.plans]
        for number, form in enumerate(lowering.forms):
            passed = self._passed(unreduced, number)
            key: Hashable = (number, form, passed)
            if key not in self._chosen:
                self._chosen[key] = self._form(number, form, passed)
            chosen.append(self._chosen[key])
        for number, plan in enumerate(lowering.plans):
            key = (number, plan.layout, plan.unreduced)
            if key not in self._chosen:
                kept = zip(self.values[number].layouts, self.values[number].kept, strict=True)
                self._chosen[key] = list(kept).index((in_order(plan.layout), plan.unreduced))
            chosen.append(self._chosen[key])
        return [chosen[node] for node in self._order]

    def _form(self, number: int, form: OpForm, passed: Unreduced) -> int:
        """Returns the choice of an operation class that has this form."""
        if number not in self._forms:
            op = self.ops[number]
            alike = zip(map(_alike, op.forms), op.passed, strict=True)
            self._forms[number] = {each: n for n, each in reversed(list(enumerate(alike)))}
        return self._forms[number][_alike(form), passed]

    def _passed(self, unreduced: Sequence[Unreduced], op: int) -> Unreduced:
        """Returns the axes over which operands are unreduced, given those of all values."""
        if self.graph.ops[op].op.kind == CARRY:
            return NONE
        found = NONE
        for value in itertools.chain.from_iterable(self.graph.ops[op].operands):
            if unreduced[value]:
                found |= unreduced[value]
        return found

    def share(self, ordered: Sequence[int], step: float) -> None:
        """Moves the shares of reshards for several uses towards those of some choices."""
        self._tables.share(self._by_node(ordered), step)

    def _by_node(self, ordered: Sequence[int]) -> np.ndarray:
        choices = np.empty(len(ordered), dtype=np.int64)
        choices[self._order] = ordered
        return choices

    def _all_moves(self) -> Iterator[Moves]:
        for value in self.graph.values:
            made = self._making(value)
            if made is not None:
                yield made
            yield from self._unreduced_uses(value)
            yield from self._aliased(value)

    def _node(self, value: int) -> int:
        return len(self.ops) + value

    def _making(self, value: ValueClass) -> Moves | None:
        """Returns the costs from the layout in which a value is made to its stored one."""
        if value.producer is None:
            return None
        op, number = value.producer
        maker, node = self.ops[op], self.values[value.index]
        operation = self.graph.ops[op].op
        unknown = operation.kind == CARRY or value.value.type.elements == 1
        ways = self._shortest.ways(value.value.type, operation.combine or "add")
        sources = [
            (in_order(form.makes[number]), form.sums | passed)
            for form, passed in zip(maker.forms, maker.passed, strict=True)
        ]
        ends = [(layout, NONE) for layout in node.layouts]
        waited, exposed = (np.empty((len(sources), len(ends))) for _ in range(2))
        for over in set(node.kept):
            columns = [column for column, kept in enumerate(node.kept) if kept == over]
            starts = [(source, sums - over) for source, sums in sources]
            found = ways.between(
                starts, [ends[column] for column in columns], self._saved[value.index]
            )
            waited[:, columns], exposed[:, columns] = found
            if over:
                never = [
                    [node.layouts[c] != source or not (unknown or over <= sums) for c in columns]
                    for source, sums in sources
                ]
                waited[:, columns] = np.where(never, np.inf, waited[:, columns])
        times, may = self.model.times(value.index), np.isfinite(waited)
        waited, exposed = np.where(may, times * waited, self._never), np.where(may, exposed, 0.0)
        hidden = np.where(may, waited - times * exposed, 0.0)
        # It is written to be moved, if kernels do not do so anyway.
        written = self.model.moved_seconds(value.index)[0] * np.array(
            [self._bytes(value, source) for source, _ in sources]
        )
        compute = times * written[:, None] * (may & (waited > 0))
        share = self.model.sums_hidden(value.index)
        return Moves(op, self._node(value.index), waited, share * hidden, compute)

    def _bytes(self, value: ValueClass, layout: Layout) -> int:
        """Returns the bytes of a shard."""
        return local_type(value.value.type, layout, self._mesh).bytes

    def _using(self, value: ValueClass) -> Uses | None:
        """Returns the costs from the stored layout of a value to those that its uses need."""
        if not value.uses:
            return None
        layouts, users = self.values[value.index].layouts, [self.ops[u.op] for u in value.uses]
        ways = self._shortest.ways(value.value.type, "add")
        needs = [
            [in_order(form.needs[use.number]) for form in user.forms]
            for use, user in zip(value.uses, users, strict=True)
        ]
        distinct = {need: n for n, need in enumerate(dict.fromkeys(itertools.chain(*needs)))}
        waited, exposed = ways.between(
            [(layout, NONE) for layout in layouts], [(need, NONE) for need in distinct]
        )
        if not waited.any():
            return None
        times = self.model.times(value.index)
        before, after = (
            np.array([self._bytes(value, layout) for layout in side])
            for side in (layouts, distinct)
        )
        made, named = self.model.moved_seconds(value.index)
        more = np.maximum(after[:, None] - before[None, :], 0)
        compute = (made * after[:, None] + named * more) * (waited.T > 0)
        rows = [np.array([distinct[need] for need in each]) for each in needs]
        may = np.array([np.isin(np.arange(len(distinct)), each) for each in rows], dtype=float)
        weights = may / np.maximum(may.sum(axis=0), 1)
        return Uses(
            self._node(value.index),
            [use.op for use in value.uses],
            rows,
            times * waited.T,
            times * (waited - exposed).T,
            [self.model.use_hidden(value.index, place) for place in range(len(rows))],
            times * compute,
            np.repeat(weights[:, :, None], len(layouts), axis=2),
        )

    def _unreduced_uses(self, value: ValueClass) -> Iterator[Moves]:
        """Forbids storing a value unreduced over axes that its use does not pass on."""
        node = self.values[value.index]
        if not value.uses or not any(node.kept):
            return
        if self.graph.ops[value.uses[0].op].op.kind == CARRY:
            return
        user = self.ops[value.uses[0].op]
        never = [[not kept <= passed for kept in node.kept] for passed in user.passed]
        yield self._forbidden(value.uses[0].op, self._node(value.index), np.array(never))

    def _aliased(self, value: ValueClass) -> Iterator[Moves]:
        """Forbids different layouts of values that share a buffer: axes propagate between them."""
        for partner in value.aliases:
            other = self.graph.values[partner]
            alike = (value.colors, value.roles) == (other.colors, other.roles)
            starts = self._start.tiling.values
            if partner <= value.index or not alike or starts[value.index] != starts[partner]:
                continue
            mine, theirs = self.values[value.index].layouts, self.values[partner].layouts
            never = np.array([[a != b for b in theirs] for a in mine])
            yield self._forbidden(self._node(value.index), self._node(partner), never)

    def _forbidden(self, first: int, second: int, never: np.ndarray) -> Moves:
        none = np.zeros(never.shape)
        return Moves(first, second, self._never * never, none, none)


def _alike(form: OpForm) -> tuple[object, ...]:
    """Returns a key that is equal for forms that differ in the order of axes only."""
    return tuple(map(in_order, form.needs)), tuple(map(in_order, form.makes)), form.sums, form.axes
