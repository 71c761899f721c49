"""Tiling: actions applied in order to a program's factors and dimensions."""

from partita.tiling.spread import Node, Resolution, Spread, Spreader, Stop
from partita.tiling.tiling import (
    Assignment,
    Axes,
    Layout,
    Tiling,
    assignment,
    refold,
    replicated,
    untiled,
    uses_axis,
)

__all__ = [
    "Assignment",
    "Axes",
    "Layout",
    "Node",
    "Resolution",
    "Spread",
    "Spreader",
    "Stop",
    "Tiling",
    "assignment",
    "refold",
    "replicated",
    "untiled",
    "uses_axis",
]
