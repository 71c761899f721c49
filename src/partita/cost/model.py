"""Cost model: the cost of lowerings of one class graph on one device type.

The cost of a class is found once per local assignment and counts with its multiplicity. Pricing a
lowering that was derived from another looks only at the changes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from partita.analysis import Analysis, Between, ClassGraph, Window
from partita.cost.compute.model import ComputeModel
from partita.cost.devices.hardware import Hardware
from partita.cost.estimate import Estimate, StepTime, Together, Traffic
from partita.cost.kernels.timing import Timing
from partita.cost.memory.model import Copies, MemoryModel
from partita.cost.memory.regather import Again, Gathered, Regathering, gathered_again
from partita.cost.network.collectives import Interconnect, interconnect
from partita.cost.network.combining import Combining, Part
from partita.cost.network.offload import OffloadModel
from partita.cost.plan_costs import Column, Cost, Inside, PlanCost, PlanTable, total
from partita.cost.schedule.loops import Loops
from partita.mesh import Mesh
from partita.spmd import Known, Lowering, ValuePlan
from partita.spmd.manual_collectives import collectives_inside
from partita.spmd.steps import Step
from partita.tiling import Need, OpForm

_Kind = tuple[str, tuple[str, ...]]
"""Kind and axes of collectives."""


class CostModel:
    """Cost of lowerings of one class graph over one mesh on one device type."""

    def __init__(
        self,
        graph: ClassGraph,
        analysis: Analysis,
        mesh: Mesh,
        hardware: Hardware,
        capacity: int | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.hardware = hardware
        self.capacity = hardware.usable_memory if capacity is None else capacity
        self.timing = timing = timing or Timing(analysis, hardware)
        self.interconnect: Interconnect = interconnect(mesh, hardware)
        self.compute = ComputeModel(graph, mesh, hardware, timing)
        self.combining = Combining(graph, timing, self.interconnect, hardware)
        self.memory = MemoryModel(
            graph, mesh, timing, hardware.tile, hardware.overlapped, hardware.kernels
        )
        classes = np.array(graph.value_class, dtype=np.int64)
        count = len(graph.values)
        self._times: list[int] = (
            np.bincount(classes, timing.value_times, count).astype(int).tolist()
        )
        members = np.bincount(classes, minlength=count)
        self._overlapped: list[float] = (
            np.bincount(classes, timing.overlapped_sums, count) / members
        ).tolist()
        """Share of the members of every value class whose reductions are hidden."""
        values, places, hidden = timing.prefetched
        self._first_use = [0, *accumulate(len(value.uses) for value in graph.values)]
        slots = np.array(self._first_use)[classes[values]] + places
        total = np.bincount(slots, hidden, self._first_use[-1])
        per_use = np.repeat(members, [len(value.uses) for value in graph.values])
        self._prefetched: list[float] = (total / per_use).tolist()
        """Share of members whose moves are hidden, for every use of every value class."""
        self.loops = Loops(graph, timing, hardware)
        for index in filter(self.loops.have, range(count)):  # how long, `Loops.excess` says
            self._overlapped[index] = 1.0
            uses = slice(self._first_use[index], self._first_use[index + 1])
            self._prefetched[uses] = [1.0] * len(graph.values[index].uses)
        self._made, self._named = (
            (np.bincount(classes, which, count) / members).tolist() for which in timing.unstored
        )
        """Shares of the members of every value class that are not stored: `_made` must be written
        to be moved, `_named` are other names of stored values."""
        self._table = PlanTable(self.interconnect.links)
        self._numbers: dict[ValuePlan, int] = {}
        """Numbers of plans in the table."""
        self._of: Known | None = None
        self._form_seconds, self._plan_numbers = Column(), Column()
        """Memoised figures of the forms and plans of the lowerer whose lowerings are priced."""
        self._unmoved: dict[float, int] = {}
        """Numbers of plans that move nothing, by the bytes that are kept."""
        self._saved: dict[bytes, tuple[float, list[float]]] = {}
        self._seconds: dict[Step, np.ndarray] = {}
        self._idle = np.zeros(self.interconnect.links)
        self._with_inside = [op.index for op in graph.ops if op.op.work and op.op.work.collectives]
        """Operation classes with collectives inside, for which compute waits."""
        self._inside_seconds: dict[OpForm, float] = {}
        self.offload = OffloadModel(graph, mesh, hardware, timing)

    def cost(self, lowering: Lowering, base: Cost | None = None, choose: bool = True) -> Cost:
        """Returns the cost of a lowering, from scratch or derived from that of another.

        Args:
          lowering: of this model's graph.
          base: the cost of the lowering that it was derived from.
          choose: whether to gather again what takes too much memory, where nothing is decided
            of it.
        """
        table, base = self._table, base or self._nothing()
        seconds, numbers = self._priced(lowering)
        kept = table.kept[numbers]
        fixed = self.memory.arguments(kept) + self.memory.constants
        changes = self._changes(base.numbers, base.changes, numbers)
        live = changes.cumsum()
        time = self._time(seconds, lowering.forms, numbers)
        found, moving = Gathered(time, max(0.0, float(live.max())), {}), numbers
        room, decided = self.capacity - fixed, dict(lowering.tiling.gathers)
        if decided or (choose and found.peak > room):
            gathered = table.again[numbers].nonzero()[0].tolist()
            ways = {index: table.ways[numbers[index]] for index in gathered}
            found = gathered_again(live, room, found, ways, decided, table.buffers, choose)
            number = {
                index: next(way.number for way in ways[index] if way.between is between)
                for index, between in found.regathered.items()
                if between.in_loops
            }
            if number:  # now that they are known, what they overlap with is, too
                moving = numbers.copy()
                moving[list(number)] = list(number.values())
                live = self._changes(numbers, changes, moving).cumsum()
                time = self._time(seconds, lowering.forms, moving, list(number))
                in_loops = {index: found.regathered[index] for index in number}
                others = {
                    i: way for i, way in ways.items() if i in found.regathered.keys() - number
                }
                start = Gathered(time, max(0.0, float(live.max())), in_loops)
                choice = Regathering(live, room, start, others, table.buffers)
                found, _ = choice.decided(found.regathered)
        peak = fixed + found.peak
        return Cost(seconds, numbers, changes, found.time, peak, found.regathered, table, moving)

    def _time(
        self,
        seconds: np.ndarray,
        forms: Sequence[OpForm],
        numbers: np.ndarray,
        captured: Sequence[int] = (),
    ) -> StepTime:
        """Returns the time of a step.

        Args:
          seconds: of every operation class.
          forms: of them.
          numbers: of the plan of every value class.
          captured: the value classes whose plans gather in loops around their uses.
        """
        table = self._table
        moved = total(table.moved[numbers[table.moves[numbers]]]).tolist()
        compute = total(seconds).item() + moved[0]
        exposed, hidden = self._waiting(forms) + moved[1], tuple(moved[2:])
        saved, beside = self._combined(numbers[table.combined[numbers]])
        exposed, hidden = exposed - saved, tuple(map(operator.sub, hidden, beside))
        if over := self.loops.excess(seconds, numbers, table, captured):
            exposed += max(over)
            hidden = tuple(max(h - more, 0.0) for h, more in zip(hidden, over, strict=True))
        offloaded = self.offload.seconds(forms)
        if offloaded is not None:
            exposed, hidden = exposed + offloaded[0], (*hidden, offloaded[1])
        return StepTime(compute, exposed, hidden)

    def _nothing(self) -> Cost:
        """Returns the cost of no operation and no value, to start from."""
        numbers = np.zeros(len(self.graph.values), dtype=np.int32)
        seconds, copied = np.zeros(len(self.graph.ops)), np.zeros(self.memory.size)
        time = StepTime(0, 0, ())
        return Cost(seconds, numbers, copied, time, 0, {}, self._table, numbers)

    def _priced(self, lowering: Lowering) -> tuple[np.ndarray, np.ndarray]:
        """Returns seconds by operation class, and the table number of each value class's plan."""
        if lowering.known is not self._of:
            self._of, self._form_seconds, self._plan_numbers = lowering.known, Column(), Column()
        ops, of = self.graph.ops, self.compute.seconds
        self._form_seconds.fill(lowering.known.forms, lambda form: of(ops[form.op], form))
        self._plan_numbers.fill(lowering.known.plans, self._numbered)
        numbers = self._plan_numbers.all[lowering.plans.numbers].astype(np.int32)
        return self._form_seconds.all[lowering.forms.numbers], numbers

    def _numbered(self, plan: ValuePlan) -> int:
        """Returns the number of a plan in the table."""
        number = self._numbers.get(plan)
        if number is None:
            number = self._numbers[plan] = self._number(plan.value, plan)
        return number

    def _combined(self, numbers: np.ndarray) -> tuple[float, list[float]]:
        """Returns the seconds that combining saves, given the table numbers of plans with parts.

        Memoised, as consecutive plans often agree.
        """
        key = numbers.tobytes()
        if key not in self._saved:
            costs = map(self._table.costs.__getitem__, numbers.tolist())
            self._saved[key] = self.combining.saved(part for cost in costs for part in cost.parts)
        return self._saved[key]

    def _changes(self, base: np.ndarray, of_base: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the difference array of live bytes by position for plans with these numbers,
        derived from that of other plans.

        Bytes are whole numbers, so the result does not depend on the order of addition.
        """
        table, differ = self._table, (base != numbers).nonzero()[0]
        old, new = base[differ], numbers[differ]
        found = of_base.copy()
        rows = np.concatenate([table.copies[new], table.copies[old]])
        table.buffers.add(found, rows, np.repeat([1.0, -1.0], len(differ)))
        self.memory.kept.add(found, differ, table.kept[new] - table.kept[old])
        return found

    def settle(self, lowering: Lowering, choose: bool = True) -> tuple[Lowering, Estimate]:
        """Returns a lowering that gathers again as `cost` chooses, and its full estimate."""
        cost = self.cost(lowering, choose=choose)
        return lowering.regathering(cost.regathered), self.estimate(cost, lowering)

    def estimate(self, cost: Cost, lowering: Lowering) -> Estimate:
        """Returns the full estimate of a cost, with the traffic of the whole program."""
        traffic: dict[_Kind, Traffic] = {}
        for index, step, windows in lowering.regathering(cost.regathered).steps():
            if step.is_collective:
                times = sum(window.runs for window in windows) * self._times[index]
                key: _Kind = (step.kind, self.mesh.axis_names(step.axes))
                seconds = times * float(self._link_seconds(step).sum())
                _add(traffic, key, Traffic(times, times * step.bytes, seconds))
        for index in self._with_inside:
            for key, inside in self._inside(index, lowering.forms[index]):
                _add(traffic, key, inside)
        return Estimate(
            cost.time.compute_time,
            cost.time.exposed_time,
            cost.time.link_times,
            round(cost.peak),
            round(self.memory.arguments(cost.kept)),
            self.memory.constants,
            self.capacity,
            bool(cost.regathered),
            traffic,
            round(self.memory.with_host([plan.layout for plan in lowering.plans])),
            self.offload.traffic(lowering.forms),
        )

    def combined(self, lowering: Lowering, estimate: Estimate) -> Mapping[_Kind, Together]:
        """Returns the collectives of a lowering as its step time counts them: after a compiler has
        combined them, by kind and axes as in the estimate's traffic."""
        return self.combining.combined(self.cost(lowering).parts, estimate.traffic)

    def _waiting(self, forms: Sequence[OpForm]) -> float:
        """Returns the seconds of all collectives inside manual computations."""
        total = 0.0
        for index in self._with_inside:
            form = forms[index]
            if form not in self._inside_seconds:
                inside = self._inside(index, form)
                self._inside_seconds[form] = sum(traffic.seconds for _, traffic in inside)
            total += self._inside_seconds[form]
        return total

    def _inside(self, index: int, form: OpForm) -> list[tuple[_Kind, Traffic]]:
        """Returns the traffic inside all members of an operation class, under a form."""
        found, op = [], self.graph.ops[index]
        for own in collectives_inside(op.op, form, self.mesh):
            axes = tuple(self.mesh.axis(name) for name in own.axes)
            once = self.interconnect.collective_seconds(own.kind, axes, own.bytes)
            times = own.times * sum(self.graph.program.operations[m].times for m in op.members)
            found.append(((own.kind, own.axes), Traffic(times, times * own.bytes, times * once)))
        return found

    def _number(self, index: int, plan: ValuePlan) -> int:
        """Adds the cost of a plan that is not known yet to the table, and returns its number."""
        kept = self.memory.bytes(index, plan.layout)
        copies = tuple(self.memory.copies(index, plan, Between.NONE))
        if plan.steps or plan.reshards or copies:
            row = self._row(copies)
            cost = self._plan(index, plan, kept, copies)
            again = tuple(self._again(index, plan, cost))
            return self._table.add(dataclasses.replace(cost, again=again), row)
        if kept not in self._unmoved:
            self._unmoved[kept] = self._table.add(self._table.costs[0].keeping(kept))
        return self._unmoved[kept]

    def _row(self, copies: Sequence[Copies]) -> int:
        """Returns the table row with the memory changes of some buffers."""
        return self._table.buffers.append(*self.memory.changes(copies)) if copies else 0

    def _plan(
        self,
        index: int,
        plan: ValuePlan,
        kept: float,
        copies: tuple[Copies, ...],
        between: Between = Between.NONE,
    ) -> PlanCost:
        """Returns the cost of a plan, given the stored bytes of a shard, and other buffers."""
        count = self._times[index]
        overlapped, exposed = self._overlapped[index], 0.0
        compute = count * self._written(index, plan)
        hidden, parts, inside = self._idle, list[Part](), list[Inside | None]()
        if plan.steps:
            time, waiting = (count * seconds for seconds in self.links_seconds(plan.steps))
            exposed = float(waiting.sum() + time.sum() * (1 - overlapped))
            hidden = time * overlapped
            parts += self._parts(index, plan.steps, overlapped)
            inside.append(self.loops.move(index, (), plan.steps, time))
        for need, steps in plan.reshards:
            users = tuple(i for i, n in enumerate(plan.needs) if n == need)
            first = self.hidden_share(index, plan, need)
            compute += count * len(users) * self._read(index, steps)
            windows = plan.windows(self.graph.values[index], need, between)
            for window in windows:
                times = count * window.runs
                time, waiting = (times * seconds for seconds in self.links_seconds(steps))
                exposed += float(waiting.sum() + time.sum() * (1 - first))
                hidden = hidden + time * first
                if window.body:
                    of = self._users(index, users, window, between)
                    inside.append(self.loops.move(index, of, steps, time * first, window.body))
                elif window == windows[0]:  # no compiler combines what is gathered again
                    parts += self._parts(index, steps, first)
                    inside.append(self.loops.move(index, users, steps, time))
        return PlanCost(
            kept,
            True,
            compute,
            exposed,
            tuple(hidden.tolist()),
            copies,
            (),
            tuple(parts),
            tuple(filter(None, inside)),
        )

    def _users(
        self, index: int, users: Sequence[int], window: Window, between: Between
    ) -> tuple[int, ...]:
        """Returns which of some uses of a value class belong to a use window."""
        uses = self.graph.values[index].uses
        return tuple(i for i in users if uses[i].windows[between] == window)

    def _again(self, index: int, plan: ValuePlan, once: PlanCost) -> Iterator[Again]:
        """Yields the ways to gather a value class again, given the cost of keeping its copies."""
        value, needs = self.graph.values[index], [need for need, _ in plan.reshards]
        known = len(needs)
        for between in list(Between)[1:]:
            runs = [plan.runs(value, need, between) for need in needs]
            if sum(runs) <= known:
                continue
            known, number = sum(runs), 0
            copies = tuple(self.memory.copies(index, plan, between))
            row = self._row(copies)
            if between.in_loops:
                cost = self._plan(index, plan, once.kept, copies, between)
                number = self._table.add(cost, row)
                exposed = cost.exposed - once.exposed
                hidden = np.array(cost.hidden) - np.array(once.hidden)
            else:
                exposed, hidden = self._more(index, plan, runs)
            yield Again(between, exposed, tuple(hidden.tolist()), copies, row, number)

    def _more(self, index: int, plan: ValuePlan, runs: Sequence[int]) -> tuple[float, np.ndarray]:
        """Returns the seconds of gathering a value class as often as this for each need, beyond
        once: those that compute waits for, and the hidden ones on each link."""
        exposed, hidden = 0.0, self._idle
        for (need, steps), times in zip(plan.reshards, runs, strict=True):
            count, first = self._times[index], self.hidden_share(index, plan, need)
            time, waiting = (count * seconds for seconds in self.links_seconds(steps))
            exposed += (times - 1) * float(waiting.sum() + time.sum() * (1 - first))
            hidden = hidden + (times - 1) * (time * first)
        return exposed, hidden

    def _written(self, index: int, plan: ValuePlan) -> float:
        """Returns the seconds of writing values that move, and of reading their sums, beyond what
        kernels do anyway."""
        ways = [plan.steps, *(steps for _, steps in plan.reshards)]
        moving = [steps for steps in ways if any(step.is_collective for step in steps)]
        if not moving:
            return 0.0
        written = float(self._made[index] * moving[0][0].before.bytes / self.compute.bandwidth)
        moved = {need for need, _ in plan.reshards}
        kept = sum(need not in moved for need in plan.needs)
        return written + kept * self._read(index, plan.steps)

    def _read(self, index: int, steps: Sequence[Step]) -> float:
        """Returns the seconds of reading a moved value once, beyond what kernels read anyway."""
        if not any(step.is_collective for step in steps):
            return 0.0
        before, after = steps[0].before.bytes, steps[-1].after.bytes
        read = self._made[index] * after + self._named[index] * max(after - before, 0)
        return float(read / self.compute.bandwidth)

    def least(self, step: Step, combined: bool) -> tuple[float, float]:
        """Returns lower bounds on the seconds that a step of one value adds: exposed, and hidden.

        Sums that are combined with others leave out their latency. Other moves leave it out
        wherever the compiler may combine them.
        """
        beside, waiting = self.links_seconds((step,))
        exposed, hidden = float(waiting.sum()), float(beside.sum())
        latency = 0.0
        if combined or not step.collective.reduces:
            latency = sum(seconds for _, seconds in self.combining.latencies(step))
        exposed -= latency
        if latency and step.kind in self.hardware.overlapped:
            after_launch = max(latency - self.interconnect.launch(step.axes), 0.0)
            exposed, hidden = exposed + after_launch, hidden - after_launch
        return exposed + hidden, exposed

    def moved_seconds(self, index: int) -> tuple[float, float]:
        """Returns seconds per byte for a value class that moves: per byte written before or read
        after, for members that kernels do not store; and per gathered byte, for members that are
        other names."""
        share = self._made[index], self._named[index]
        return share[0] / self.compute.bandwidth, share[1] / self.compute.bandwidth

    def times(self, index: int) -> int:
        """Returns how many times per step the members of a value class are made, together."""
        return self._times[index]

    def sums_hidden(self, index: int) -> float:
        """Returns the share of a value class's members whose reductions overlap with other work."""
        return self._overlapped[index]

    def use_hidden(self, index: int, place: int) -> float:
        """Returns the share of a value class's members whose moves for one use are hidden."""
        return self._prefetched[self._first_use[index] + place]

    def hidden_share(self, index: int, plan: ValuePlan, need: Need | None) -> float:
        """Returns the share of a value class's members whose moves for a need overlap with other
        work. Without a need, the moves are those to the stored layout."""
        if need is None:
            return self._overlapped[index]
        first = self._first_use[index]
        return min(self._prefetched[first + i] for i, n in enumerate(plan.needs) if n == need)

    def _parts(self, index: int, steps: Sequence[Step], hidden: float) -> Iterator[Part]:
        for step in steps:
            yield from self.combining.parts(index, step, hidden)

    def links_seconds(self, steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the seconds of steps on each link: those that can overlap with other work, and
        those that cannot.

        Overlapping collectives still have to be launched: compute waits for each launch.
        """
        beside, waiting = self._idle, self._idle
        for step in steps:
            time = self._link_seconds(step)
            share = 1.0
            if step.kind in self.hardware.overlapped and step.is_collective:
                total = float(time.sum())  # nothing along axes of one device
                share = min(1.0, self.interconnect.launch(step.axes) / total) if total else 1.0
            beside, waiting = beside + (1 - share) * time, waiting + share * time
        return beside, waiting

    def _link_seconds(self, step: Step) -> np.ndarray:
        known = self._seconds.get(step)
        if known is None:
            known = self._idle.copy()
            for link, seconds in self.interconnect.step_by_link(step):
                known[link] += seconds
            self._seconds[step] = known
        return known


def _add(traffic: dict[_Kind, Traffic], kind: _Kind, more: Traffic) -> None:
    so_far = traffic.get(kind, Traffic(0, 0, 0.0))
    traffic[kind] = Traffic(
        so_far.count + more.count, so_far.bytes + more.bytes, so_far.seconds + more.seconds
    )
