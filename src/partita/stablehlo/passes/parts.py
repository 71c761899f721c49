"""A dimension in as many parts as there are devices, for what can be done part by part."""

from __future__ import annotations

import math
from typing import Any

from partita.stablehlo.building import shape_of, with_shape
from partita.stablehlo.mlir import hlo

SAVING = 4
"""Least ratio of the size of a dimension to what is left of all its parts together."""


def parts_of(size: int, devices: int, kept: int = 1) -> int:
    """The number of parts to cut a dimension into; 1 is not at all.

    Args:
      size: of the dimension.
      devices: the most parts; fewer where that does not divide the size.
      kept: how many elements are left of each part.
    """
    parts = math.gcd(size, devices)
    return parts if size >= SAVING * parts * kept else 1


def in_parts(value: Any, dim: int, parts: int) -> Any:
    """A value with a dimension cut into so many parts."""
    shape = shape_of(value)
    shape[dim : dim + 1] = [parts, shape[dim] // parts]
    return hlo.reshape(with_shape(value, shape), value)
