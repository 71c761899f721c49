"""The order in which kernels run, and when values are made and read in it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cached_property

from partita.cost.kernels.fusion import Fusion
from partita.program.ir import Value
from partita.program.op_traits import CARRY


class KernelOrder:
    """When values are made and read, as positions in the order in which kernels run."""

    def __init__(self, fusion: Fusion, prefetch: int, zeros_first: bool = False) -> None:
        self.program = fusion.program
        self._in_place = fusion.in_place
        self._prefetch = prefetch
        self._zeros_first = zeros_first
        operations, self._order = self.program.operations, fusion.order
        self._ends = [0] * len(self.program.regions)
        self._starts = [len(fusion.order)] * len(self.program.regions)
        for kernel, position in fusion.order.items():
            for region in self.program.around(operations[kernel].region):
                self._ends[region] = max(self._ends[region], position)
                self._starts[region] = min(self._starts[region], position)
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._read: dict[int, int] = {}
        """Position until which operands of an operation are kept: a kernel that does nothing takes
        over the buffer that it names."""
        for op, kernels in fusion.inside.items():
            positions = [fusion.order[k] for k in kernels]
            self._first[op], self._last[op] = min(positions), max(positions)
            home = operations[op].region
            self._read[op] = max(
                self._until(home, operations[k].region, fusion.order[k] - (k in fusion.free))
                for k in kernels
            )

    def first(self, op: int) -> int:
        """Returns the position at which an operation is first computed."""
        return self._first.get(op, 0)

    def prefetched_at(self, value: int, op: int) -> int:
        """Returns the position at which a value is prefetched for an operation: a number of
        products before it, in the same region, if the value is ready then."""
        at = self.first(op)
        products = self._products.get(self.program.operations[op].region, [])
        earlier = bisect.bisect_left(products, at)
        sent = products[max(earlier - self._prefetch, 0)] if earlier else at
        return min(max(sent, self._ready[value] + 1), at)

    @cached_property
    def _ready(self) -> list[int]:
        """Position at which each value is made; if not stored, that of its last input."""
        ready = [-1] * len(self.program.values)
        for op in self.program.operations:
            inputs = max((ready[v] for v in op.operands), default=-1)
            for v in op.results:
                ready[v] = self._order.get(op.index, inputs)
        return ready

    @cached_property
    def _products(self) -> dict[int, list[int]]:
        """Positions at which products are computed, in order, by region."""
        found: dict[int, list[int]] = {}
        for op in self.program.operations:
            if op.traits.product and op.index in self._first:
                found.setdefault(op.region, []).append(self._first[op.index])
        return {region: sorted(positions) for region, positions in found.items()}

    def birth(self, value: Value) -> int | None:
        """Returns the position at which a value's buffer is allocated; None if it shares another's.

        A carried value takes over the initial value's buffer when the loop starts, and hands its
        own over when the loop ends; the condition and the body see the same one.
        """
        return 0 if self._zeros_first and self._from_nothing(value) else self._made(value)

    def _from_nothing(self, value: Value) -> bool:
        """Returns whether a value's buffer starts out constant-like, such as the zeros that a loop
        or a scatter then updates."""
        assert value.producer is not None
        op = self.program.operations[value.producer]
        if op.region:
            return False
        return op.zero_init if op.traits.scatters else value.index in self._nothing

    @cached_property
    def _nothing(self) -> set[int]:
        """Values that only say which elements they have, constant-like ones, and read none."""
        found = set[int]()
        for op in self.program.operations:
            if op.traits.read_through and found.issuperset(op.operands):
                found.update(op.results)
        return found

    def _made(self, value: Value) -> int | None:
        """Returns the position of the kernel that makes a value, see `birth`."""
        assert value.producer is not None
        at = self._order.get(value.producer, self._last.get(value.producer, 0))
        if self.program.operations[value.producer].kind != CARRY:
            return at
        return (None, at + 1, self._loop_end(value.producer) + 1)[value.position]

    def loop_around(
        self, value: Value, uses: Sequence[Sequence[tuple[int, int]]]
    ) -> tuple[int, int] | None:
        """Returns the first and last position in the loop around a value, if that only becomes part
        of the stacks that the loop makes; else None.

        Args:
          value: any value that is made.
          uses: of all values.
        """
        assert value.producer is not None
        operations = self.program.operations
        region, rest = operations[value.producer].region, [value.index]
        if not self.program.regions[region].repeats:
            return None
        while rest:
            for use, number in uses[rest.pop()]:
                op = operations[use]
                if op.traits.fusible and op.region == region:
                    rest += op.results
                elif not op.traits.writes_window or number != 1:
                    return None
        return self.during(region)

    def since_last_loop(self, region: int, uses: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Returns the first and last position at which a loop keeps what some operations read: from
        the end of the last loop before it that reads it, or its own start, to its end."""
        start, end = self.during(region)
        others = {self.program.operations[op].region for op, _ in uses}
        before = [self._ends[r] for r in others if r and self._ends[r] < start]
        return max((at + 1 for at in before), default=start), end

    def during(self, region: int) -> tuple[int, int]:
        """Returns the first and the last position inside a region."""
        return self._starts[region], self._ends[region]

    def reduced(self, value: Value, uses: Sequence[tuple[int, int]]) -> int:
        """Returns the position at which a value that is made in partial sums is reduced.

        A loop between there and the first use runs first. A compiler reduces as late as it can, to
        overlap the reduction with other work, and does not split loops for that.
        """
        at = self._made(value) or 0
        assert value.producer is not None
        home = self.program.operations[value.producer].region
        first = min((self.first(op) for op, _ in uses), default=at)
        return max(
            (
                end
                for region, start, end in zip(
                    self.program.regions, self._starts, self._ends, strict=True
                )
                if region.repeats and region.parent == home and at < start <= end < first
            ),
            default=at,
        )

    def read(self, value: int, op: int, number: int, body: int = 0) -> int:
        """Returns the last position at which a value is kept for a read. A read inside loops keeps
        it until they end; that of a copy which the body of a loop makes, until those inside do."""
        operation = self.program.operations[op]
        if operation.kind == CARRY and number == 1:
            return self._loop_end(op)
        at = self._read.get(op, 0)
        if operation.region:
            producer = self.program.values[value].producer
            home = 0 if producer is None else self.program.operations[producer].region
            if body:
                home = body
            elif producer is not None and self._carried(self.program.values[value]):
                home = operation.region  # made anew each time around
            at = self._until(home, operation.region, at)
        if (operation.traits.writes_window and number == 0) or (op, number) in self._in_place:
            return at - 1  # updated in place
        return at

    def _carried(self, value: Value) -> bool:
        """Returns whether a value is carried by a loop, as seen by its body."""
        assert value.producer is not None
        return self.program.operations[value.producer].kind == CARRY and value.position == 1

    def _until(self, home: int, region: int, at: int) -> int:
        """Returns the last position at which a value of one region is kept for an inner read."""
        if home == region:
            return at
        around = self.program.around(home)
        for each in self.program.around(region):
            if each in around:
                break
            if self.program.regions[each].repeats:
                at = max(at, self._ends[each])
        return at

    def _loop_end(self, carry: int) -> int:
        last = self.program.operations[self.program.ends[carry]]
        inside = self.program.around(last.region)
        around = self.program.around(self.program.operations[carry].region)
        outermost = [region for region in inside if region not in around][-1]
        return self._ends[outermost]
