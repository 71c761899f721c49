"""Tiling: actions applied in order to a program's factors and dimensions."""

from partita.mesh import Axes, Layout, entries, spec
from partita.tiling.forms import (
    Forms,
    Need,
    OpForm,
    form_of,
    layout_from_result,
    local_type,
    read_type,
)
from partita.tiling.nests import AxisLoop, LoopNests, Nest
from partita.tiling.propagate import Node, Propagation, Propagator, Resolution, Stop
from partita.tiling.tiling import (
    LAYOUTS,
    Assignment,
    Tiling,
    assignment,
    refold,
    replicated,
    untiled,
    uses_axis,
)

__all__ = [
    "LAYOUTS",
    "Assignment",
    "Axes",
    "AxisLoop",
    "Forms",
    "Layout",
    "LoopNests",
    "Need",
    "Nest",
    "Node",
    "OpForm",
    "Propagation",
    "Propagator",
    "Resolution",
    "Stop",
    "Tiling",
    "assignment",
    "entries",
    "form_of",
    "layout_from_result",
    "local_type",
    "read_type",
    "refold",
    "replicated",
    "spec",
    "untiled",
    "uses_axis",
]
