"""Finds collectives that move the same data, so that a compiler may merge them into one."""

from __future__ import annotations

from typing import Any

from partita.emit.spmd import operations_of
from partita.program.ir import Operation
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import inside
from partita.stablehlo import mlir


def moved_alike(spmd: SpmdProgram) -> dict[int, int]:
    """Maps the result of every move to the first result of an equal move, or to itself.

    Moves are equal if the same operations compute their operands from the same inputs. Sums that
    differ only in factors common to all summands count as equal: the compiler factors those out.
    """
    with mlir.context():
        module = mlir.parse(spmd.program.module)
        numbering = _Numbering(spmd, operations_of(spmd, module))
        for item in inside(spmd.instructions):
            if isinstance(item, Run):
                numbering.run(item)
            elif isinstance(item, Reshard) and not item.again:
                numbering.move(item)
    return numbering.moved


class _Numbering:
    """Numbers of buffers: equal ones hold the same. A number is the first buffer that has it."""

    def __init__(self, spmd: SpmdProgram, operations: dict[int, Any]) -> None:
        self._spmd = spmd
        self._operations = operations
        """MLIR operations by number; they determine completely what an operation does."""
        self._first: dict[tuple[object, ...], int] = {}
        self._same: dict[int, int] = {}
        self._sums: dict[int, int] = {}
        """First sum that differs only in common factors, by sum."""
        self._makers: dict[int, Run] = {}
        self.moved: dict[int, int] = {}

    def run(self, item: Run) -> None:
        """Numbers what an operation makes."""
        op, view = self._spmd.program.operations[item.op], self._operations[item.op]
        inputs = tuple(map(self._number, item.inputs))
        does = tuple((name, view.attributes[name]) for name in view.attributes)
        for place, buffer in enumerate(item.outputs):
            self._makers[buffer] = item
            type_ = self._spmd.buffers[buffer].type
            if op.traits.reverses and all(type_.shape[d] == 1 for d in _reversed(view)):
                self._same[buffer] = inputs[0]
            elif op.traits.reduces or not view.regions:
                key = (op.kind, op.combine, does, inputs, place, type_)
                self._same[buffer] = self._first.setdefault(key, buffer)
        if op.traits.reduces and op.combine == "add" and len(item.outputs) == 1:
            self._sum(op, item, inputs[1])

    def move(self, item: Reshard) -> None:
        """Numbers the result of a move."""
        number = self._number(item.input)
        self._same[item.output] = self._first.setdefault((item.step, number), item.output)
        source = self.moved.get(item.input, self._sums.get(item.input, number))
        self.moved[item.output] = self._first.setdefault(("moved", item.step, source), item.output)

    def _number(self, buffer: int) -> int:
        return self._same.get(buffer, buffer)

    def _sum(self, op: Operation, item: Run, start: int) -> None:
        (buffer,), summed = item.outputs, _summed(op)
        factors = tuple(sorted(map(self._number, self._factors(item.inputs[0], summed))))
        if factors:
            key = ("sum", factors, summed, start, self._spmd.buffers[buffer].type)
            self._sums[buffer] = self._first.setdefault(key, buffer)

    def _factors(self, buffer: int, summed: tuple[int, ...]) -> list[int]:
        """The buffers whose product is summed, without those that are the same for all summands."""
        item = self._makers.get(buffer)
        if item is None:
            return [buffer]
        op = self._spmd.program.operations[item.op]
        if op.traits.multiplicative:
            return [f for b in item.inputs for f in self._factors(b, summed)]
        if op.traits.broadcasts:
            varying = {factor for dimension in op.rule.operands[0] for factor in dimension}
            if all(varying.isdisjoint(op.rule.results[0][d]) for d in summed):
                return []
        return [buffer]


def _reversed(view: Any) -> list[int]:
    """The dimensions that an MLIR `reverse` turns around."""
    return list(view.attributes["dimensions"])


def _summed(op: Operation) -> tuple[int, ...]:
    """The dimensions that a sum runs over."""
    kept = {factor for dimension in op.rule.results[0] for factor in dimension}
    return tuple(d for d, f in enumerate(op.rule.operands[0]) if kept.isdisjoint(f))
