"""Letters for dimensions, and attributes that number them.

Letters name the dimensions of all operands and results, as an einsum does: those with the same
letter are the same dimension. An attribute that numbers dimensions is rewritten when some of them
become several, each in its place.
"""

from __future__ import annotations

import itertools
import math
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


Renumber = Callable[[Any, SizesOf], Any]
"""Function that rewrites attributes of an MLIR operation when dimensions become several.

It returns the operation that then takes the place of this one, or None.
"""


def unmoved(op: Any, sizes_of: SizesOf) -> None:
    """No attribute counts dimensions, or only from the last one, which stays."""


def listed(key: str) -> Renumber:
    """Rewrites a list of dimensions of the first operand."""

    def rewrite(op: Any, sizes_of: SizesOf) -> None:
        places = becoming(sizes_of(op.operands[0]))
        op.attributes[key] = ir.DenseI64ArrayAttr.get(flat(places[d] for d in op.attributes[key]))

    return rewrite


def numbered(key: str) -> Renumber:
    """Rewrites the number of a dimension of the first result, which stays one."""

    def rewrite(op: Any, sizes_of: SizesOf) -> None:
        known, places = op.attributes[key], becoming(sizes_of(op.results[0]))
        op.attributes[key] = ir.IntegerAttr.get(known.type, places[known.value][0])

    return rewrite


def per_dimension(
    op: Any, key: str, sizes: Sizes, split: Callable[[tuple[int, ...], int], list[int]]
) -> None:
    """Rewrites a list with an entry per dimension; `split` says those of one made several."""
    known = list(op.attributes[key])
    op.attributes[key] = ir.DenseI64ArrayAttr.get(
        flat([k] if len(s) == 1 else split(s, k) for k, s in zip(known, sizes, strict=True))
    )


def parts(sizes: tuple[int, ...], elements: int) -> list[int]:
    """A number of elements that is one of parts, of the dimensions within none."""
    return [elements // math.prod(sizes[1:]), *(0 for _ in sizes[1:])]


def up_to(sizes: tuple[int, ...], elements: int) -> list[int]:
    """Returns the end of a part in the outer dimension, and all of the inner dimensions."""
    return [elements // math.prod(sizes[1:]), *sizes[1:]]


def same_but(
    fixed: Callable[[Any], Iterable[int]], parts: Callable[[Any], bool] = lambda op: False
) -> Callable[[Any], Letters]:
    """All tensors of full rank have the same dimensions; those that an operation works on stay.

    Where that is one and `parts` holds, it has to do with parts of it.
    """

    def write(op: Any) -> Letters:
        rank = len(shape(op.results[0]))
        stay = set(fixed(op))
        own = PARTS if len(stay) == 1 and parts(op) else FIXED
        names = tuple(own if dim in stay else f"d{dim}" for dim in range(rank))
        tensors = (*op.operands, *op.results)
        return tuple(names if len(shape(v)) == rank else (FIXED,) * len(shape(v)) for v in tensors)

    return write


def its_dimension(op: Any) -> list[int]:
    """The only dimension that an operation works on."""
    return [op.attributes["dimension"].value]


def last(count: int) -> Callable[[Any], range]:
    """Operations on matrices, or vectors, that stand in the last dimensions."""

    def dims(op: Any) -> range:
        rank = len(shape(op.results[0]))
        return range(rank - count, rank)

    return dims


def resized(op: Any) -> list[int]:
    """Returns the dimensions of a slice of which it reads a part."""
    return differing(op.operands[0], op.results[0])


def differing(one: Any, other: Any) -> list[int]:
    """Returns the dimensions in which two values of one rank have different sizes."""
    pairs = zip(shape(one), shape(other), strict=True)
    return [dim for dim, (a, b) in enumerate(pairs) if a != b]
