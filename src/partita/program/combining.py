"""How what several devices have of one value is combined: what counts once, and what travels.

Compilers' collectives forget NaN: of NaN and 1.0 the maximum is 1.0, where every program says NaN.
So of floats a maximum or minimum travels as integers in the same order, in which NaN is the
largest, for a minimum the smallest. How they are made is in `partita.emit.ordered`.
"""

from __future__ import annotations

from partita.program.ir import bits

NEUTRAL = {"add": 0, "mul": 1}
"""For the combiners in which nothing may count twice, what changes nothing."""

WITHOUT_ZERO = ("f8E8M0FNU",)
"""Element types that have no zero: powers of two, to scale others by."""

EXTREMES = ("max", "min")
"""The combiners that forget NaN in a collective."""


def combines(dtype: str, combine: str) -> bool:
    """Whether collectives combine values of an element type so; XLA's need a byte at least.

    Where one device has a value and others add nothing to it, they add zeros.
    """
    ordered = combine not in EXTREMES or not dtype.startswith("complex")
    return ordered and bits(dtype) >= 8 and (combine != "add" or dtype not in WITHOUT_ZERO)


def travels_as(dtype: str, combine: str) -> str:
    """The element type in which values that can be combined so over devices are exchanged.

    Extremes of narrow floats take 32 bits, which all compilers keep: GPUs have no collectives of
    integers of 16 bits, and TPUs pad them.
    """
    if combine not in EXTREMES or dtype.startswith(("i", "ui")):
        return dtype
    return "i64" if dtype == "f64" else "i32"
