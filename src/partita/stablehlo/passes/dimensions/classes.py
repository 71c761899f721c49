"""Classes: dimensions of values that operations between them make the same dimension."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from partita.program.op_traits import MANUAL, traits
from partita.stablehlo import tags
from partita.stablehlo.mlir import RETURNS, ir, returned
from partita.stablehlo.operations.letters import EDGE, FIXED, PARTS, Letter, shape
from partita.stablehlo.passes.dimensions.letters import letters_of

Place = tuple[Any, int]
"""A value and one of its dimensions."""

RESHAPE = "stablehlo.reshape"
_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


@dataclasses.dataclass(eq=False)
class Class:
    """All that is one dimension, and where it is to be cut into several."""

    members: list[Place] = dataclasses.field(default_factory=list)
    reshapes: dict[Any, None] = dataclasses.field(default_factory=dict)
    """Reshapes at its members."""
    parted: dict[Any, None] = dataclasses.field(default_factory=dict)
    """Operations at its members that take parts out of it, or put it together from parts."""
    cuts: list[int] = dataclasses.field(default_factory=list)
    """Inner sizes: number of elements behind each cut, each a multiple of the one before."""

    def cut(self, at: int) -> bool:
        """Adds a cut; whether it is new and goes with the others."""
        fits = all(at % other == 0 or other % at == 0 for other in self.cuts)
        if not fits or at in self.cuts:
            return False
        self.cuts = sorted((*self.cuts, at))
        return True

    def sizes(self, size: int) -> tuple[int, ...]:
        """Returns the sizes, major first, that a dimension of the class becomes."""
        ends = [1, *self.cuts, size]
        return tuple(b // a for a, b in itertools.pairwise(ends))[::-1]


def sizes(classes: Iterable[Class]) -> dict[Any, list[tuple[int, ...]]]:
    """Returns the sizes that each dimension becomes, by value, where classes are cut."""
    found: dict[Any, list[tuple[int, ...]]] = {}
    for each in classes:
        for value, dim in each.members if each.cuts else ():
            known = found.setdefault(value, [(size,) for size in shape(value)])
            known[dim] = each.sizes(known[dim][0])
    return found


@dataclasses.dataclass(frozen=True)
class _Ties:
    """The letters of an operation, to be looked up from both sides."""

    letters: dict[Any, list[tuple[Letter, ...]]]
    """Letters of each value, one entry for every place where it is an operand or result."""
    places: dict[str, list[Place]]


class Classes:
    """The classes found so far, and what is known of the operations they go through.

    Args:
      ends: kinds of operations at which a class ends, though the dimension goes on.
      parts: whether a class may be taken apart and put together; otherwise that needs it as it is.
      last: whether a class may be the last dimension of a tensor that has others. Compilers lay
        tensors out by that one, so that several small ones in its place can be costly.
    """

    def __init__(self, ends: Collection[str] = (), parts: bool = False, last: bool = False) -> None:
        self.ends, self.parts, self.last = ends, parts, last
        self.closed: list[Class] = []
        self.of: dict[Place, Class | None] = {}
        """Class by value and dimension; None where something needs the dimension as it is."""
        self._ties: dict[Any, _Ties] = {}

    def explore(self, start: Place) -> Class | None:
        """All that is one dimension with this one; None if something needs it as it is."""
        if start in self.of:
            return self.of[start]
        found, queue = Class(), [start]
        self.of[start] = found
        while queue:
            place = queue.pop()
            found.members.append(place)
            reached = self._next(place, found)
            for other in reached or ():
                if other not in self.of:
                    self.of[other] = found
                    queue.append(other)
            if reached is None or any(self.of[other] is None for other in reached):
                self.of.update(dict.fromkeys((*found.members, *queue)))
                return None
        self.closed.append(found)
        return found

    def _next(self, place: Place, found: Class) -> list[Place] | None:
        """Returns where operations at a value have the dimension; None if one needs it as is."""
        value, dim = place
        if not self.last and 0 < dim == len(shape(value)) - 1:
            return None
        reached: list[Place] = []
        for op in around(value):
            if op is None or any(key in op.attributes for key in _SHARDINGS) or tags.of(op):
                return None
            if op.name in self.ends:
                continue
            if op.name == RESHAPE:
                found.reshapes[op] = None
            ties = self._ties.get(op) or self._ties.setdefault(op, _ties(op))
            for named in ties.letters[value]:
                letter = named[dim]
                if letter is FIXED or (letter == PARTS and not self.parts):
                    return None
                if letter == PARTS:
                    found.parted[op] = None
                reached += ties.places.get(letter, ())
        return reached


def around(value: Any) -> Iterator[Any]:
    """The operations that make or read a value; None for the function itself."""
    owner = value.owner
    if isinstance(value, ir.BlockArgument):
        owner = owner.owner
    yield _structure(owner.operation)
    for use in value.uses:
        user = use.owner.operation
        yield _structure(user.parent if user.name in RETURNS else user)


def _structure(op: Any) -> Any:
    return None if op.name in ("func.func", MANUAL) else op.operation


def is_structure(op: Any) -> bool:
    """Returns whether an operation orders others: what goes in and comes out are one value."""
    return traits(op.name).treatment == "structure"


def _ties(op: Any) -> _Ties:
    letters: dict[Any, list[tuple[Letter, ...]]] = {}
    places: dict[str, list[Place]] = {}
    for value, named in _named(op):
        letters.setdefault(value, []).append(named)
        for dim, letter in enumerate(named):
            if letter not in (FIXED, EDGE, PARTS):
                places.setdefault(letter, []).append((value, dim))
    return _Ties(letters, places)


def _named(op: Any) -> Iterable[tuple[Any, tuple[Letter, ...]]]:
    """All values that an operation ties together, each with its letters."""
    if not is_structure(op):
        return zip((*op.operands, *op.results), letters_of(op), strict=True)
    sides = [list(op.results)]
    if traits(op.name).branches:
        sides += [returned(region.blocks[0]) for region in op.regions]
    else:
        sides.append(list(op.operands))
    if traits(op.name).loops:
        sides += [list(region.blocks[0].arguments) for region in op.regions]
        sides.append(returned(op.regions[1].blocks[0]))
    return [
        (value, tuple(f"{number}.{dim}" for dim in range(len(shape(value)))))
        for side in sides
        for number, value in enumerate(side)
    ]
