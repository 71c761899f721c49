"""Matrix products and convolutions: their FLOPs, and how well they fill the matrix units.

A matrix unit holds a tile of one operand: rows are contracted elements, columns those of the
result. The other operand streams through it. Dimensions that are no multiple of the tile leave part
of it idle, which makes small products slow: heads of 64 fill half of the rows of a unit of 128.

If kernels feed such units (GPUs), small products are slow because units wait at the start and the
end of each kernel, as long as contracting some more elements would take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from partita.cost.devices.hardware import TileShape
from partita.program.ir import Operation, Value
from partita.program.rule import Rule


def points(op: Operation, values: Sequence[Value]) -> int:
    """Returns the number of multiplications of a matrix product or convolution.

    For a convolution, that is the size of the kernel for each output pixel of each image. A product
    that is manual over axes counts for each of the devices along them.
    """
    if not op.traits.convolution:
        # Every row is multiplied by the weight of its group alone: groups are no more work.
        tensors = [_factors(tensor) for tensor in (*op.rule.operands[:2], op.rule.results[0])]
        common = Counter(factor for tensor in tensors for factor in tensor)
        return math.prod(op.rule.factors[factor].size for factor in common if common[factor] > 1)
    kernel, result = (values[v].type.elements for v in (op.operands[1], op.results[0]))
    copies = math.prod(factor.size for factor in op.rule.factors if factor.kind == "manual")
    return copies * kernel * result // values[op.results[0]].type.shape[made_feature(op)]


def read_feature(op: Operation) -> int:
    """Returns the dimension of a convolution's image that it shares with the kernel alone."""
    kernel, made = _factors(op.rule.operands[1]), _factors(op.rule.results[0])
    for dim, made_of in enumerate(op.rule.operands[0]):
        if made_of and made_of[-1] in kernel and made_of[-1] not in made:
            return dim
    return len(op.rule.operands[0]) - 1


def made_feature(op: Operation) -> int:
    """Returns the dimension of a convolution's result that it shares with the kernel alone."""
    image, kernel = (_factors(op.rule.operands[number]) for number in (0, 1))
    for dim, made_of in enumerate(op.rule.results[0]):
        if made_of and made_of[-1] in kernel and made_of[-1] not in image:
            return dim
    return len(op.rule.results[0]) - 1


def contracted(op: Operation, sizes: Sequence[int]) -> int:
    """Returns the number of elements that a matrix product contracts, given its factors' sizes."""
    left, right = (_factors(op.rule.operands[number]) for number in (0, 1))
    shared = (left & right) - _factors(op.rule.results[0])
    return max(1, math.prod(sizes[factor] for factor in shared))


def filling(op: Operation, sizes: Sequence[int], unit: TileShape) -> float:
    """Returns the share of the matrix units that a product keeps busy (0..1].

    The contracted dimension is padded to the rows of a unit. One side of a matrix product, the one
    that it pays for, is padded to the columns; for a convolution, the features. Its channels share
    a unit with a row of the window if they are few enough; so do groups of channels.

    Args:
      op: a product or convolution.
      sizes: of its factors, on one device.
      unit: rows and columns.
    """
    left, right = (_factors(op.rule.operands[number]) for number in (0, 1))
    made = _factors(op.rule.results[0])

    def size(factors: frozenset[int]) -> int:
        return math.prod(sizes[factor] for factor in factors)

    rows, columns = int(unit.rows.value), int(unit.columns.value)
    inner = size((left & right) - made)
    if op.traits.convolution:
        window = max((sizes[factor] for factor in right - left - made), default=1)
        grouped = size(left & right & made) > 1
        if not grouped and inner * window <= rows:
            inner *= window
        outer = _share(size(right & made), columns)
    else:
        outer = max(_share(size((side & made) - other), columns) for side, other in _sides(op.rule))
    return _share(inner, rows) * outer


def of_single_row(op: Operation, sizes: Sequence[int]) -> int:
    """Returns the elements of the larger operand of a product with a single row on a side; else 0.

    Args:
      op: the product.
      sizes: of its factors.
    """
    sides = [{f for dim in side for f in dim} for side in op.rule.operands[:2]]
    if len(sides) < 2:
        return 0
    left, right = sides
    if all(math.prod(sizes[f] for f in own) > 1 for own in (left - right, right - left)):
        return 0
    return max(math.prod(sizes[f] for f in side) for side in sides)


def _sides(rule: Rule) -> tuple[tuple[frozenset[int], frozenset[int]], ...]:
    left, right = _factors(rule.operands[0]), _factors(rule.operands[1])
    return (left, right), (right, left)


def _share(size: int, unit: int) -> float:
    """Returns the used share of a dimension that is padded to a multiple of the unit."""
    return size / (math.ceil(size / unit) * unit) if size else 1.0


def _factors(tensor: tuple[tuple[int, ...], ...]) -> frozenset[int]:
    return frozenset(factor for dimension in tensor for factor in dimension)
