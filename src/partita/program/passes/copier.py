"""Copier: a program written out again, item by item, with what a pass leaves out, repeats or adds.

Values, operations and regions get new numbers, in the order in which the importer gives them:
results after operands, the carried values of a loop before its condition, its body last. An edit
sees every item of the old program once, and says which items stand in its place.

Example, a pass that runs every product twice and uses the second result:

    def twice(copier: Copier, item: Item) -> Iterator[Item]:
        yield copier.copy(item)
        if isinstance(item, int) and program.operations[item].traits.product:
            yield copier.copy(item)

    after = rebuilt(program, twice)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from partita.program.blocks import Barrier, Block, Branch, Item, Loop, Region
from partita.program.ir import Operation, Program, Value
from partita.program.memories import on_host
from partita.program.op_traits import BARRIER
from partita.program.passes.rewritten import Rewritten
from partita.program.rule import Rule

_OTHERS = attrgetter(*(field.name for field in dataclasses.fields(Operation)[4:]))
"""What an operation is besides its number, kind, operands and results."""


class Copier:
    """State of one rebuild: what has been written, and what stands for the old values by now."""

    def __init__(self, program: Program, edit: Edit) -> None:
        self.program = program
        self._edit = edit
        self._now: dict[int, int] = {v: v for v in program.arguments}
        """New value that the next copy reads, by old value."""
        self._copies: dict[int, list[int]] = {v: [v] for v in program.arguments}
        """All new values that hold an old one, in order."""
        self._placed: dict[int, int] = {}
        """First copy of every operation."""
        self._fresh: set[int] = set()
        self._values = [program.values[v] for v in program.arguments]
        self._operations: list[Operation] = []
        self._regions = [Region(0, False)]
        self._region, self._times = 0, 1

    def copy(self, item: Item) -> Item:
        """Writes an item once more, with the operands that stand for the old ones by now.

        Whatever is copied afterwards reads its results.
        """
        if isinstance(item, int):
            return self._operation(item)
        if isinstance(item, Barrier):
            return Barrier(tuple(self._operation(part) for part in item.parts))
        return self._loop(item) if isinstance(item, Loop) else self._branch(item)

    def hold(self, values: Sequence[int], like: Operation) -> Barrier:
        """Writes an optimization barrier; whatever is copied afterwards reads what it holds.

        Args:
          values: old values, each available here.
          like: operation of the old program whose source line it is for.
        """
        parts = []
        for old in values:
            type_ = self.program.values[old].type
            made = Operation(
                len(self._operations),
                BARRIER,
                (self._now[old],),
                (len(self._values),),
                Rule.same(type_.shape, 1, 1),
                source=like.source,
                scope=like.scope,
                times=self._times,
                region=self._region,
            )
            self._fresh.add(made.index)
            self._add(made, (old,))
            parts.append(made.index)
        return Barrier(tuple(parts))

    @contextmanager
    def aside(self, keep: Iterable[int] = ()) -> Iterator[None]:
        """What is copied inside is read by other copies inside only, except for values in `keep`.

        Args:
          keep: old values whose copies are read afterwards, too.
        """
        before = self._now
        self._now = dict(before)
        yield
        before.update((old, self._now[old]) for old in keep)
        self._now = before

    def rebuilt(self) -> Rewritten:
        """Writes the whole program."""
        program = self.program
        body = self._block(program.body)
        first = {old: new[0] for old, new in self._copies.items()}
        made = dataclasses.replace(
            program,
            values=tuple(self._values),
            operations=tuple(self._operations),
            results=tuple(first[v] for v in program.results),
            body=body,
            regions=tuple(self._regions),
            keys=frozenset(first[v] for v in program.keys),
            given=tuple(dataclasses.replace(g, value=first[g.value]) for g in program.given),
            constants=tuple(
                dataclasses.replace(c, values=self._all(c.values)) for c in program.constants
            ),
            roles=program.roles and program.roles.renumbered(first),
            changed=True,
        )
        made = dataclasses.replace(made, hosted=on_host(made))
        return Rewritten(made, first, self._placed, frozenset(self._fresh))

    def _all(self, values: Iterable[int]) -> tuple[int, ...]:
        return tuple(new for old in values for new in self._copies.get(old, ()))

    def _operation(self, old: int, operands: tuple[int, ...] | None = None) -> int:
        """Writes one operation, with given operands or those that stand for the old ones."""
        op, index = self.program.operations[old], len(self._operations)
        now, start = self._now, len(self._values)
        if operands is None:
            operands = tuple([now[v] for v in op.operands])
        results = tuple(range(start, start + len(op.results)))
        if (op.region, op.times) != (self._region, self._times):
            made = dataclasses.replace(
                op,
                index=index,
                operands=operands,
                results=results,
                region=self._region,
                times=self._times,
            )
        elif (old, op.operands, op.results) == (index, operands, results):
            made = op  # as all are before the first change
        else:  # several times as fast as `replace`
            made = Operation(index, op.kind, operands, results, *_OTHERS(op))
        self._add(made, op.results)
        self._placed.setdefault(old, index)
        if self._placed[old] != index or any(map(self._is_later, op.operands, operands)):
            self._fresh.add(index)
        return index

    def _is_later(self, old: int, new: int) -> bool:
        """Returns whether a new value holds an old one, but is not the first to do so."""
        return self._copies.get(old, (new,))[0] != new

    def _add(self, made: Operation, old: Sequence[int]) -> None:
        """Adds an operation whose results stand for old values from now on."""
        self._operations.append(made)
        for position, (before, new) in enumerate(zip(old, made.results, strict=True)):
            value = self.program.values[before]
            if (value.index, value.producer) != (new, made.index):
                value = Value(new, value.type, made.index, position)
            self._values.append(value)
            self._now[before] = new
            self._copies.setdefault(before, []).append(new)

    def _block(self, block: Block) -> Block:
        return Block(tuple(new for item in block.items for new in self._edit(self, item)))

    def _loop(self, loop: Loop) -> Loop:
        old = [c if c is None else self.program.operations[c] for c in loop.carries]
        new = [None if c is None else self._carry(c) for c in old]
        with self._inside(repeats=True):
            condition = self._block(loop.condition)
            choose = self._operation(loop.choose)
        with self._inside(repeats=True, trips=loop.trips or 1):
            body = self._block(loop.body)
            for before, carry in zip(old, new, strict=True):
                if before is not None and carry is not None:
                    self._pass_on(carry, before.operands[1])
        return Loop(tuple(new), condition, choose, body, loop.trips, loop.source)

    def _carry(self, carry: Operation) -> int:
        """Writes a carried value; the initial value stands in for what the body passes on."""
        start = self._now[carry.operands[0]]
        return self._operation(carry.index, (start, start))

    def _pass_on(self, carry: int, old: int) -> None:
        """Sets the value that a loop's body passes on."""
        made, passed = self._operations[carry], self._now[old]
        operands = (made.operands[0], passed)
        self._operations[carry] = dataclasses.replace(made, operands=operands)
        if self._is_later(old, passed):
            self._fresh.add(carry)

    def _branch(self, branch: Branch) -> Branch:
        choose = self._operation(branch.choose)
        blocks, yields = [], []
        for block, given in zip(branch.branches, branch.yields, strict=True):
            with self._inside(repeats=False):
                blocks.append(self._block(block))
                yields.append(tuple(self._now[v] for v in given))
        joins = tuple(
            self._operation(join, tuple(given[number] for given in yields))
            for number, join in enumerate(branch.joins)
        )
        return Branch(choose, tuple(blocks), tuple(yields), joins)

    @contextmanager
    def _inside(self, repeats: bool, trips: int = 1) -> Iterator[None]:
        outer = self._region, self._times
        self._region, self._times = len(self._regions), self._times * trips
        self._regions.append(Region(outer[0], repeats))
        with self.aside():
            yield
        self._region, self._times = outer


Edit = Callable[[Copier, Item], Iterable[Item]]
"""Says what stands in the place of an item of the old program: the items that it has the copier
write, in order. Where nothing does, later copies must not read the item's results."""


def plain(copier: Copier, item: Item) -> Iterable[Item]:
    """The edit that changes nothing."""
    return (copier.copy(item),)


def rebuilt(program: Program, edit: Edit = plain) -> Rewritten:
    """Returns a program written out again with an edit."""
    return Copier(program, edit).rebuilt()
