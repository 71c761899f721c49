"""Dimensions that a program merges and later takes apart again are kept apart.

Attention is often written with batch and heads merged into one dimension, because a batched product
of PyTorch's takes one. A merged dimension can be sharded along the first of its factors only: a
shard of the heads is not contiguous in it. Where all that a merged dimension goes through would do
the same with several dimensions, it becomes those, and the reshapes at its ends fall away.

What is looked at together is a *class*: all dimensions of all values that are one dimension,
through whatever operations lie between, loops and branches included. It is left as it is if any of
it belongs to an argument, a result, or an operation that needs it as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.stablehlo.mlir import find, main_function
from partita.stablehlo.operations.letters import shape, wide
from partita.stablehlo.operations.shapes import groups
from partita.stablehlo.passes.dimensions.classes import RESHAPE, Classes, Place, sizes
from partita.stablehlo.passes.dimensions.split import split


def unmerge(module: Any) -> None:
    """Splits merged dimensions of the function `main`, where nothing needs them merged."""
    classes = Classes()
    for op in find(main_function(module).operation, _merges):
        for before, after in groups(op):
            if len(wide(op.operands[0], before)) > 1:
                for dim in wide(op.results[0], after):
                    classes.explore((op.results[0], dim))
    _cut(classes)
    split(sizes(classes.closed))


def _merges(op: Any) -> bool:
    """Returns whether an operation is a reshape that makes one dimension of several."""
    if op.name != RESHAPE:
        return False
    before, after = ([n for n in shape(v) if n > 1] for v in (*op.operands, *op.results))
    return before != after and 0 not in before


def _cut(classes: Classes) -> None:
    """Cuts each class where the reshapes at it have other dimensions begin."""
    queue = {op: None for found in classes.closed for op in found.reshapes}
    while queue:
        op = next(iter(queue))
        del queue[op]
        for sides in groups(op):
            pairs = zip((op.operands[0], op.results[0]), sides, strict=True)
            dims = [each for value, dims in pairs for each in _steps(value, dims)]
            ends = {step for _, step, _ in dims}
            for place, step, _ in dims:
                found = classes.of.get(place)
                ends |= {step * cut for cut in found.cuts} if found else set()
            for place, step, size in dims:
                found = classes.of.get(place)
                for end in sorted(ends) if found else ():
                    inside = step < end < step * size and end % step == 0
                    if found and inside and step * size % end == 0 and found.cut(end // step):
                        queue.update(found.reshapes)


def _steps(value: Any, dims: list[int]) -> Iterator[tuple[Place, int, int]]:
    """Dimensions of a group, how many of its elements are behind one index of each, and sizes."""
    made, step = shape(value), 1
    for dim in reversed(dims):
        yield (value, dim), step, made[dim]
        step *= made[dim]
