"""Letters for the dimensions of operations, and attributes rewritten when dimensions are split.

`letters_of` gives the dimensions of all operands and results letters, as an einsum does: those with
the same letter are the same dimension. `renumber` rewrites the attributes of an operation when some
of its dimensions become several, each in its place. Both know the operations whose dimensions can
be split without changing what they compute; all dimensions of other operations are fixed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from partita.program.op_traits import traits
from partita.stablehlo import rolls
from partita.stablehlo.mlir import hlo, ir, is_constant, splat
from partita.stablehlo.passes.dimensions.counting import (
    EDGE,
    FIXED,
    PARTS,
    Letters,
    Sizes,
    SizesOf,
    becoming,
    flat,
    lettered,
    ones,
    shape,
)
from partita.stablehlo.passes.dimensions.indexed import (
    gather,
    renumber_gather,
    renumber_scatter,
    scatter,
)


def letters_of(op: Any) -> Letters:
    """The letters of an operation without regions that read from outside."""
    known = traits(op.name)
    row = _ROWS.get(op.name)
    if row is not None:
        return row.letters(op)
    if rolls.is_roll(op):
        return _same_but(lambda op: [rolls.place(op)[0]])(op)
    if known.elementwise:
        return tuple(lettered(value) for value in (*op.operands, *op.results))
    if is_constant(op):
        (result,) = op.results
        return (lettered(result) if splat(op) is not None else (EDGE,) * len(shape(result)),)
    # What every device runs in full anyway loses nothing by a reshape.
    own = EDGE if known.treatment == "replicated" and not op.regions else FIXED
    return tuple((own,) * len(shape(value)) for value in (*op.operands, *op.results))


def renumber(op: Any, sizes_of: SizesOf) -> Any:
    """Rewrites the attributes of an operation for the dimensions as they will be.

    Returns:
      The operation; another one in its place where it needs more operands.
    """
    row = _ROWS.get(op.name)
    if row is not None:
        return row.renumber(op, sizes_of) or op
    if is_constant(op) and splat(op) is not None:
        (result,) = op.results
        type_ = ir.RankedTensorType(result.type)
        held = op.attributes["value"]
        flat = [size for each in sizes_of(result) for size in each]
        made = ir.RankedTensorType.get(flat, type_.element_type)
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(made, held.get_splat_value())
    return op


@dataclasses.dataclass(frozen=True)
class _Row:
    letters: Callable[[Any], Letters]
    renumber: Callable[[Any, SizesOf], Any]


def _moved(op: Any, key: str, sizes: Sizes) -> None:
    """Rewrites a list of dimensions of a tensor."""
    places = becoming(sizes)
    op.attributes[key] = ir.DenseI64ArrayAttr.get(flat(places[d] for d in op.attributes[key]))


def _one(op: Any, key: str, sizes: Sizes) -> None:
    """Rewrites the number of a dimension that stays one."""
    known = op.attributes[key]
    op.attributes[key] = ir.IntegerAttr.get(known.type, becoming(sizes)[known.value][0])


def _per_dimension(
    op: Any, key: str, sizes: Sizes, split: Callable[[tuple[int, ...], int], list[int]]
) -> None:
    """Rewrites a list with an entry per dimension; `split` says those of one made several."""
    known = list(op.attributes[key])
    op.attributes[key] = ir.DenseI64ArrayAttr.get(
        flat([k] if len(s) == 1 else split(s, k) for k, s in zip(known, sizes, strict=True))
    )


def _parts(sizes: tuple[int, ...], elements: int) -> list[int]:
    """A number of elements that is one of parts, of the dimensions within none."""
    return [elements // math.prod(sizes[1:]), *(0 for _ in sizes[1:])]


def _up_to(sizes: tuple[int, ...], elements: int) -> list[int]:
    """Returns the end of a part in the outer dimension, and all of the inner dimensions."""
    return [elements // math.prod(sizes[1:]), *sizes[1:]]


def _unmoved(op: Any, sizes_of: SizesOf) -> None:
    """No attribute counts dimensions, or only from the last one, which stays."""


# Letters of kinds whose dimensions are one where they have the same number.


def _same_but(
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


def _its_dimension(op: Any) -> list[int]:
    return [op.attributes["dimension"].value]


def _last(count: int) -> Callable[[Any], range]:
    """Operations on matrices, or vectors, that stand in the last dimensions."""

    def dims(op: Any) -> range:
        rank = len(shape(op.results[0]))
        return range(rank - count, rank)

    return dims


def _transformed(op: Any) -> Iterable[int]:
    return _last(len(op.attributes["fft_length"]))(op)


def _resized(op: Any) -> list[int]:
    """Returns the dimensions that are read or written in part."""
    other = op.operands[1] if op.name == "stablehlo.dynamic_update_slice" else op.results[0]
    pairs = zip(shape(op.operands[0]), shape(other), strict=True)
    return [dim for dim, (a, b) in enumerate(pairs) if a != b]


def _padded(op: Any) -> list[int]:
    kinds = ("edge_padding_low", "edge_padding_high", "interior_padding")
    widths = zip(*(op.attributes[kind] for kind in kinds), strict=True)
    return [dim for dim, each in enumerate(widths) if any(each)]


# Kinds with letters of their own.


def _transpose(op: Any) -> Letters:
    names = lettered(op.operands[0])
    return names, tuple(names[dim] for dim in op.attributes["permutation"])


def _broadcast(op: Any) -> Letters:
    operand, result = op.operands[0], op.results[0]
    made = shape(result)
    dims = list(op.attributes["broadcast_dimensions"])
    pairs = zip(shape(operand), dims, strict=True)
    return tuple(f"d{d}" if n == made[d] else EDGE for n, d in pairs), lettered(result)


def _renumber_broadcast(op: Any, sizes_of: SizesOf) -> None:
    operand, places = sizes_of(op.operands[0]), becoming(sizes_of(op.results[0]))
    dims = op.attributes["broadcast_dimensions"]
    op.attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get(
        flat(places[dim][: len(each)] for dim, each in zip(dims, operand, strict=True))
    )


def _reduce(op: Any) -> Letters:
    names = lettered(op.operands[0])
    over = set(op.attributes["dimensions"])
    kept = tuple(name for dim, name in enumerate(names) if dim not in over)
    count = len(op.results)
    return (names,) * count + ((),) * count + (kept,) * count


def _dot(op: Any) -> Letters:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = [f"l{dim}" for dim in range(len(shape(op.operands[0])))]
    right = [f"r{dim}" for dim in range(len(shape(op.operands[1])))]
    shared = list(
        zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True)
    )
    summed = list(
        zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
    )
    for mine, other in (*shared, *summed):
        right[other] = left[mine]
    paired = {left[mine] for mine, _ in (*shared, *summed)}
    free = [name for name in (*left, *right) if name not in paired]
    return tuple(left), tuple(right), (*(left[mine] for mine, _ in shared), *free)


def _renumber_dot(op: Any, sizes_of: SizesOf) -> None:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = (becoming(sizes_of(operand)) for operand in op.operands)
    op.attributes["dot_dimension_numbers"] = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=flat(left[d] for d in numbers.lhs_batching_dimensions),
        rhs_batching_dimensions=flat(right[d] for d in numbers.rhs_batching_dimensions),
        lhs_contracting_dimensions=flat(left[d] for d in numbers.lhs_contracting_dimensions),
        rhs_contracting_dimensions=flat(right[d] for d in numbers.rhs_contracting_dimensions),
    )


def _reshape(op: Any) -> Letters:
    """The same dimension where it is one on both sides; others are merged or split here."""
    sides = [[EDGE] * len(shape(value)) for value in (op.operands[0], op.results[0])]
    for number, group in enumerate(groups(op)):
        sizes = [
            [d for d in dims if shape(v)[d] > 1]
            for dims, v in zip(group, (op.operands[0], op.results[0]), strict=True)
        ]
        if len(sizes[0]) == len(sizes[1]) == 1:
            for side, (dim,) in zip(sides, sizes, strict=True):
                side[dim] = f"g{number}"
    return tuple(map(tuple, sides))


def groups(op: Any) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a reshape's operand and result that hold the same elements, the least."""
    before, after = shape(op.operands[0]), shape(op.results[0])
    if 0 in before:
        return [(list(range(len(before))), list(range(len(after))))]
    found: list[tuple[list[int], list[int]]] = []
    left, right = list(range(len(before))), list(range(len(after)))
    while left or right:
        mine, theirs = left[:1], right[:1]
        a, b = math.prod(before[d] for d in mine), math.prod(after[d] for d in theirs)
        while a != b:
            if a < b:
                mine.append(left[len(mine)])
                a *= before[mine[-1]]
            else:
                theirs.append(right[len(theirs)])
                b *= after[theirs[-1]]
        left, right = left[len(mine) :], right[len(theirs) :]
        found.append((mine, theirs))
    return found


def _iota(op: Any) -> Letters:
    """Whole numbers along several dimensions are made of those along each."""
    along = op.attributes["iota_dimension"].value
    names = lettered(op.results[0])
    if "i" in str(ir.RankedTensorType(op.results[0].type).element_type):
        return (names,)
    return (tuple(EDGE if dim == along else name for dim, name in enumerate(names)),)


def _renumber_slice(op: Any, sizes_of: SizesOf) -> None:
    sizes = sizes_of(op.operands[0])
    _per_dimension(op, "start_indices", sizes, _parts)
    _per_dimension(op, "limit_indices", sizes, _up_to)
    _per_dimension(op, "strides", sizes, ones)


def _renumber_pad(op: Any, sizes_of: SizesOf) -> None:
    for key in ("edge_padding_low", "edge_padding_high", "interior_padding"):
        _per_dimension(op, key, sizes_of(op.results[0]), _parts)


def _renumber_dynamic(op: Any, sizes_of: SizesOf) -> Any:
    """An index for each dimension; where all of it is read or written, any is clamped to 0."""
    sizes = sizes_of(op.operands[0])
    if "slice_sizes" in op.attributes:
        _per_dimension(op, "slice_sizes", sizes, _up_to)
    first = len(op.operands) - len(sizes)
    values = list(op.operands)
    indices = [value for value, each in zip(values[first:], sizes, strict=True) for _ in each]
    with ir.InsertionPoint(op), op.location:
        return ir.Operation.create(
            op.name,
            results=[op.results[0].type],
            operands=[*values[:first], *indices],
            attributes=dict(op.attributes.items()),
        )


def _windowed(op: Any) -> list[int]:
    keys = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    widths = zip(*(list(op.attributes[key]) for key in keys if key in op.attributes), strict=True)
    return [dim for dim, each in enumerate(widths) if set(each) != {1}]


def _renumber_window(op: Any, sizes_of: SizesOf) -> None:
    sizes = sizes_of(op.operands[0])
    for key in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if key in op.attributes:
            _per_dimension(op, key, sizes, ones)
    if "padding" in op.attributes:
        known = np.array(op.attributes["padding"], np.int64).reshape(-1, 2)
        padding: Any = np.repeat(known, [len(each) for each in sizes], axis=0)
        op.attributes["padding"] = ir.DenseIntElementsAttr.get(padding)


def _number(op: Any, sizes_of: SizesOf) -> None:
    """The attribute that counts the dimension which an operation works on."""
    _one(op, "dimension", sizes_of(op.results[0]))


def _contiguous(op: Any) -> bool:
    """Returns whether adjacent elements stay adjacent."""
    if op.name == "stablehlo.slice":
        return set(op.attributes["strides"]) == {1}
    if op.name == "stablehlo.pad":
        edges = (*op.attributes["edge_padding_low"], *op.attributes["edge_padding_high"])
        return not any(op.attributes["interior_padding"]) and min(edges) >= 0
    return True


_ROWS: dict[str, _Row] = {
    "stablehlo.broadcast_in_dim": _Row(_broadcast, _renumber_broadcast),
    "stablehlo.cholesky": _Row(_same_but(_last(2)), _unmoved),
    "stablehlo.concatenate": _Row(_same_but(_its_dimension, _contiguous), _number),
    "stablehlo.dot_general": _Row(_dot, _renumber_dot),
    "stablehlo.dynamic_slice": _Row(_same_but(_resized), _renumber_dynamic),
    "stablehlo.dynamic_update_slice": _Row(_same_but(_resized), _renumber_dynamic),
    "stablehlo.fft": _Row(_same_but(_transformed), _unmoved),
    "stablehlo.gather": _Row(gather, renumber_gather),
    "stablehlo.iota": _Row(
        _iota, lambda op, sizes_of: _one(op, "iota_dimension", sizes_of(op.results[0]))
    ),
    "stablehlo.pad": _Row(_same_but(_padded, _contiguous), _renumber_pad),
    "stablehlo.reduce": _Row(
        _reduce, lambda op, sizes_of: _moved(op, "dimensions", sizes_of(op.operands[0]))
    ),
    "stablehlo.reduce_window": _Row(_same_but(_windowed), _renumber_window),
    "stablehlo.reshape": _Row(_reshape, _unmoved),
    "stablehlo.reverse": _Row(
        _same_but(lambda op: ()),
        lambda op, sizes_of: _moved(op, "dimensions", sizes_of(op.operands[0])),
    ),
    "stablehlo.scatter": _Row(scatter, renumber_scatter),
    "stablehlo.slice": _Row(_same_but(_resized, _contiguous), _renumber_slice),
    "stablehlo.sort": _Row(_same_but(_its_dimension), _number),
    "stablehlo.transpose": _Row(
        _transpose, lambda op, sizes_of: _moved(op, "permutation", sizes_of(op.operands[0]))
    ),
    "stablehlo.triangular_solve": _Row(_same_but(_last(2)), _unmoved),
    "chlo.top_k": _Row(_same_but(_last(1)), _unmoved),
}
