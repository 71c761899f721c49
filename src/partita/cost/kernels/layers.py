"""Copies made by loops that read and write back layers of a stack, such as a decoder's caches.

A stack that a loop reads layer by layer is not copied: kernels read a layer in place. That changes
if layers are updated, as by a decoder that puts the keys and values of one position into its cache.
XLA's TPU compiler does this (`tests/verify/test_copies.py` compares):

- A layer of which a part is replaced is cut out of the stack before, and written back to it after
  that. Both are copies of the whole layer, however small its new part is.
- If the new part is put into the stack itself, in place, the products that read a layer of it have
  the layer cut out for them.
- Arguments are stored in the order of their dimensions, with the last two in tiles. Inside an outer
  loop the layout is free: a stack has the one that the products want. If the loop over layers is
  the outermost, each layer is copied into another order unless products want this one: dimensions
  of their batch have to come first. (Not so if the new part is scattered into it.) A layer whose
  second last dimension is less than the rows of a tile is copied in such small tiles, which takes
  longer.
- Inside an outer loop a stack has the layout in which the new part of a layer is made, whatever is
  done to that part on its way into the stack. The columns of tiles are along the part's last
  dimension, or along another one of which a device makes more. The rows of a tile are sequences of
  the batch. So a device with four sequences copies tiles of four rows. One that makes 8 of 128
  features of 32 heads copies tiles with 32 of 128 columns filled. Products of a single row, which
  vector units compute, take longer by the inverse of the filled share of a tile. (The part does
  not say whether the values are exchanged before they are put in. If a layer keeps as few
  features, too, that counts twice: too much rather than too little.)
- A stack that is read as one argument and written as another result, in the place of that argument,
  is copied once as a whole; one that is updated in place twice, into another order and back.

That compiler also skips writing the zeros that the results of all layers will replace.

All of this is a property of the program; its time depends on shards, see `copies`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partita.cost.kernels.products import of_single_row
from partita.program.ir import Operation, Program
from partita.program.op_traits import CARRY


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """A copy that a compiler makes of an operand or result of an operation."""

    place: int
    """Index into the operands followed by the results."""
    counted: int = 0
    """Number of times that existing kernels read and write it already."""
    as_argument: bool = False
    """True if the copy is stored in the order of its dimensions, as arguments are."""
    batch: frozenset[int] | None = None
    """Dimensions that must come first to avoid the copy; None if it is copied anyway."""


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """Uses of each layer of a stack."""

    copies: int
    products: int
    """Number of products that read it, with a single row on a side."""


@dataclasses.dataclass(frozen=True, slots=True)
class Laid:
    """Layout of a stack that follows a result: that in which this part of a layer is made."""

    place: int
    """Index into the operands followed by the results."""
    use: Used
    larger: int
    """Ratio of the elements of a layer to those of the part."""


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """Tiles of a layer that its own shape limits: the number of columns that it can fill."""

    place: int
    """Index into the operands followed by the results."""
    use: Used
    columns: frozenset[int]
    """Dimensions that columns may be along."""


Copy = Copied | Laid | Filled
"""Kinds of extra work where stacks are read and written."""


class Layers:
    """The copies of one program, by operation."""

    def __init__(self, program: Program, uses: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._program = program
        self._uses = uses
        self.copied: dict[int, tuple[Copy, ...]] = {}
        self._written = dict(self._writes())
        """Operation that writes each carried stack layer by layer, by `CARRY`."""
        for op in program.operations:
            if program.regions[op.region].repeats and op.traits.reads_window:
                self._cut_out(op)
        for carry, write in self._written.items():
            self._write_back(program.operations[carry], write)
        self.in_place = frozenset(
            op.index
            for op in program.operations
            if op.traits.scatters and self._is_carried(op.operands[0])
        )
        """Scatters into a value that a loop carries, or a layer of one: they write nothing else."""
        self.unwritten = frozenset(self._replaced())
        """Operations whose whole results the results of a loop replace."""

    def _add(self, op: Operation, *copies: Copy) -> None:
        self.copied[op.index] = (*self.copied.get(op.index, ()), *copies)

    # ------------------------------------------------------------------------------- reading

    def _cut_out(self, op: Operation) -> None:
        """Adds the copies that reading a layer causes."""
        stack, result = op.operands[0], len(op.operands)
        same = list(self._same(op.results[0]))
        layer = self._program.values[op.results[0]].type.shape
        updated = [use for value in same for use in self._updates(value)]
        read = [*same, *(v for use in updated for v in self._same(use.results[0]))]
        products = [use for value in read for use in self._products(value)]
        argument = self._is_argument(stack, op.region)
        batch = frozenset[int]()
        for value, (product, number) in products:
            shape = self._program.values[value].type.shape
            ahead = len(layer) - len(shape)
            if shape == layer[ahead:]:
                batch |= {ahead + dim for dim in _batch(product, number)}
        carry = self._carry_of(stack)
        write = None if carry is None else self._written.get(carry)
        if updated:
            self._add(op, Copied(result, 1, argument))
            if argument and products and all(use.traits.writes_window for use in updated):
                self._add(op, Copied(result, batch=batch))
        elif products and write is not None:
            self._add(op, Copied(result, as_argument=argument and write.traits.scatters))
        elif products and argument and batch:
            self._add(op, Copied(result, as_argument=True, batch=batch))
        if self._loops_around(op.region) > 1:
            rows = sum(_is_of_single_row(product) for _, (product, _) in products)
            if updated:
                self._lay(op, updated[-1], Used(2, rows))
            elif products and write is not None:
                self._lay(op, write, Used(1, rows))

    def _lay(self, cut: Operation, update: Operation, use: Used) -> None:
        """Adds the effect of a layout that follows the new part of a layer, if it does."""
        part = update.operands[1] if update.traits.writes_window else None
        maker = None if part is None else self._maker(part)
        if part is None or maker is None:
            return
        values = self._program.values
        made, new, layer = (values[v].type for v in (maker.results[0], part, cut.results[0]))
        if made.elements == new.elements:
            self._add(maker, Laid(len(maker.operands), use, layer.elements // made.elements))
        columns = _whole(layer.shape, new.shape)[1:]
        if columns:
            self._add(cut, Filled(len(cut.operands), use, frozenset(columns)))

    def _same(self, value: int) -> Iterator[int]:
        """Yields a value and its other names."""
        waiting = [value]
        while waiting:
            yield (found := waiting.pop())
            users = (self._program.operations[use] for use, _ in reversed(self._uses[found]))
            waiting += (op.results[0] for op in users if self._renames(op))

    def _renames(self, op: Operation) -> bool:
        values = self._program.values
        if op.traits.renames:
            return True
        # Broadcasting to a dimension of size 1 more.
        sizes = (values[v].type.elements for v in (*op.operands[:1], *op.results[:1]))
        return op.traits.broadcasts and len(set(sizes)) == 1

    def _updates(self, value: int) -> Iterator[Operation]:
        """Yields the operations that replace a part of a value."""
        for use, number in self._uses[value]:
            op = self._program.operations[use]
            if number == 0 and (op.traits.writes_window or op.traits.scatters):
                yield op

    def _products(self, value: int) -> Iterator[tuple[int, tuple[Operation, int]]]:
        for use, number in self._uses[value]:
            op = self._program.operations[use]
            if op.traits.product and not op.traits.convolution:
                yield value, (op, number)

    # ------------------------------------------------------------------------------- writing

    def _writes(self) -> Iterator[tuple[int, Operation]]:
        """Yields the carried stacks of which a body writes a part, each with its last write."""
        for carry in self._program.ends:
            op = self._program.operations[carry]
            written = self._maker(op.operands[1])
            if written is not None and (written.traits.writes_window or written.traits.scatters):
                yield carry, written

    def _write_back(self, carry: Operation, write: Operation) -> None:
        """Adds the copies that writing a layer to a carried stack causes."""
        initial, stack = carry.operands[0], len(carry.operands) + 2
        argument = self._is_argument(initial, write.region)
        source = self._update_of(write)
        result = carry.results[2] in self._program.results
        if source is None:  # the new part is put into the stack itself
            if (
                argument
                and write.traits.writes_window
                and any(
                    use.index in self.copied
                    for value in (carry.results[1], write.results[0])
                    for use in self._readers(value)
                )
            ):
                self._add(carry, Copied(stack), Copied(stack, as_argument=True))
            return
        self._add(write, Copied(1, 2, argument or result))
        if self._is_result(carry, source):
            self._add(carry, Copied(stack, as_argument=True))

    def _replaced(self) -> Iterator[int]:
        values, loops = self._program.values, self._program.loops
        trips = {carry: loop.trips or 0 for loop in loops for carry in loop.carries}
        for carry, write in self._written.items():
            op = self._program.operations[carry]
            initial = values[op.operands[0]]
            maker = None if initial.producer is None else self._program.operations[initial.producer]
            if maker is None or not maker.traits.free or len(self._uses[initial.index]) > 1:
                continue
            window = write.traits.writes_window and values[write.operands[1]].type.elements
            if window and window * trips[carry] == initial.type.elements:
                yield maker.index

    def _update_of(self, write: Operation) -> int | None:
        """Returns the stack from which the layer comes that is written back; None if another."""
        if not write.traits.writes_window:
            return None
        maker = self._maker(write.operands[1])
        while maker is not None and (maker.traits.writes_window or maker.traits.scatters):
            maker = self._maker(maker.operands[0])
        cut = maker is not None and maker.traits.reads_window and maker.index in self.copied
        return maker.operands[0] if maker is not None and cut else None

    def _is_result(self, carry: Operation, source: int) -> bool:
        """Returns whether a loop's result replaces the argument that it reads layers of."""
        program = self._program
        taken = {program.results[r]: program.arguments[a] for a, r in program.aliases.items()}
        return taken.get(carry.results[2]) == source

    # --------------------------------------------------------------------------------- where

    def _readers(self, value: int) -> Iterator[Operation]:
        return (self._program.operations[use] for use, _ in self._uses[value])

    def _maker(self, value: int) -> Operation | None:
        """Returns the operation that makes a value, skipping those that only rename it."""
        producer = self._program.values[value].producer
        while producer is not None:
            op = self._program.operations[producer]
            if not self._renames(op):
                return op
            producer = self._program.values[op.operands[0]].producer
        return None

    def _carry_of(self, value: int) -> int | None:
        """Returns the `CARRY` of a stack as a body sees it, or has updated it."""
        producer = self._program.values[value].producer
        while producer is not None:
            op = self._program.operations[producer]
            if op.kind == CARRY:
                return producer
            if not (op.traits.writes_window or op.traits.scatters):
                return None
            producer = self._program.values[op.operands[0]].producer
        return None

    def _is_carried(self, value: int) -> bool:
        """Returns whether a value is carried by a loop, or a layer of a stack."""
        maker = self._maker(value)
        while maker is not None and (maker.traits.writes_window or maker.traits.scatters):
            maker = self._maker(maker.operands[0])
        if maker is None:
            return False
        repeats = self._program.regions[maker.region].repeats
        return maker.index in self._program.ends or (maker.traits.reads_window and repeats)

    def _is_argument(self, value: int, region: int) -> bool:
        """Returns whether a stack that is read in an outermost loop is an argument."""
        program = self._program
        if self._loops_around(region) > 1:
            return False
        carry = self._carry_of(value)
        if carry is not None:
            value = program.operations[carry].operands[0]
        return program.values[value].producer is None

    def _loops_around(self, region: int) -> int:
        program = self._program
        return sum(program.regions[r].repeats for r in program.around(region))


def _whole(shape: Sequence[int], part: Sequence[int]) -> list[int]:
    """Returns the dimensions of more than one index that a part has all of. It may lack the first
    ones, or have more."""
    shared = min(len(shape), len(part))
    sizes = zip(shape[-shared:], part[-shared:], strict=True)
    whole = [place for place, (size, own) in enumerate(sizes) if size == own > 1]
    return [len(shape) - shared + place for place in whole]


def _is_of_single_row(product: Operation) -> bool:
    return of_single_row(product, [factor.size for factor in product.rule.factors]) > 0


def _batch(product: Operation, number: int) -> Iterator[int]:
    """Yields the dimensions of a product's operand that both operands and the result have."""
    rule = product.rule
    others = {f for dim in rule.operands[1 - number] for f in dim}
    made = {f for dim in rule.results[0] for f in dim}
    for place, dim in enumerate(rule.operands[number]):
        if dim and others.issuperset(dim) and made.issuperset(dim):
            yield place
