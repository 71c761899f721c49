"""Makes several dimensions of one, in every value and every operation that has it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from partita.stablehlo import rolls
from partita.stablehlo.mlir import find, hlo, ir, top_of
from partita.stablehlo.operations.letters import EDGE, PARTS, Letter, shape
from partita.stablehlo.passes.dimensions.classes import RESHAPE, around, is_structure
from partita.stablehlo.passes.dimensions.letters import letters_of, renumber


def split(sizes: dict[Any, list[tuple[int, ...]]]) -> list[tuple[Any, str]]:
    """Splits dimensions of values, and renumbers those of all operations at them.

    Args:
      sizes: for each value, the sizes that each of its dimensions becomes.

    Returns:
      The reshapes made where operations have other dimensions than values next to them, each with
      the kind of the operation.
    """
    return _Split(sizes).run() if sizes else []


class _Split:
    def __init__(self, sizes: dict[Any, list[tuple[int, ...]]]) -> None:
        self.sizes = sizes
        self.replaced: list[Any] = []
        self.made: list[tuple[Any, str]] = []
        self.known: dict[Any, Any] = {}
        """Reshape by value, new sizes and block; later operations of the block reuse it."""
        self.rolled: list[tuple[Any, int]] = []
        """Rolls, and which dimension they will roll."""
        self.counted: list[tuple[Any, int]] = []
        """Iotas, and the dimension along which each numbers elements."""

    def run(self) -> list[tuple[Any, str]]:
        """Rewrites attributes first, since that needs the old types, then types and reshapes."""
        ops = _in_order({op: None for value in list(self.sizes) for op in around(value)})
        for op in ops:
            if not is_structure(op):
                self._operation(op)
        for value, sizes in self.sizes.items():
            element = ir.RankedTensorType(value.type).element_type
            value.set_type(ir.RankedTensorType.get(list(itertools.chain(*sizes)), element))
        for op, dim in self.rolled:
            rolls.move(op, dim)
        for op, along in self.counted:
            _count(op, self.sizes[op.results[0]], along)
        for op in ops:
            if op.name == RESHAPE and op.operands[0].type == op.results[0].type:
                op.results[0].replace_all_uses_with(op.operands[0])
                self.replaced.append(op)
        for op in self.replaced:
            op.erase()
        return self.made

    def _operation(self, op: Any) -> None:
        if op.name != RESHAPE:
            self._reshape_around(op)
        if op.name == "stablehlo.iota":
            along = op.attributes["iota_dimension"].value
            if len(self.of(op.results[0])[along]) > 1:
                self.counted.append((op, along))
                self.replaced.append(op)
        if rolls.is_roll(op):
            before = self.of(op.results[0])[: rolls.place(op)[0]]
            self.rolled.append((op, sum(map(len, before))))
        made = renumber(op, self.of)
        if made != op:
            self.replaced.append(op)
            for old, new in zip(op.results, made.results, strict=True):
                self.sizes[new] = list(self.of(old))
                old.replace_all_uses_with(new)

    def of(self, value: Any) -> Sequence[tuple[int, ...]]:
        """The sizes that each dimension of a value becomes."""
        return self.sizes.get(value) or [(size,) for size in shape(value)]

    def _reshape_around(self, op: Any) -> None:
        """Puts reshapes where a value's dimensions are others than those the operation has."""
        wanted = self._wanted(op)
        for number, value in enumerate(op.operands):
            if wanted[number] != list(self.of(value)):
                key = (value, tuple(wanted[number]), op.block)
                if key not in self.known:
                    with ir.InsertionPoint(op), op.location:
                        made = hlo.reshape(value.type, value)
                    self.made.append((made.owner.operation, op.name))
                    self.sizes[made] = wanted[number]
                    self.known[key] = made
                op.operands[number] = self.known[key]
        for value, own in zip(op.results, wanted[len(op.operands) :], strict=True):
            if own != list(self.of(value)):
                with ir.InsertionPoint.after(op), op.location:
                    made = hlo.reshape(value.type, value)
                self.made.append((made.owner.operation, op.name))
                value.replace_all_uses_except(made, made.owner.operation)
                self.sizes[made], self.sizes[value] = list(self.of(value)), own

    def _wanted(self, op: Any) -> list[list[tuple[int, ...]]]:
        """Returns what each dimension becomes in an operation: the same for all of one letter."""
        known: dict[Letter, tuple[int, ...]] = {}
        whole: tuple[int, ...] = (0,)
        tensors = list(zip((*op.operands, *op.results), letters_of(op), strict=True))
        for value, letters in tensors:
            for letter, sizes in zip(letters, self.of(value), strict=True):
                if letter == PARTS:
                    whole = max(whole, sizes, key=math.prod)
                elif letter != EDGE and len(sizes) > 1:
                    known.setdefault(letter, sizes)
        return [
            [
                _part(size, whole) if letter == PARTS else known.get(letter, (size,))
                for size, letter in zip(shape(value), letters, strict=True)
            ]
            for value, letters in tensors
        ]


def _in_order(ops: dict[Any, None]) -> list[Any]:
    """Returns operations in program order, those of a block before the operations behind it."""
    return find(top_of(next(iter(ops))), ops.__contains__, outer_first=True) if ops else []


def _part(size: int, whole: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of a dimension that holds parts of one that is split."""
    return (size // math.prod(whole[1:]), *whole[1:])


def _count(op: Any, sizes: Sequence[tuple[int, ...]], along: int) -> None:
    """Numbers elements along a dimension that has become several, the last running fastest."""
    (result,) = op.results
    type_ = ir.RankedTensorType(result.type)
    first, step, total = sum(map(len, sizes[:along])), math.prod(sizes[along]), None
    with ir.InsertionPoint(op), op.location:
        for dim, size in enumerate(sizes[along], first):
            step //= size
            number = ir.IntegerAttr.get(type_.element_type, step)
            factor = hlo.constant(ir.DenseElementsAttr.get_splat(type_, number))
            part = hlo.multiply(hlo.iota(type_, dim), factor)
            total = part if total is None else hlo.add(total, part)
    result.replace_all_uses_with(total)
