"""Facts for the cost model that do not depend on a sharding: when and how often things happen."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from partita.analysis import Analysis
from partita.cost.devices.hardware import Hardware
from partita.cost.kernels.bf16_widening import widened
from partita.cost.kernels.fusion import Fusion, analyse_fusion
from partita.cost.kernels.layers import Layers
from partita.cost.kernels.order import KernelOrder
from partita.program.ir import Operation, Value, bits
from partita.program.op_traits import BARRIER, CARRY

LEFT = 2
"""Number of the `CARRY` result that a loop leaves behind."""


class Timing:
    """Kernels, lifetimes and slack of a program, computed once for all its class graphs."""

    def __init__(self, analysis: Analysis, hardware: Hardware) -> None:
        self.analysis = analysis
        self.program = analysis.program
        self.fusion: Fusion = analyse_fusion(analysis.program, analysis.uses, hardware.kernels)
        self.order = KernelOrder(
            self.fusion, int(hardware.prefetch.value), hardware.kernels.zeros_first
        )
        self._layers_apart = hardware.kernels.layers_apart
        self._on_tiles = hardware.vector_unit is not None
        self._widens = hardware.kernels.widens_bf16
        self.steps = len(self.fusion.kernels) + 2
        """Number of positions in the order, those of arguments and results included."""
        self._overlap_window = hardware.overlap_window.value

    @cached_property
    def lifetimes(self) -> np.ndarray:
        """Lifetimes of values with their own buffer, `[N, 3]`: number, first and last position."""
        program, order = self.program, self.order
        aliased = {program.results[r] for r in program.aliases.values()}
        results = frozenset(program.results)
        constants = {v for c in program.constants if not c.hoisted for v in c.values}
        rows = []
        for value in program.values:
            stored = self.fusion.stored[value.index]
            if value.producer is None or not stored or value.index in aliased:
                continue
            birth = order.birth(value)
            if birth is None:
                continue
            uses = self.analysis.uses[value.index]
            reads = (
                order.read(value.index, *use)
                for use in uses
                if self.fusion.reads_memory(value.index, use[0])
            )
            death = self.steps - 1 if value.index in results else max(reads, default=birth)
            if value.index in constants:
                birth = death  # the shard of a constant that is split is cut out when it is read
            rows.append((value.index, birth, max(birth, death)))
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def narrowed(self) -> list[tuple[int, int, int, str]]:
        """Stacks of which a loop reads layers in a narrower type only: number, first and last
        position, and that type.

        All layers are converted together, before the loop.
        """
        program, uses = self.program, self.analysis.uses
        found: dict[tuple[int, str], tuple[int, int]] = {}
        if self._layers_apart:
            return []
        for op in program.operations:
            if not op.traits.converts or not program.regions[op.region].repeats:
                continue
            part, cut = op.operands[0], False
            while len(uses[part]) == 1:
                producer = program.values[part].producer
                if producer is None:
                    break
                maker = program.operations[producer]
                traits, barrier = maker.traits, maker.kind == BARRIER
                passes = traits.reads_window or traits.rearranges or barrier
                if maker.region != op.region or not passes:
                    break
                cut = cut or traits.reads_window
                part = maker.operands[program.values[part].position if barrier else 0]
            made, read = program.values[op.results[0]].type.dtype, program.values[part]
            outside = read.producer is None or program.operations[read.producer].region != op.region
            if cut and outside and bits(made) < bits(read.type.dtype):
                start, end = self.order.during(op.region)
                known = found.get((part, made), (start, end))
                found[part, made] = min(known[0], start), max(known[1], end)
        return [(value, *span, dtype) for (value, dtype), span in found.items()]

    @cached_property
    def widened(self) -> list[tuple[int, int, int, str]]:
        """Values that are stored in a wider type than the program says, see `bf16_widening`."""
        if not self._widens:
            return []
        uses, lifetimes = self.analysis.uses, self.lifetimes.tolist()
        return widened(self.fusion, uses, lifetimes, self.order.read)

    @cached_property
    def waited_for(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Values that are kept longer, because a product of them waits for the scatter into its
        result. Each has its number, the extra first and last position, and the dimensions that
        another product sums over.

        If one of those dimensions is sharded, that other product is reduced over devices, and the
        first one is made meanwhile; then nothing waits.
        """
        operations, fusion = self.program.operations, self.fusion
        deaths = {value: end for value, _, end in self.lifetimes.tolist()}
        births = dict.fromkeys(range(len(self.program.values)), 0)
        births |= {value: start for value, start, _ in self.lifetimes.tolist()}
        found = []
        for kernel, scatter in fusion.waits.items():
            if not operations[kernel].traits.product and kernel not in fusion.called:
                continue
            end = max(fusion.order[scatter], *map(births.__getitem__, fusion.inputs(scatter))) - 1
            for value in fusion.inputs(kernel):
                start = deaths.get(value, self.steps) + 1
                if start <= end:
                    summed = {
                        dim
                        for use, number in self.analysis.uses[value]
                        if use != kernel
                        for dim in _summed(operations[use], number)
                    }
                    found.append((value, start, end, tuple(sorted(summed))))
        return found

    @cached_property
    def accesses(self) -> list[tuple[int, ...]]:
        """Memory accesses of every operation: the number of kernels that read each operand there,
        and for each result, 1 if it is stored."""
        fusion, operations = self.fusion, self.program.operations
        free = fusion.free | {op.index for op in operations if op.kind == CARRY}
        reads = [[0] * len(op.operands) for op in operations]
        for kernel, pairs in fusion.reads.items():
            for op, number in pairs if kernel not in free else ():
                reads[op][number] += 1
        stores = fusion.reads.keys() - free - self.layers.in_place
        if self._on_tiles:
            stores -= self.layers.unwritten
        for op in self.layers.in_place:
            reads[op][0] = 0
        return [
            (*read, *(int(op.index in stores and fusion.stored[v]) for v in op.results))
            for op, read in zip(operations, reads, strict=True)
        ]

    @cached_property
    def layers(self) -> Layers:
        """Copies of layers as loops read and write stacks."""
        return Layers(self.program, self.analysis.uses)

    @cached_property
    def op_times(self) -> np.ndarray:
        """Number of runs of every operation per step."""
        return np.array([op.times for op in self.program.operations], dtype=np.float64)

    @cached_property
    def value_times(self) -> np.ndarray:
        """Number of times per step that every value is defined, and so moved."""
        return np.array([self.program.defined_times(v.index) for v in self.program.values])

    @cached_property
    def unstored(self) -> tuple[np.ndarray, np.ndarray]:
        """Masks of two kinds of values that are not stored: those that must be written to be moved,
        and those that are only other names of values in memory."""
        program, stored = self.program, self.fusion.stored
        made, named = (np.zeros(len(program.values), dtype=bool) for _ in range(2))
        for op in program.operations:
            same = op.traits.renames and (stored[op.operands[0]] or named[op.operands[0]])
            for v in op.results:
                if not stored[v]:
                    (named if same else made)[v] = True
        return made, named

    @cached_property
    def sums_after(self) -> list[int]:
        """Number of operations that may sum over devices on the longest path from every value to
        the end of the program. In a loop, to the end of the body."""
        found = [0] * len(self.program.values)
        for op in reversed(self.program.operations):
            at = _sums(op) + max((found[v] for v in op.results), default=0)
            for v in op.operands:
                found[v] = max(found[v], at)
        return found

    @cached_property
    def sums_before(self) -> list[int]:
        """Number of operations that may sum over devices on the longest path to every value."""
        found = [0] * len(self.program.values)
        for op in self.program.operations:
            at = _sums(op) + max((found[v] for v in op.operands), default=0)
            for v in op.results:
                found[v] = at
        return found

    @cached_property
    def overlapped_sums(self) -> np.ndarray:
        """Mask of the values whose reduction, after they are made, overlaps with other work.

        A reduction must be done when something needs its result. It overlaps if more operations
        than the overlap window are in between.
        """
        program = self.program
        made = [self._made_at(value) for value in program.values]
        slack: np.ndarray = np.array(self._needed) - np.array(made) > self._overlap_window
        return slack

    def _made_at(self, value: Value) -> int:
        """Returns the operation that makes a value: for results of a loop, its last one. Arguments
        count as made at the end, so that nothing comes after them."""
        operations = self.program.operations
        if value.producer is None:
            return len(operations)
        if operations[value.producer].kind == CARRY and value.position == LEFT:
            return self.program.ends[value.producer]
        return value.producer

    @cached_property
    def _needed(self) -> list[int]:
        """First operation that needs each value. Cheap ones do not count, since they can be moved
        along; nor does work in host memory."""
        program = self.program
        end = len(program.operations)
        needed = [end] * len(program.values)
        for op in reversed(program.operations):
            at = min((needed[v] for v in op.results), default=end)
            passes = op.traits.fusible or (
                op.kind != CARRY and not program.hosted.isdisjoint(op.results)
            )
            for number, v in enumerate(op.operands):
                reading = at if passes else program.read_at(op.index, number)
                needed[v] = min(needed[v], reading)
        return needed

    @cached_property
    def moves_to_host(self) -> dict[int, bool]:
        """Operations that move a value to host memory or back, each True if that overlaps with
        other work. Values that come back can be fetched as soon as they are there."""
        program, needed = self.program, self._needed
        found = {}
        for op in program.operations:
            there = {v in program.hosted for v in (*op.operands, *op.results)}
            if op.memory and len(there) > 1:
                since = self._ready[op.operands[0]]
                found[op.index] = needed[op.results[0]] - since > self._overlap_window
        return found

    @cached_property
    def prefetched(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, place among the value's uses, and overlap for every use. A move overlaps with
        other work if the value is ready before the overlap window."""
        program, ready = self.program, self._ready
        rows = [
            (value, place, program.read_at(*use) - ready[value] > self._overlap_window)
            for value, uses in enumerate(self.analysis.uses)
            for place, use in enumerate(uses)
        ]
        values, places, hidden = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return values, places, hidden

    @cached_property
    def _ready(self) -> list[int]:
        """Operation after which each value is available, cheap ones left out."""
        program = self.program
        ready = [0] * len(program.values)
        for op in program.operations:
            inputs = max((ready[v] for v in op.operands), default=0)
            at = inputs if op.traits.fusible else op.index
            for v in op.results:
                ready[v] = at
            if op.index in program.ends:
                ready[op.results[1]] = self._starts.get(self._body(op.index), op.index)
                ready[op.results[LEFT]] = program.ends[op.index]
        return ready

    def _body(self, carry: int) -> int:
        """Returns the region of the body of a loop that carries something."""
        return self.program.operations[self.program.ends[carry]].region

    @cached_property
    def _starts(self) -> dict[int, int]:
        """First operation of every region that takes time; cheap ones can be anywhere."""
        found: dict[int, int] = {}
        for op in self.program.operations:
            if not op.traits.fusible and op.kind != CARRY and not op.traits.reads_window:
                found.setdefault(op.region, op.index)
        return found


def _sums(op: Operation) -> bool:
    """Returns whether devices may have partial sums of an operation's result."""
    return any(factor.kind == "reduction" for factor in op.rule.factors)


def _summed(op: Operation, number: int) -> list[int]:
    """Returns the dimensions of an operand over which a product sums."""
    if not op.traits.product:
        return []
    made = {factor for dim in op.rule.results[0] for factor in dim}
    return [dim for dim, of in enumerate(op.rule.operands[number]) if not made.intersection(of)]
