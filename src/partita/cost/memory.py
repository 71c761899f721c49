"""Peak memory by liveness: arguments, constants, and over the kernel schedule stored values and
gathered copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from partita.analysis import ClassGraph
from partita.analysis.classes import episodes
from partita.cost.fusion import Fusion
from partita.mesh import Mesh
from partita.program.ir import CARRY, Value
from partita.spmd import ValuePlan
from partita.spmd.reshard import shards
from partita.tiling import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class Copies:
    """Buffers besides the kept ones: positions from `start` to `end` inclusive, `bytes` each."""

    start: np.ndarray
    end: np.ndarray
    bytes: float


class MemoryModel:
    """Liveness of one program; only sizes change from tiling to tiling."""

    def __init__(
        self, graph: ClassGraph, mesh: Mesh, fusion: Fusion, uses: list[list[tuple[int, int]]]
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.uses = uses
        program = graph.program
        self.steps = len(fusion.kernels) + 2
        self._schedule = _Schedule(fusion)
        constants = [c for c in program.constants if not c.lifted]
        self.constants = sum(c.bytes for c in constants)
        """Bytes of the constants: every device has them whole, during the whole step."""
        self._constants = frozenset(graph.value_class[v] for c in constants for v in c.values)
        aliased = {program.results[r] for r in program.aliases.values()}
        results = frozenset(program.results)
        rows = []
        for value in program.values:
            if value.producer is None or not fusion.stored[value.index] or value.index in aliased:
                continue
            birth = self._schedule.birth(value)
            if birth is None:
                continue
            reads = (self._schedule.read(value.index, *use) for use in uses[value.index])
            death = self.steps - 1 if value.index in results else max(reads, default=birth)
            if graph.value_class[value.index] in self._constants:
                birth = death  # the piece of a constant that is split is cut out when it is read
            rows.append((graph.value_class[value.index], birth, max(birth, death)))
        classes, births, deaths = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        # Row p of this matrix says how many values of each class begin, less those that end, at p.
        self._changes = csr_array(
            (
                np.repeat([1.0, -1.0], len(rows)),
                (np.concatenate([births, deaths + 1]), np.concatenate([classes, classes])),
            ),
            shape=(self.steps + 1, len(graph.values)),
        )
        self._arguments = np.array(
            [graph.value_class[v] for v in program.arguments], dtype=np.int64
        )
        self._spans: dict[tuple[int, tuple[int, ...], bool], tuple[np.ndarray, np.ndarray]] = {}

    def bytes(self, index: int, layout: Layout) -> float:
        """Bytes of one device's piece of a value of this class, constants themselves left out."""
        if index in self._constants and not any(layout):
            return 0.0
        return self.graph.values[index].value.type.bytes / shards(layout, self.mesh)

    def copies(self, index: int, plan: ValuePlan, regather: bool) -> list[Copies]:
        """Buffers that a plan needs for a value class besides those that are kept."""
        found = []
        if plan.steps:
            start, end = self._births(index)
            found.append(Copies(start, end, float(plan.steps[0].before.bytes)))
        for need, steps in plan.moves:
            users = tuple(i for i, n in enumerate(plan.needs) if n == need)
            start, end = self._span(index, users, regather)
            found.append(Copies(start, end, float(steps[-1].after.bytes)))
        return found

    def arguments(self, kept: np.ndarray) -> float:
        """Bytes of all arguments, given the bytes of a piece of each value class."""
        return float(kept[self._arguments].sum())

    def live(self, kept: np.ndarray, copies: Sequence[Copies]) -> np.ndarray:
        """Bytes alive at every position, without arguments."""
        size = self.steps + 1
        delta: np.ndarray = self._changes @ kept
        if copies:
            amounts = np.repeat([c.bytes for c in copies], [len(c.start) for c in copies])
            delta += np.bincount(np.concatenate([c.start for c in copies]), amounts, size)
            delta -= np.bincount(np.concatenate([c.end for c in copies]) + 1, amounts, size)
        return np.cumsum(delta)

    def _births(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        key = (index, (), False)
        if key not in self._spans:
            members = self.graph.values[index].members
            values = self.graph.program.values
            at = np.array([self._schedule.birth(values[m]) or 0 for m in members], dtype=np.int64)
            self._spans[key] = (at, at)
        return self._spans[key]

    def _span(
        self, index: int, users: tuple[int, ...], regather: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """From the first to the last of some uses, for every member (and episode)."""
        key = (index, users, regather)
        known = self._spans.get(key)
        program, schedule = self.graph.program, self._schedule
        if known is None:
            value = self.graph.values[index]
            starts, ends = [], []
            wanted = {(value.uses[i].op, value.uses[i].number) for i in users}
            for member in self.graph.values[index].members:
                uses = self.uses[member]
                numbers = episodes(program, uses) if regather else [0] * len(uses)
                chosen = [
                    (episode, use)
                    for episode, use in zip(numbers, uses, strict=True)
                    if (self.graph.op_class[use[0]], use[1]) in wanted
                ]
                for episode in sorted({n for n, _ in chosen}):
                    now = [use for n, use in chosen if n == episode]
                    starts.append(min(schedule.first(op) for op, _ in now))
                    ends.append(max(schedule.read(member, *use) for use in now))
            known = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
            self._spans[key] = known
        return known


class _Schedule:
    """When values are made and read, as positions in the order of the kernels."""

    def __init__(self, fusion: Fusion) -> None:
        self.program = fusion.program
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for op, kernels in fusion.inside.items():
            positions = [fusion.order[k] for k in kernels]
            self._first[op], self._last[op] = min(positions), max(positions)
        self._ends = [0] * len(self.program.regions)
        for kernel, position in fusion.order.items():
            for region in self.program.around(self.program.operations[kernel].region):
                self._ends[region] = max(self._ends[region], position)

    def first(self, op: int) -> int:
        """Where an operation is first computed."""
        return self._first.get(op, 0)

    def birth(self, value: Value) -> int | None:
        """Where a value's buffer comes into being; None if it shares another's.

        A carried value takes over the initial value's buffer when the loop starts, and hands its
        own over when the loop ends; the condition and the body see the same one.
        """
        assert value.producer is not None
        at = self._last.get(value.producer, 0)
        if self.program.operations[value.producer].kind != CARRY:
            return at
        return (None, at + 1, self._loop_end(value.producer) + 1)[value.position]

    def read(self, value: int, op: int, number: int) -> int:
        """Until where a value is kept for a read; all through the loops it is read inside of."""
        operation = self.program.operations[op]
        if operation.kind == CARRY and number == 1:
            return self._loop_end(op)
        at = self._last.get(op, 0)
        if operation.region:
            producer = self.program.values[value].producer
            home = 0 if producer is None else self.program.operations[producer].region
            if producer is not None and self.program.operations[producer].kind == CARRY:
                home = operation.region  # a carried value is made anew each time around
            around = self.program.around(home)
            for region in self.program.around(operation.region):
                if region in around:
                    break
                if self.program.regions[region].repeats:
                    at = max(at, self._ends[region])
        if operation.kind == "stablehlo.dynamic_update_slice" and number == 0:
            return at - 1  # updated in place
        return at

    def _loop_end(self, carry: int) -> int:
        last = self.program.operations[self.program.ends[carry]]
        inside = self.program.around(last.region)
        around = self.program.around(self.program.operations[carry].region)
        outermost = [region for region in inside if region not in around][-1]
        return self._ends[outermost]
