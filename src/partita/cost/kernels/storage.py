"""Storage of values by the compiler: which are in memory, and which exist only inside kernels.

Cheap producers are recomputed in every kernel that reads them, unless storing their results moves
fewer bytes. Kernels of products may go on with the operations on their result.
"""

from __future__ import annotations

import math
from functools import cached_property

from partita.cost.devices.hardware import Kernels
from partita.cost.kernels.calls import Calls, library_calls
from partita.program.ir import Operation, Program
from partita.program.op_traits import CONSTRAINT, Traits


class Storage:
    """Decides, one operation after the other, which values of a program go to memory."""

    def __init__(
        self, program: Program, uses: list[list[tuple[int, int]]], kernels: Kernels
    ) -> None:
        self.program = program
        self.traits = [op.traits for op in program.operations]
        self.uses = uses
        self.products = kernels.fuse_products
        self.longest_row = int(kernels.longest_row.value)
        self.apart = frozenset(f"stablehlo.{kind}" for kind in kernels.not_before_products)
        self.library = kernels.library_products
        self.calls = library_calls(program, uses) if self.library else Calls()
        self.read = set(self.calls.read)
        self.scatters_apart = kernels.scatters_apart
        self.in_place: set[tuple[int, int]] = set()
        """The (operation, operand number) pairs of scatters that change what they read."""
        self.inside_calls = dict(self.calls.ends)
        if self.scatters_apart:
            self.inside_calls |= self._scatters_into_sums()
            self.in_place |= {(op.index, 0) for op in program.operations if op.traits.scatters}
        self.ends = frozenset(self.inside_calls.values())
        self.costly = frozenset(f"stablehlo.{kind}" for kind in kernels.costly)
        self.row_filled = kernels.row_filled.value if kernels.row_filled else 0.0
        self.shared: set[int] = set()
        """Values that are stored because several readers share them."""
        self.made_costly: set[int] = set()
        """Values that are not stored, and are made by costly operations."""
        self.made_apart: set[int] = set()
        """Values that are not stored, and not computed inside of products either."""
        self._sources: dict[int, int] = {}
        """Cache of `_source`, cleared when a value becomes stored after all: chains are long."""
        self.results = frozenset(program.results)
        self.stored = [True] * len(program.values)
        self.named: set[int] = set()
        """Values that a constraint only renames, and that are in memory already."""
        self.again: set[int] = set()
        """Values that are stored for some readers, and recomputed by the others."""
        self.large = [frozenset({v.index}) for v in program.values]
        """Large stored values that each is made from; a stored one from itself."""
        self.ready = [v.producer or 0 for v in program.values]
        """Last operation that must be done before each can be computed."""
        self.rows: set[int] = set()
        """Products whose kernels reduce their rows and go on; they are stored after that."""
        self.transposed: dict[int, int] = {}
        """Transpose of each product that is only transposed; it is stored instead, if either is."""
        self.product: list[int | None] = [None] * len(program.values)
        """Product that is computed in the same kernel as a value that is not stored."""

    def _scatters_into_sums(self) -> dict[int, int]:
        """Returns the addition that each scatter into zeros is part of, by the scatter's value.

        It scatters into the other operand of the addition, which is therefore in memory.
        """
        found = {}
        for op in self.program.operations:
            if not (op.traits.scatters and op.zero_init and len(op.results) == 1):
                continue
            readers = self.uses[op.results[0]]
            for use, number in readers if len(readers) == 1 else ():
                reader = self.program.operations[use]
                other = (
                    reader.operands[1 - number]
                    if reader.traits.combiner == "add"
                    else op.results[0]
                )
                if other != op.results[0] and reader.region == op.region:
                    found[op.results[0]] = use
                    self.in_place.add((use, 1 - number))
                    self.read.add(other)
        return found

    def decide(self, op: Operation) -> None:
        """Decides for the results of an operation; its operands were decided before."""
        for v in op.results:
            if op.kind == CONSTRAINT:
                operand = op.operands[0]
                if self.stored[operand] or operand in self.named:
                    self.named.add(v)
            traits = self.traits[op.index]
            if op.index in self.ends:  # of a call or a scatter
                continue
            if v in self.inside_calls and v not in self.results:
                self.stored[v], self.large[v] = False, frozenset()
            elif traits.product:
                finished = self.products and self._one_elementwise_reader(op, v)
                if finished and v not in self.results:
                    self.stored[v], self.product[v] = False, v
            elif self._fusible(op, traits):
                product = self._product(op)
                if traits.transposes and product == op.operands[0]:
                    self.transposed[product] = v
                if self._asked_for(op, v):
                    self._widened_for_some(op, v)
                elif v not in self.results:
                    self._inside_readers(op, v, product)
            elif op.operands and self.product[op.operands[0]] in self.rows:
                self.ready[v] = self.ready[op.operands[0]]  # reduced as soon as that is there

    def _inside_readers(self, op: Operation, v: int, product: int | None) -> None:
        """Computes a value inside its readers, unless it is better kept."""
        values = self.program.values
        read = frozenset().union(*(self.large[o] for o in op.operands))
        read = frozenset(r for r in read if 4 * values[r].type.bytes >= values[v].type.bytes)
        if op.operands and self._shared(op, v, read):
            source = self._source(v)
            self.shared.add(source)
            if self.transposed.get(source, source) == v:
                return
            read, product = self._keep(source), None
        elif product is not None and product not in self.rows and self._within_rows(v):
            self.rows.add(product)
        elif product is not None and not self._one_elementwise_reader(op, v):
            kept = v if product in self.rows else self._best_kept(product, v, read)
            if self.transposed.get(kept, kept) == v:
                return
            read, product = self._keep(kept), None
        self.stored[v], self.large[v], self.product[v] = False, read, product
        self.ready[v] = max((self.ready[o] for o in op.operands), default=0)
        if self._is_apart(op, v):
            self.made_apart.add(v)
        if self._is_costly(op):
            self.made_costly.add(v)

    def _best_kept(self, product: int, v: int, read: frozenset[int]) -> int:
        """Returns the value to store of a product whose kernel could go on to `v`: the product, or
        the narrowest value of which `v` is a wider form.

        The choice moves the fewest bytes, if the readers of `v` compute what follows.
        """
        values, n, source = self.program.values, len(self._readers(v)), self._source(v)
        others = sum(values[r].type.bytes for r in read - {product})
        own, made = values[source].type.bytes, values[product].type.bytes
        fewer = made + n * (made + others) < others + (1 + n) * own
        return product if fewer else source

    def _widened_for_some(self, op: Operation, v: int) -> None:
        """Stores the narrower form of a value that one reader needs in memory; others read it."""
        source = self._source(v)
        if self.program.values[source].type.bytes < self.program.values[v].type.bytes and any(
            computes_operands(self.traits[use], self.products) for use, _ in self.uses[v]
        ):
            self.large[v] = self._keep(source)
            self.again.add(v)

    def _one_elementwise_reader(self, op: Operation, v: int) -> bool:
        """Returns whether the kernel of a product can go on with its only reader."""
        readers = [self.program.operations[use] for use, _ in self.uses[v]]
        return len(readers) == 1 and _goes_on(readers[0].traits) and readers[0].region == op.region

    def _within_rows(self, v: int) -> bool:
        """Returns whether a product's kernel can hold rows of it, as in a softmax: reduce each, and
        go on with both."""
        row = self._row(v)
        return row is not None and row <= self.longest_row

    def _divided_in_place(self, v: int) -> bool:
        """Returns whether one kernel makes rows, reduces each and goes on, as in a softmax.

        The compiler pads rows to a power of two; mostly padded rows take several kernels.
        """
        row = self._row(v)
        return row is not None and row >= self.row_filled * 2 ** (row - 1).bit_length()

    def _row(self, v: int) -> int | None:
        """Returns the elements of a row, if the only readers of a value reduce its rows, and go on
        with them and the reductions; else None."""
        values, operations = self.program.values, self.program.operations
        readers = [operations[op] for op in {use for use, _ in self.uses[v]}]
        rows = [r for r in readers if r.traits.reduces]
        if len(readers) != 2 or len(rows) != 1 or len(rows[0].results) != 1:
            return None
        other = next(r for r in readers if r is not rows[0])
        if not other.traits.elementwise or other.region != rows[0].region:
            return None
        return values[v].type.elements // max(values[rows[0].results[0]].type.elements, 1)

    def _product(self, op: Operation) -> int | None:
        """Returns the product whose kernel goes on with an operation; None without.

        Only values that are ready when the product is made can be part of its kernel. Other
        products, and those that would have to wait, are stored.
        """
        inside = {self.product[o] for o in op.operands if not self.stored[o]}
        products = sorted(
            p for p in inside if p is not None and not self.stored[self.transposed.get(p, p)]
        )
        last = max((self.ready[o] for o in op.operands), default=0)
        found = None
        for p in products:
            if self.program.values[p].producer == last:
                found = p
            else:
                self._keep(p)
        return found

    def _asked_for(self, op: Operation, v: int) -> bool:
        """Returns whether a reader of a value needs it in memory."""
        if self.library:
            return self._read_by_calls(op, v)
        traits = self.traits[op.index]
        anywhere = traits.read_through if self.products else traits.widens
        anywhere = anywhere or v in self.named
        readers = (self.traits[use] for use, _ in self.uses[v])
        return any(
            (not anywhere and not computes_operands(reader, self.products))
            or reader.in_memory
            or (reader.product and self._is_apart(op, v))
            for reader in readers
        )

    def _read_by_calls(self, op: Operation, v: int) -> bool:
        """Returns whether a reader needs a value in memory, if products are library calls."""
        anywhere = self.traits[op.index].widens or v in self.named
        readers = [self.traits[use] for use, _ in self.uses[v]]
        return v in self.read or any(
            reader.in_memory or not (anywhere or reader.product or reader.fuses_operands)
            for reader in readers
        )

    def _is_costly(self, op: Operation) -> bool:
        """Returns whether recomputing the result of an operation takes long."""
        return op.kind in self.costly or any(
            o in self.made_costly and not self.stored[o] for o in op.operands
        )

    def _fusible(self, op: Operation, traits: Traits) -> bool:
        """Returns whether an operation can be computed inside the kernel that reads it.

        A scatter into zeros that puts one element in every row can be a comparison of indices
        there.
        """
        if traits.scatters and not self.scatters_apart:
            summed = (f.size for f in op.rule.factors if f.kind == "reduction")
            return op.zero_init and math.prod(summed) == 1
        return traits.fusible

    def _is_apart(self, op: Operation, v: int) -> bool:
        """Returns whether products read a value from memory, unless it is divided by a constant."""
        elements = self.program.values[v].type.elements
        if op.kind in self.apart and not self._constant(op.operands[-1]):
            return True
        return any(
            o in self.made_apart and self.program.values[o].type.elements == elements
            for o in op.operands
        )

    def _constant(self, v: int) -> bool:
        while (producer := self.program.values[v].producer) is not None:
            op = self.program.operations[producer]
            if op.traits.constant or not (op.traits.widens and op.operands):
                return op.traits.constant
            v = op.operands[0]
        return False

    def _shared(self, op: Operation, v: int, read: frozenset[int]) -> bool:
        """Returns whether storing a value is better than recomputing it where it is read.

        Memory takes the time, elementwise compute hardly matters. A value is recomputed if all
        readers together then move fewer bytes than if it is written once and read by each. Values
        that loops and branches read from outside are computed once.
        """
        values, n = self.program.values, len(self._readers(v))
        again = sum(values[r].type.bytes for r in read)
        own = values[self._source(v)].type.bytes
        if n > 1 and n * again >= again + (n + 1) * own:
            return True
        if n > 1 and self._is_costly(op) and not self._divided_in_place(v):
            return True
        return any(self.program.operations[use].region != op.region for use, _ in self.uses[v])

    def _readers(self, v: int) -> frozenset[int]:
        """Returns the operations that read a value, or a wider form of it."""
        return self._all_readers[v]

    @cached_property
    def _all_readers(self) -> list[frozenset[int]]:
        """Operations that read each value, or a wider form of it. Readers come after a value, so
        the last values are known first."""
        found: list[frozenset[int]] = [frozenset()] * len(self.program.values)

        def of(v: int) -> frozenset[int]:
            each = [
                found[self.program.operations[use].results[0]]
                if self.traits[use].widens
                else frozenset({use})
                for use, _ in self.uses[v]
            ]
            return each[0] if len(each) == 1 else frozenset().union(*each)

        for op in reversed(self.program.operations):
            for v in op.results:
                found[v] = of(v)
        for argument in self.program.values:
            if argument.producer is None:
                found[argument.index] = of(argument.index)
        return found

    def _source(self, v: int) -> int:
        """Returns the narrowest value of which this is a wider form; itself, if there is none."""
        values, source = self.program.values, v
        while source == v or not self.stored[source]:
            if source in self._sources:
                source = self._sources[source]
                break
            producer = values[source].producer
            op = None if producer is None else self.program.operations[producer]
            if op is None or not op.operands or not self.traits[op.index].widens:
                break
            if values[op.operands[0]].type.bytes > values[source].type.bytes:
                break
            source = op.operands[0]
        self._sources[v] = source
        return source

    def settle(self) -> None:
        """Undoes, at the end, the storing of shared values whose readers are all in one kernel."""
        if not self.library:
            return
        kernels: list[frozenset[int]] = [frozenset()] * len(self.program.values)
        for op in reversed(self.program.operations):
            for v in op.results:
                found = set[int]()
                for use, _ in self.uses[v]:
                    made = self.program.operations[use].results
                    stored = any(self.stored[r] for r in made) or not made
                    found |= {use} if stored else kernels[made[0]]
                if v in self.shared and len(found) == 1:
                    (kernel,) = found
                    self.stored[v] = self.program.operations[kernel].region != op.region
                kernels[v] = frozenset(found)

    def _keep(self, v: int) -> frozenset[int]:
        """Stores a value unless it has no inputs; returns the large values that are then read."""
        v = self.transposed.get(v, v)
        producer = self.program.values[v].producer
        if producer is not None and not self.program.operations[producer].operands:
            return frozenset()
        if not self.stored[v]:
            self._sources.clear()
        self.stored[v], self.large[v], self.ready[v] = True, frozenset({v}), producer or 0
        return self.large[v]


def computes_operands(traits: Traits, products: bool) -> bool:
    """Returns whether an operation with these traits can compute its operands in its own kernel.

    Args:
      traits: of the operation.
      products: whether products can.
    """
    return traits.fuses_operands and (products or not traits.product)


def _goes_on(traits: Traits) -> bool:
    """Returns whether the kernel of a product can go on with such an operation."""
    return traits.elementwise or traits.rearranges or traits.renames
