"""Sizes of the built-in models: measured once, and kept in `sizes.toml`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

FILE = Path(__file__).with_name("sizes.toml")
"""Path of the file that `make models` writes."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of one preset."""

    parameters: int
    """Number of trained elements."""
    operations: int
    """Number of operations in the program of a step, those of a loop counted once."""
    flops: float
    """Flops of the matrix products and convolutions of a step, forward and backward."""


def load() -> dict[str, Size]:
    """The sizes of all presets, by name."""
    table = tomllib.loads(FILE.read_text("utf-8"))
    return {preset: Size(**fields) for preset, fields in table.items()}
