"""Dimensions by letters and by number: what operations of every kind are described with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from partita.stablehlo.mlir import ir

FIXED: Final = None
"""Mark in place of a letter: this dimension cannot be split into several."""

EDGE: Final = ""
"""Mark in place of a letter: only this operation has the dimension; reshapes go around it."""

PARTS: Final = "/"
"""Mark in place of a letter: the operation slices or concatenates parts of this dimension."""

Letter = str | None
Letters = tuple[tuple[Letter, ...], ...]
"""Letters of each operand, then of each result."""

Sizes = Sequence[tuple[int, ...]]
"""The sizes that each dimension of a tensor becomes."""

SizesOf = Callable[[Any], Sizes]
"""Function from a value, whose type is still the old one, to the sizes its dimensions become."""


def shape(value: Any) -> tuple[int, ...]:
    """The sizes of a tensor, as its type says them."""
    return tuple(ir.RankedTensorType(value.type).shape)


def wide(value: Any, dims: Iterable[int]) -> list[int]:
    """Returns the dimensions, of those given, that have more than one index."""
    sizes = shape(value)
    return [dim for dim in dims if sizes[dim] > 1]


def lettered(value: Any) -> tuple[str, ...]:
    """A letter of its own for every dimension of a tensor."""
    return tuple(f"d{dim}" for dim in range(len(shape(value))))


def becoming(sizes: Sizes) -> list[list[int]]:
    """The dimensions that each dimension becomes."""
    count = itertools.count()
    return [[next(count) for _ in each] for each in sizes]


def flat(lists: Iterable[Iterable[int]]) -> list[int]:
    """The elements of lists, one after the other."""
    return [each for inner in lists for each in inner]


def ones(sizes: tuple[int, ...], known: int) -> list[int]:
    """A one for each of several dimensions."""
    return [1] * len(sizes)
