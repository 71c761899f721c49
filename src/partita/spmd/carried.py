"""Sums that loops carry: accumulators and stacks that start from zeros, and where they lead.

Gradient accumulation is a loop over micro-batches that adds to a pytree of gradients. Layers may be
a loop inside of it, whose backward pass writes the gradient of each layer into a stack:

    outer loop, total = zeros[L, ...]
      inner loop, stack = zeros[L, ...]
        stack[layer] = gradient        a sum over the axes that shard the batch
      total = total + stack

A loop that only adds to a value, or only replaces parts of it, maps unreduced values to an
unreduced result, since it starts from zeros. So `total` is reduced once, after the outer loop,
instead of every gradient in the inner one. It has the shape of the reduced stack, hence takes no
more memory.

A stack that is written in a loop inside no other loop is reduced slice by slice: that sends as many
bytes, and the collective of a layer can run while the next one computes. Neither is a stack kept
unreduced of which the loop writes only a part: reducing it would send the rest, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.analysis import ClassGraph, OpClass, Use, ValueClass
from partita.program.ir import Operation
from partita.program.op_traits import CARRY

SEEN, LEFT = 1, 2
"""Numbers of the `CARRY` results that the body sees, and that the loop leaves behind."""


class CarriedSums:
    """Finds the values of one graph that loops carry as sums, and the way to them."""

    def __init__(self, graph: ClassGraph, in_time: bool = False) -> None:
        """Finds the operations that write stacks.

        Args:
          graph: the folded program.
          in_time: whether axes are time, so that all of it runs in a loop over them.
        """
        self.graph, self.in_time = graph, in_time
        self.writes = frozenset(
            write for op in graph.ops if op.op.kind == CARRY for write in self._writes(op)
        )
        """Operation classes that write a part of a stack whose parts may be unreduced."""

    def passes(self, use: Use) -> bool:
        """Returns whether an operation maps an unreduced operand to an unreduced result."""
        op = self.graph.ops[use.op]
        traits = op.op.traits
        if traits.writes_window:
            return use.op in self.writes and traits.joint(use.number)
        if traits.broadcasts or traits.concatenates:
            return self._makes_a_slice(op)
        return traits.additive or use.number in traits.linear

    def enlarges(self, use: Use) -> bool:
        """Returns whether a result has more bytes than the operands that make it unreduced."""
        op = self.graph.ops[use.op].op
        joint = [v for n, v in enumerate(op.operands) if n == use.number or op.traits.joint(n)]
        values = self.graph.program.values
        return values[op.results[0]].type.bytes > sum(values[v].type.bytes for v in joint)

    def _makes_a_slice(self, op: OpClass) -> bool:
        """Returns whether an operation only puts together what is written into stacks.

        It adds a dimension of size 1, or concatenates the slices of an unrolled loop.
        """
        uses = [use for v in op.results[0] for use in self.graph.values[v].uses]
        return bool(uses) and all(
            use.number == 1 if use.op in self.writes else self._goes_on_to_a_slice(use)
            for use in uses
        )

    def _goes_on_to_a_slice(self, use: Use) -> bool:
        user = self.graph.ops[use.op]
        traits = user.op.traits
        if user.op.kind == CARRY:  # a loop of one layer replaces the stack
            outer = self.in_time or self._is_repeated(user.op.region)
            return outer and use.number == 1 and user.op.zero_init
        return (traits.broadcasts or traits.concatenates) and self._makes_a_slice(user)

    def may_be_carried(self, value: ValueClass) -> bool:
        """Returns whether a value is carried to the next iteration, in a sum that starts from 0."""
        if value.producer is None or value.is_result or len(value.uses) != 1:
            return False
        use, maker = value.uses[0], self.graph.ops[value.producer[0]].op
        carry = self.graph.ops[use.op]
        if carry.op.kind != CARRY or use.number != 1 or not carry.op.zero_init:
            return False
        tested = any(self.graph.values[v].uses for v in carry.results[0])
        plain = maker.kind != CARRY and maker.combine in ("", "add")
        return plain and not tested and self.in_body(maker, carry.op)

    def in_body(self, op: Operation, carry: Operation) -> bool:
        """Returns whether an operation is directly in the body of the loop of a carried value."""
        region = self.graph.program.regions[op.region]
        return region.repeats and region.parent == carry.region

    def way_to_a_sum(self, op: OpClass) -> tuple[int, ...]:
        """Returns the value classes on the way from an operation to an accumulator.

        That includes those of its result. Empty if some use leads elsewhere, or to a larger value.
        """
        found: dict[int, None] = {}
        ahead = list(op.results[0])
        while ahead:
            v = ahead.pop()
            if v in found:
                continue
            found[v] = None
            value = self.graph.values[v]
            if value.is_result or len(value.uses) != 1:
                return ()
            use = value.uses[0]
            if self._accumulates(use.op):
                continue
            user = self.graph.ops[use.op]
            if user.op.kind == CARRY and self._is_written(value):
                ahead += user.results[LEFT]
            elif self.passes(use) and not self.enlarges(use):
                ahead += user.results[0]
            else:
                return ()
        return tuple(found)

    def _accumulates(self, op: int) -> bool:
        """Returns whether an operation adds to a carried value that starts from zeros."""
        return self.graph.ops[op].op.traits.additive and any(
            maker.op.kind == CARRY and maker.op.zero_init
            for classes in self.graph.ops[op].operands
            for maker in self._makers(classes)
        )

    def _is_written(self, value: ValueClass) -> bool:
        return value.producer is not None and value.producer[0] in self.writes

    def _writes(self, carry: OpClass) -> set[int]:
        """Returns the operations that an iteration writes all parts of a carried stack with.

        Empty if it is no such stack, or if its loop is in no other loop.
        """
        if not carry.op.zero_init or not (self.in_time or self._is_repeated(carry.op.region)):
            return set()
        found: set[int] = set()
        ahead = list(carry.operands[1])
        while ahead:
            v = ahead.pop()
            if v in carry.results[SEEN]:
                continue
            producer = self.graph.values[v].producer
            if producer is None or producer[0] in found:
                return set()
            write = self.graph.ops[producer[0]]
            if not write.op.traits.writes_window or not self.in_body(write.op, carry.op):
                return set()
            found.add(write.index)
            ahead += write.operands[0]
        values = self.graph.program.values
        written = sum(
            values[write.op.operands[1]].type.elements * write.op.times * len(write.members)
            for write in map(self.graph.ops.__getitem__, found)
        )
        whole = values[carry.op.results[LEFT]].type.elements
        return found if written >= whole * carry.op.times * len(carry.members) else set()

    def _is_repeated(self, number: int) -> bool:
        """Returns whether a region is in the body of a loop."""
        regions = self.graph.program.regions
        while number and not regions[number].repeats:
            number = regions[number].parent
        return regions[number].repeats

    def _makers(self, classes: tuple[int, ...]) -> Iterator[OpClass]:
        producers = (self.graph.values[v].producer for v in classes)
        return (self.graph.ops[p[0]] for p in producers if p is not None)
