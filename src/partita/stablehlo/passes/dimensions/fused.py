"""Projections fused into one product are seen as the parts that they are.

The queries, keys and values of attention are often one product, `x @ w[embed, 3 * n]`, of which
slices are taken. A shard of `3 * n` holds no part of all three, so that nothing could be sharded
behind the slices. Where a dimension is only ever used in equal parts, it becomes `[parts, n]`,
through everything up to the products that make it; the weight is reshaped there. So `n` can be
sharded: what devices exchange is the weight, if it is stored sharded itself, not activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.stablehlo import attributes
from partita.stablehlo.mlir import find, main_function
from partita.stablehlo.operations.letters import PARTS, shape, wide
from partita.stablehlo.operations.shapes import groups
from partita.stablehlo.passes.dimensions.classes import RESHAPE, Class, Classes, Place, sizes
from partita.stablehlo.passes.dimensions.letters import letters_of
from partita.stablehlo.passes.dimensions.split import split

_DOT = "stablehlo.dot_general"
_ENDS = (_DOT, "stablehlo.broadcast_in_dim", "stablehlo.reduce")
"""Kinds behind which a dimension is that of a weight or its gradient, which stay as they are."""

_PARTED = ("stablehlo.concatenate", "stablehlo.pad", "stablehlo.slice")
_NOTE = "partita.parts"


def unfuse(module: Any) -> None:
    """Makes two dimensions of one that is used in equal parts, up to the products with weights."""
    classes = Classes(_ENDS, parts=True, last=True)
    cut: dict[Class, None] = {}
    for op in find(main_function(module).operation, _parts):
        found = classes.explore(_whole(op))
        size = _equal_parts(classes, found) if found else 0
        if found is None or not size:
            continue
        for each, at in [(found, size)] if size > 1 else list(_merged_behind(classes, found)):
            if each in cut or (_of_a_weight(classes, each) and each.cut(at)):
                cut[each] = None
    for reshape, cause in split(sizes(cut)):
        if cause in _ENDS:
            attributes.put(reshape, _NOTE, "yes")


def takes_apart(operation: Any) -> bool:
    """Returns whether an operation reshapes a weight or gradient from or to `[parts * n]`."""
    return operation.name == RESHAPE and bool(attributes.get(operation, _NOTE))


def _parts(op: Any) -> bool:
    """Returns whether an operation takes parts out of a dimension, or makes one of parts."""
    return op.name in _PARTED and any(PARTS in letters for letters in letters_of(op))


def _whole(op: Any) -> Place:
    """Returns the value that holds all parts, and the dimension they are in."""
    letters = letters_of(op)
    if op.name == "stablehlo.slice":
        return op.operands[0], letters[0].index(PARTS)
    return op.results[0], letters[-1].index(PARTS)


def _equal_parts(classes: Classes, found: Class) -> int:
    """The size of the parts that a class is used in; 0 if they are not equal, or it is one."""
    known = set()
    for op in found.parted:
        whole, dim = _whole(op)
        if classes.of.get((whole, dim)) is not found:
            continue
        if op.name == "stablehlo.slice":
            starts = [op.attributes["start_indices"][dim]]
            parts = [shape(op.results[0])[dim]]
        elif op.name == "stablehlo.pad":
            starts = [op.attributes["edge_padding_low"][dim]]
            parts = [shape(op.operands[0])[dim]]
        else:
            starts, parts = [], [shape(value)[dim] for value in op.operands]
        known.update(parts)
        size = parts[0]
        if size == 0 or shape(whole)[dim] % size or any(start % size for start in starts):
            return 0
    return known.pop() if len(known) == 1 else 0


def _merged_behind(classes: Classes, found: Class) -> Iterator[tuple[Class, int]]:
    """The dimensions of which a class is the first factor, and where they are to be cut."""
    for op in found.reshapes:
        values = (op.operands[0], op.results[0])
        for sides in groups(op):
            pairs = [(v, wide(v, dims)) for v, dims in zip(values, sides, strict=True)]
            for (value, dims), (other, merged) in (pairs, pairs[::-1]):
                if len(dims) > 1 == len(merged) and classes.of.get((value, dims[0])) is found:
                    outer = classes.explore((other, merged[0]))
                    if outer:
                        yield outer, shape(other)[merged[0]] // shape(value)[dims[0]]


def _of_a_weight(classes: Classes, found: Class) -> bool:
    """Returns whether a product makes or sums only this, and has an argument or is a result."""
    for value, dim in found.members:
        for op in [value.owner, *(use.owner for use in value.uses)]:
            if getattr(op, "name", "") != _DOT:
                continue
            tensors = list(zip((*op.operands, *op.results), letters_of(op), strict=True))
            for letter in {named[dim] for other, named in tensors if other == value}:
                role = [letter in named for _, named in tensors]
                alike = {
                    each
                    for _, letters in tensors
                    for each in letters
                    if [each in named for _, named in tensors] == role
                }
                if len(alike) == 1 and any(
                    classes.explore((other, named.index(letter))) is None
                    for other, named in tensors
                    if letter in named
                ):
                    return True
    return False
