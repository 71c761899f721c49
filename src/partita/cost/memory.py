"""Peak memory by liveness: arguments, stored values, gathered copies, over the kernel schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partita.analysis import ClassGraph
from partita.analysis.classes import episodes
from partita.cost.fusion import Fusion
from partita.mesh import Mesh
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
        self.steps = len(fusion.kernels) + 1
        self._first, self._last = _read_positions(fusion)
        self._position = {
            v: fusion.order[k] for k in fusion.kernels for v in program.operations[k].results
        }
        aliased = {program.results[r] for r in program.aliases.values()}
        results = frozenset(program.results)
        rows = []
        for value in program.values:
            if value.producer is None or not fusion.stored[value.index] or value.index in aliased:
                continue
            birth = self._position[value.index]
            reads = (self._last.get(op, birth) for op, _ in uses[value.index])
            death = self.steps - 1 if value.index in results else max(reads, default=birth)
            rows.append((graph.value_class[value.index], birth, max(birth, death)))
        self._class, self._birth, self._death = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        self._arguments = np.array(
            [graph.value_class[v] for v in program.arguments], dtype=np.int64
        )
        self._spans: dict[tuple[int, tuple[int, ...], bool], tuple[np.ndarray, np.ndarray]] = {}

    def bytes(self, index: int, layout: Layout) -> float:
        """Bytes of one device's piece of a value of this class."""
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
        weights = kept[self._class]
        size = self.steps + 1
        delta = np.bincount(self._birth, weights, size)
        delta -= np.bincount(self._death + 1, weights, size)
        if copies:
            amounts = np.repeat([c.bytes for c in copies], [len(c.start) for c in copies])
            delta += np.bincount(np.concatenate([c.start for c in copies]), amounts, size)
            delta -= np.bincount(np.concatenate([c.end for c in copies]) + 1, amounts, size)
        return np.cumsum(delta)

    def _births(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        key = (index, (), False)
        if key not in self._spans:
            members = self.graph.values[index].members
            at = np.array([self._position.get(m, 0) for m in members], dtype=np.int64)
            self._spans[key] = (at, at)
        return self._spans[key]

    def _span(
        self, index: int, users: tuple[int, ...], regather: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """From the first to the last of some uses, for every member (and episode)."""
        key = (index, users, regather)
        known = self._spans.get(key)
        if known is None:
            value = self.graph.values[index]
            starts, ends = [], []
            wanted = {(value.uses[i].op, value.uses[i].number) for i in users}
            for member in self.graph.values[index].members:
                uses = self.uses[member]
                numbers = episodes(uses) if regather else [0] * len(uses)
                chosen = [
                    (episode, op)
                    for episode, (op, number) in zip(numbers, uses, strict=True)
                    if (self.graph.op_class[op], number) in wanted
                ]
                for episode in sorted({n for n, _ in chosen}):
                    ops = [op for n, op in chosen if n == episode]
                    starts.append(min(self._first.get(op, 0) for op in ops))
                    ends.append(max(self._last.get(op, 0) for op in ops))
            known = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
            self._spans[key] = known
        return known


def _read_positions(fusion: Fusion) -> tuple[dict[int, int], dict[int, int]]:
    """For every operation, the first and last position at which a kernel computes it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for op, kernels in fusion.inside.items():
        positions = [fusion.order[k] for k in kernels]
        first[op], last[op] = min(positions), max(positions)
    return first, last
