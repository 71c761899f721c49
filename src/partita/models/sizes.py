"""How large the built-in models are: measured once, and kept in `sizes.toml`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

FILE = Path(__file__).with_name("sizes.toml")
"""What `make models` writes."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of one preset."""

    parameters: int
    """What is learned, in numbers of elements."""
    operations: int
    """Of the program that a step is, those of a loop once."""
    flops: float
    """Of the matrix products and convolutions of a step, forward and backward."""


def load() -> dict[str, Size]:
    """The sizes of all presets, by name."""
    table = tomllib.loads(FILE.read_text("utf-8"))
    return {preset: Size(**fields) for preset, fields in table.items()}
