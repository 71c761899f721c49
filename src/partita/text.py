"""Formatting for people: units, shardings, and tables of one style."""

from __future__ import annotations

import numbers
import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rich.table
import rich.text
from rich.console import Console, Group, RenderableType
from rich.style import Style

from partita.errors import HardwareError
from partita.escape import one_line

_UNLIMITED = 1_000_000
"""Columns of what is not printed to a terminal: nothing is wrapped or cut there."""

_PREFIXES = (("G", 30), ("M", 20), ("K", 10))
"""Prefixes of sizes in bytes, and the powers of two that they stand for."""

MOST_BYTES = 2**53
"""The largest size of anything: 8 PiB."""

_NUMBERS = (
    *("size", "count", "bytes", "bytes per device", "time", "predicted"),
    *("combined", "time combined", "compiled", "by the compiler", "ratio"),
)


class Text(rich.text.Text):
    """A line for rich. What does not print as itself is escaped, a newline, too."""

    def __init__(self, text: str = "", *args: Any, **options: Any) -> None:
        super().__init__(one_line(text), *args, **options)

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Text:
        """Adds text, escaped in the same way."""
        super().append(one_line(text) if isinstance(text, str) else text, style)
        return self


class Table(rich.table.Table):
    """A table for rich whose cells are text as it is: never markup, never several lines."""

    def add_column(self, header: RenderableType = "", *args: Any, **options: Any) -> None:
        """Adds a column."""
        super().add_column(_text(header), *args, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Adds a row."""
        super().add_row(*map(_text, cells), **options)


def _text(cell: Any) -> Any:
    return Text(cell) if isinstance(cell, str) else cell


def lines(text: str, style: str = "") -> RenderableType:
    """Text of several lines for rich, each escaped as `Text` does it."""
    return Group(*(Text(line, style) for line in text.split("\n")))


def console(**options: Any) -> Console:
    """Returns a rich console that takes strings neither for markup nor for names of emojis."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def plain(report: RenderableType) -> str:
    """Returns something that rich can print as plain text, without wrapping lines."""
    to = console(width=_UNLIMITED, color_system=None, force_terminal=False, legacy_windows=False)
    with to.capture() as capture:
        to.print(report)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def seconds(value: float) -> str:
    """A time for people: `1.23 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return (
                f"{value / scale:.3g} {unit}"
                if value < 1000 * scale
                else f"{value / scale:.0f} {unit}"
            )
    return f"{value / 1e-9:.3g} ns"


def size(value: float) -> str:
    """A size for people: `15.8 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


_TOLD_IN = {"bytes/s": ("GB/s", 1e9), "FLOP/s": ("TFLOP/s", 1e12), "cycles/s": ("GHz", 1e9)}
"""Units in which rates are printed, and their size."""


def quantity(value: float, unit: str) -> str:
    """A number of a unit for people: `819 GB/s`, `15.75 GiB`, `1 us`, `97%`, `48 operations`."""
    if unit == "s":
        return seconds(value)
    if unit == "fraction":
        return f"{100 * value:.4g}%"
    if unit == "bytes":
        told, scale = next(
            ((f"{prefix}iB", 2.0**power) for prefix, power in _PREFIXES if value >= 2**power),
            ("B", 1.0),
        )
    else:
        told, scale = _TOLD_IN.get(unit, (unit, 1.0))
    return f"{value / scale:.4g} {told}".rstrip()


def parse_size(text: float | str, what: str) -> int:
    """Bytes, of a number or a string such as `"12GiB"`.

    Args:
      text: the number or the string.
      what: the argument that it was given for, for the message.

    Raises:
      HardwareError: it cannot be read.
    """
    if not isinstance(text, str):
        return _whole(text, what)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?\s*", text)
    if not match:
        raise HardwareError(f'cannot read {what}="{text}"; expected bytes or e.g. "12GiB"')
    power = " KMGT".index((match[2] or " ")[0].upper())
    base = 1024 if (match[2] or "").endswith("i") else 1000
    return _whole(float(match[1]) * base**power, what, text)


def _whole(value: float, what: str, told: str = "") -> int:
    """Bytes as a whole number of at least 1."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 1 <= value <= MOST_BYTES:
        shown = f'"{told}"' if told else reprlib.repr(value)
        raise HardwareError(
            f'{what}={shown}: expected bytes, from 1 to {MOST_BYTES}, or e.g. "12GiB"'
        )
    return int(value)


def show_entries(parts: Sequence[str | Sequence[str] | None]) -> str:
    """The entries of a `PartitionSpec` for people: `(data, -, replica+model)`."""
    if not any(parts):
        return "replicated"
    shown = ("-" if p is None else p if isinstance(p, str) else "+".join(p) for p in parts)
    return f"({', '.join(shown)})"


def times(count: int) -> str:
    """Returns the suffix for something that occurs several times: ` x24`, or nothing for once."""
    return f" x{count}" if count > 1 else ""


_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
"""Directory in which packages are installed."""


def relative(path: str) -> str:
    """A path relative to the working directory, if it is below that, or to installed packages."""
    if found := _INSTALLED.match(path):
        return path[found.end() :]
    try:
        return str(Path(path).relative_to(os.getcwd()))
    except (ValueError, OSError):
        return path


def new_table(title: str, *columns: str) -> Table:
    """A table in the style of reports. Its title is never wrapped."""
    heading = Text(title, style="bold", no_wrap=True, overflow="ignore")
    table = Table(title=heading if title else None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        right = column in _NUMBERS
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


Branch = tuple[str | rich.text.Text, Sequence["Branch"]]
"""A line of a tree, and what hangs on it."""


def tree(branches: Sequence[Branch], indent: str = "") -> Iterator[rich.text.Text]:
    """The lines of a tree, one `Text` each: rich's own cuts long ones on terminals."""
    for number, (line, below) in enumerate(branches, 1):
        last = number == len(branches)
        yield Text.assemble(indent, "└── " if last else "├── ", line)
        yield from tree(below, indent + ("    " if last else "│   "))
