"""Slices that leave out a few elements, such as `x[1:]` and `x[:-1]`, carried on in full length.

Of 1024 elements 1023 are left, which no axis divides, so all that is made of them would have to be
unsharded. Instead a slice is read as its full-length operand of which some elements do not count,
and so is what is made of it elementwise: operands that start elsewhere are shifted, for which
neighbours exchange what moves. Where the elements that do not count would matter, they are masked:
in a sum, in padding (as the gradient of a slice has it) and in a concatenation. What is then as
long as before, or a sum, is sharded again. Differences of neighbours, shifts by one to either side,
and `lax.associative_scan` are written in this way.

Programs in which that leads nowhere stay as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from partita.program.ir import Operation, Program
from partita.program.op_traits import traits
from partita.stablehlo import tags
from partita.stablehlo.bodies import neutral
from partita.stablehlo.building import (
    again,
    bounds_of,
    cut,
    padded,
    shape_of,
    sliced,
    with_shape,
    within,
)
from partita.stablehlo.manual_regions import is_manual
from partita.stablehlo.mlir import filled, find, hlo, ir, main_function, maker, splat
from partita.stablehlo.operations.moves import padding
from partita.stablehlo.operations.windows import paddings
from partita.stablehlo.passes import prefix
from partita.stablehlo.passes.driver import ForDevices
from partita.stablehlo.passes.liveness import drop_dead


@dataclasses.dataclass(frozen=True)
class Crop:
    """A value as a part of another one: its elements along `dim` from `start` on."""

    whole: Any
    dim: int
    start: int
    size: int
    made_from: tuple[Any, ...] = ()
    """The values, themselves parts, that it is made from."""

    @property
    def length(self) -> int:
        """Elements of the whole along the dimension."""
        return shape_of(self.whole)[self.dim]


def _rewrite(devices: int, module: Any) -> bool:
    used = _aligned(devices, module)  # of which no handles are left
    drop_dead(module)
    return used


def _aligned(devices: int, module: Any) -> bool:
    aligner = _Aligner(devices)
    for op in find(main_function(module).operation, lambda op: not is_manual(op)):
        aligner.read(op)
    aligner.finish()
    return bool(aligner.used)


def _may_crop(program: Program, op: Operation, devices: int) -> bool:
    if op.kind not in _MAKING:
        return False
    operand, result = (program.values[v].type.shape for v in (op.operands[0], op.results[0]))
    return any(_loses(a, b, devices) for a, b in zip(operand, result, strict=True))


def _loses(size: int, made: int, parts: int) -> bool:
    """Returns whether a part, of several elements, shards less far than its whole dimension."""
    return 1 < made < size and math.gcd(made, parts) < math.gcd(size, parts)


class _Aligner:
    """Reads operations in order, and writes those that make parts of values in full length."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.crops: dict[Any, Crop] = {}
        self.used: set[Any] = set()
        """The parts from which something has been made that is none."""
        self.made: list[Any] = []
        """Operations whose results are parts."""

    def read(self, op: Any) -> None:
        """Notes that an operation makes a part, or replaces it by one of operands in full."""
        if len(op.results) != 1:
            return
        known = traits(op.name)
        read = _elementwise if known.elementwise else _READ.get(op.name)
        if read is None or not (op.name in _MAKING or self._of_parts(op)):
            return
        with ir.InsertionPoint(op), op.location:
            made = read(self, op)
            if made is not None and not isinstance(made, Crop):
                op.results[0].replace_all_uses_with(tags.named(made, tags.of(op)))
        if isinstance(made, Crop):
            self.crops[op.results[0]] = made
            self.made.append(op)
        elif made is not None:
            self._use([v for v in op.operands if v in self.crops])

    def finish(self) -> None:
        """Lets nothing be made twice: what is needed in part is cut out of what is made in full."""
        for op in reversed(self.made):
            (result,) = op.results
            if result in self.used and any(True for _ in result.uses):
                crop = self.crops[result]
                with ir.InsertionPoint(op), op.location:
                    made = cut(crop.whole, crop.dim, crop.start, crop.start + crop.size)
                    result.replace_all_uses_with(tags.named(made, tags.of(op)))

    def _of_parts(self, op: Any) -> bool:
        return any(value in self.crops for value in op.operands)

    def _use(self, queue: list[Any]) -> None:
        while queue:
            value = queue.pop()
            if value not in self.used:
                self.used.add(value)
                queue += self.crops[value].made_from

    def gains(self, crop: Crop, size: int) -> bool:
        """Returns whether a dimension of this size shards further than the crop."""
        return math.gcd(size, self.parts) > math.gcd(crop.size, self.parts)

    def shifted(self, value: Any, like: Crop, start: int) -> Any:
        """A value in full length, so that what counts of it begins at `start`.

        What is no part comes with zeros around it.
        """
        crop = self.crops.get(value)
        if crop is not None and (crop.dim, crop.length) == (like.dim, like.length):
            by = start - crop.start
            return padded(crop.whole, crop.dim, by, -by)
        if (made := _remade(value, like)) is not None:
            return made
        return padded(value, like.dim, start, like.length - start - like.size)


def _remade(value: Any, like: Crop) -> Any | None:
    """A value that is the same all along a dimension, in full length; None for any other."""
    op = maker(value)
    if op is None:
        return None
    shape = shape_of(value)
    shape[like.dim] = like.length
    type_ = with_shape(value, shape)
    if traits(op.name).broadcasts and like.dim not in list(op.attributes["broadcast_dimensions"]):
        return hlo.broadcast_in_dim(type_, op.operands[0], op.attributes["broadcast_dimensions"])
    if traits(op.name).constant and (element := splat(op)) is not None:
        return hlo.constant(ir.DenseElementsAttr.get_splat(type_, element))
    return None


def _slice(aligner: _Aligner, op: Any) -> Crop | Any | None:
    """A part of its operand, or a part of a part."""
    starts, limits, strides = bounds_of(op)
    value, sizes = op.operands[0], shape_of(op.operands[0])
    moved = [d for d, size in enumerate(sizes) if (starts[d], limits[d]) != (0, size)]
    moved = [d for d in range(len(sizes)) if d in moved or strides[d] != 1]
    crop = aligner.crops.get(value)
    if crop is not None and crop.dim not in moved:
        starts[crop.dim], limits[crop.dim] = 0, crop.length
        whole = sliced(crop.whole, starts, limits, strides)
        return Crop(whole, crop.dim, crop.start, crop.size, (value,))
    if len(moved) != 1:
        return None
    (dim,) = moved
    return _part(aligner, op, dim, range(starts[dim], limits[dim], strides[dim]))


def _part(aligner: _Aligner, op: Any, dim: int, places: range) -> Crop | Any | None:
    """Returns these indices along a dimension of the first operand; None to keep the operation."""
    value, made = op.operands[0], len(places)
    made_from: tuple[Any, ...] = ()
    crop = aligner.crops.get(value)
    if crop is not None and crop.dim != dim:
        whole = cut(crop.whole, dim, places.start, places.stop, places.step)
        return Crop(whole, crop.dim, crop.start, crop.size, (value,))
    if crop is not None:
        value, made_from = crop.whole, (value,)
        places = range(places.start + crop.start, places.stop + crop.start, places.step)
    size = shape_of(value)[dim]
    if size % places.step or not made:
        return None
    length, divides = size // places.step, math.gcd(made, aligner.parts)
    if made == 1 or (2 * made > length and divides < math.gcd(length, aligner.parts)):
        whole = cut(value, dim, places.start % places.step, size, places.step)
        return Crop(whole, dim, places.start // places.step, made, made_from)
    if crop is not None and divides > math.gcd(crop.size, aligner.parts):
        return cut(value, dim, places.start, places.stop, places.step)
    return None


def _elementwise(aligner: _Aligner, op: Any) -> Crop | None:
    parts = [aligner.crops[v] for v in op.operands if v in aligner.crops]
    like = max(parts, key=lambda part: part.start)
    if like.size == 1 or any((p.dim, p.length) != (like.dim, like.length) for p in parts):
        return None
    shape = shape_of(op.results[0])
    operands = [
        v if shape_of(v) != shape else aligner.shifted(v, like, like.start) for v in op.operands
    ]
    (whole,) = again(op, operands, shape_of(like.whole))
    return Crop(
        whole, like.dim, like.start, like.size, tuple(v for v in op.operands if v in aligner.crops)
    )


def _broadcast(aligner: _Aligner, op: Any) -> Crop | None:
    crop = aligner.crops[op.operands[0]]
    dims = list(op.attributes["broadcast_dimensions"])
    shape, dim = shape_of(op.results[0]), dims[crop.dim]
    if crop.size == 1:
        return None
    shape[dim] = crop.length
    (whole,) = again(op, [crop.whole], shape)
    return Crop(whole, dim, crop.start, crop.size, (op.operands[0],))


def _transpose(aligner: _Aligner, op: Any) -> Crop:
    crop = aligner.crops[op.operands[0]]
    order = list(op.attributes["permutation"])
    (whole,) = again(op, [crop.whole], [shape_of(crop.whole)[d] for d in order])
    return Crop(whole, order.index(crop.dim), crop.start, crop.size, (op.operands[0],))


def _reduce(aligner: _Aligner, op: Any) -> Crop | Any | None:
    """Masks the elements that do not count; keeps the crop if another dimension is reduced."""
    crop = aligner.crops.get(op.operands[0])
    if crop is None or crop.size == 1:
        return None
    dims = list(op.attributes["dimensions"])
    if crop.dim not in dims:
        shape = [s for d, s in enumerate(shape_of(crop.whole)) if d not in dims]
        (whole,) = again(op, [crop.whole, op.operands[1]], shape)
        dim = crop.dim - sum(d < crop.dim for d in dims)
        return Crop(whole, dim, crop.start, crop.size, (op.operands[0],))
    start = neutral(op)
    if start is None:
        return None
    masked = hlo.select(_counts(crop), crop.whole, filled(crop.whole.type, start))
    return again(op, [masked, op.operands[1]], shape_of(op.results[0]))[0]


def _accumulate(aligner: _Aligner, op: Any) -> Crop | None:
    """A cumulative sum; what does not count is masked."""
    crop, start = aligner.crops.get(op.operands[0]), neutral(op)
    if crop is None or start is None or prefix.accumulated(op) != crop.dim:
        return None
    masked = hlo.select(_counts(crop), crop.whole, filled(crop.whole.type, start))
    backward = not paddings(op, len(shape_of(masked)))[2 * crop.dim]
    bound = (op.operands[1], crop.dim, crop.length - 1, backward)
    whole = prefix.accumulate(op, masked, *bound)
    return Crop(whole, crop.dim, crop.start, crop.size, (op.operands[0],))


def _counts(crop: Crop) -> Any:
    """Returns a mask of the elements of the whole that count."""
    return within(crop.whole.type, crop.dim, crop.start, crop.start + crop.size)


def _pad(aligner: _Aligner, op: Any) -> Crop | Any | None:
    """Pads: elements that do not count become padding. Cropping on both sides makes a part."""
    moved = [d for d in range(len(shape_of(op.results[0]))) if any(padding(op, d))]
    if len(moved) != 1:
        return None
    (dim,) = moved
    crop, size = aligner.crops.get(op.operands[0]), shape_of(op.operands[0])[dim]
    low, high, interior = padding(op, dim)
    if low <= 0 and high <= 0 and not interior:
        return _part(aligner, op, dim, range(-low, size + high))
    made = shape_of(op.results[0])[dim]
    if crop is None or crop.dim != dim or min(low, high) < 0 or not aligner.gains(crop, made):
        return None
    # One element may have the others of its dimension far apart from it, where that fits.
    apart = made // crop.length if crop.size == 1 and not made % crop.length else interior + 1
    return _filled(crop, made, low, op.operands[1], apart)


def _filled(crop: Crop, size: int, place: int, fill: Any, apart: int = 1) -> Any:
    """Puts the elements that count at a place of a longer dimension, and `fill` everywhere else."""
    dim, begin = crop.dim, place - apart * crop.start
    end = size - begin - apart * (crop.length - 1) - 1
    stop = place + apart * (crop.size - 1) + 1
    nothing_before = crop.start == 0 or place == 0
    nothing_after = crop.start + crop.size == crop.length or stop + apart > size
    if nothing_before and nothing_after:
        return padded(crop.whole, dim, begin, end, apart - 1, fill)
    whole = padded(crop.whole, dim, begin, end, apart - 1)
    beside = hlo.broadcast_in_dim(whole.type, fill, ir.DenseI64ArrayAttr.get([]))
    return hlo.select(within(whole.type, dim, place, stop, apart), whole, beside)


def _scalar(value: Any) -> Any | None:
    """The one element that a value has everywhere, as a scalar; None if it is not known."""
    op = maker(value)
    if op is None:
        return None
    if traits(op.name).broadcasts and not shape_of(op.operands[0]):
        return op.operands[0]
    element = splat(op) if traits(op.name).constant else None
    type_ = with_shape(value, [])
    return element and hlo.constant(ir.DenseElementsAttr.get_splat(type_, element))


def _concatenate(aligner: _Aligner, op: Any) -> Any | None:
    """Each operand in its place, and of these at every place the one that counts."""
    dim = op.attributes["dimension"].value
    size = shape_of(op.results[0])[dim]
    crops = [aligner.crops.get(value) for value in op.operands]
    parts = [crop for crop in crops if crop is not None]
    if any(crop.dim != dim or not aligner.gains(crop, size) for crop in parts):
        return None
    if all(crop.size == 1 for crop in parts):
        return None
    place, total = 0, None
    type_ = op.results[0].type
    beside = _scalar(op.operands[int(crops[0] is not None)])
    if len(crops) == 2 and len(parts) == 1 and beside is not None:
        place = 0 if crops[0] is not None else size - parts[0].size
        return _filled(_thinned(parts[0], size), size, place, beside)
    for value, crop in zip(op.operands, crops, strict=True):
        own = shape_of(value)[dim]
        if crop is not None:
            crop = _thinned(crop, size)
            low = place - crop.start
            made = padded(crop.whole, dim, low, size - crop.length - low)
        else:
            made = _remade(value, Crop(op.results[0], dim, 0, own))
            if made is None:
                made = padded(value, dim, place, size - place - own)
        if own:
            here = within(type_, dim, place, place + own)
            total = made if total is None else hlo.select(here, made, total)
        place += own
    return total


def _thinned(crop: Crop, size: int) -> Crop:
    """One element of a dimension as one of fewer, so many: others are left out evenly."""
    apart = crop.length // size
    if crop.size > 1 or apart < 2 or crop.length % size:
        return crop
    whole = cut(crop.whole, crop.dim, crop.start % apart, crop.length, apart)
    return Crop(whole, crop.dim, crop.start // apart, 1, crop.made_from)


_READ: dict[str, Callable[[_Aligner, Any], Crop | Any | None]] = {
    "stablehlo.slice": _slice,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.transpose": _transpose,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _accumulate,
    "stablehlo.pad": _pad,
    "stablehlo.concatenate": _concatenate,
}
"""Handlers by operation, for operands that are parts of values."""

_MAKING = ("stablehlo.slice", "stablehlo.pad")
"""Operations that can start a crop: their operand need not be a part."""

align = ForDevices(_may_crop, _rewrite)
"""Writes slices in full length, where that keeps them sharded."""
