"""How what several devices have of one value is combined: what counts once, and what travels.

Compilers' collectives forget NaN: of NaN and 1.0 the maximum is 1.0, where every program says NaN.
So of floats a maximum or minimum travels as integers of the same width in the same order, in which
NaN is the largest, for a minimum the smallest. How they are made is in `partita.emit.ordered`.
"""

from __future__ import annotations

from partita.program.ir import bits

NEUTRAL = {"add": 0, "mul": 1}
"""For the combiners in which nothing may count twice, what changes nothing."""

EXTREMES = ("max", "min")
"""The combiners that forget NaN in a collective."""

_SIGN_AND_MAGNITUDE = ("f64", "f32", "f16", "bf16", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E5M2")
"""Floats whose bits are a sign and a magnitude, of which the largest is NaN."""


def combines(dtype: str, combine: str) -> bool:
    """Whether collectives combine values of an element type so; XLA's need a byte at least."""
    known = combine not in EXTREMES or _has_no_nan(dtype) or dtype in _SIGN_AND_MAGNITUDE
    return known and bits(dtype) >= 8


def travels_as(dtype: str, combine: str) -> str:
    """The element type in which values that can be combined so over devices are exchanged."""
    if combine not in EXTREMES or _has_no_nan(dtype):
        return dtype
    return f"i{bits(dtype)}"


def _has_no_nan(dtype: str) -> bool:
    return dtype.startswith(("i", "ui"))
