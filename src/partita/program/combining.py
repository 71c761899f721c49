"""Combining the values that several devices have: neutral elements, and the types exchanged.

XLA's collectives drop NaN: the maximum of NaN and 1.0 is 1.0, where every program says NaN. So the
maximum or minimum of floats is exchanged as integers in the same order. NaN is the largest of
these, or for a minimum the smallest. `partita.emit.ordered` makes them.
"""

from __future__ import annotations

from partita.program.ir import bits

NEUTRAL = {"add": 0, "mul": 1}
"""Neutral elements of the combiners that must count nothing twice."""

WITHOUT_ZERO = ("f8E8M0FNU",)
"""Element types that have no zero: powers of two, to scale others by."""

EXTREMES = ("max", "min")
"""The combiners that forget NaN in a collective."""


def combines(dtype: str, combine: str) -> bool:
    """Returns whether collectives combine an element type this way; XLA's need at least a byte.

    Where one device has a value and others add nothing to it, they add zeros.
    """
    ordered = combine not in EXTREMES or not dtype.startswith("complex")
    return ordered and bits(dtype) >= 8 and (combine != "add" or dtype not in WITHOUT_ZERO)


def travels_as(dtype: str, combine: str) -> str:
    """Returns the element type in which devices exchange values that they combine this way.

    Extremes of narrow floats take 32 bits, which all compilers keep: GPUs have no collectives of
    integers of 16 bits, and TPUs pad them.
    """
    if combine not in EXTREMES or dtype.startswith(("i", "ui")):
        return dtype
    return "i64" if dtype == "f64" else "i32"
