"""Tables of a hardware file, read by their schema: names, values, units and sources.

Listing, printing and calibration walk over the fields that the tables declare, so that a new
figure is one field, and no list of fields has to follow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

import msgspec


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table of a hardware file; its fields are all that it may contain.

    A field `source` states the source of those fields of the table that are no figures.
    """


LEAST, MOST = 1e-18, 1e24
"""Limits of all figures: results computed from a few of them stay finite."""

MOST_COUNTED = 2**31
"""Limit of the count in a figure, and of the devices that a network joins."""


class Figure(Table, frozen=True):
    """Positive number with its source."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not (self.value > 0 and math.isfinite(self.value)):
            raise ValueError(f"a figure must be finite and above 0, got {self.value}")
        if not LEAST <= self.value <= MOST:
            raise ValueError(f"a figure must be from {LEAST} to {MOST}, got {self.value}")
        if not self.source.strip():
            raise ValueError(f"the figure {self.value} has an empty source; say where it is from")


def check_count(name: str, figure: Figure) -> None:
    """Raises ValueError if a figure does not count anything."""
    if figure.value != int(figure.value):
        raise ValueError(f"{name} must be a whole number, got {figure.value}")
    if figure.value > MOST_COUNTED:
        raise ValueError(f"{name} must be at most {MOST_COUNTED}, got {figure.value}")


def unit(name: str, *, column: str = "") -> msgspec.Meta:
    """Declares the unit of a field's figures, and any column in a list of device types."""
    return msgspec.Meta(extra={"unit": name, "column": column})


Bytes = Annotated[Figure, unit("bytes")]
BytesPerSecond = Annotated[Figure, unit("bytes/s")]
Fraction = Annotated[Figure, unit("fraction")]
Seconds = Annotated[Figure, unit("s")]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One fact of a table."""

    path: tuple[str, ...]
    """Names of the tables around it and its own: `("networks", "ici", "bandwidth")`."""
    value: float | int | bool | str | tuple[Any, ...]
    unit: str = ""
    """Unit of a figure: `bytes`, `bytes/s`, `FLOP/s`, `s`, `cycles/s`, `fraction`, or its count."""
    source: str = ""
    """Source of the fact; empty if the table does not say."""
    column: str = ""
    """Column of the fact in a list of device types; empty if none."""
    is_figure: bool = False


def entries(table: Table, path: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Yields every fact of a table and of the tables in it, in the order of the schema.

    Fields without a value, stated or default, are left out.
    """
    said = str(getattr(table, "source", ""))
    for field in msgspec.structs.fields(table):
        if field.name != "source":
            extra = _extra(field.type)
            yield from _entries(getattr(table, field.name), (*path, field.name), extra, said)


def _entries(
    value: Any, path: tuple[str, ...], extra: Mapping[str, Any], said: str
) -> Iterator[Entry]:
    if isinstance(value, Figure):
        yield Entry(path, value.value, extra["unit"], value.source, extra["column"], True)
    elif isinstance(value, Table):
        yield from entries(value, path)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _entries(each, (*path, key), extra, said)
    elif isinstance(value, tuple) and value and isinstance(value[0], Table):
        for each in value:
            yield from entries(each, (*path, each.name))
    elif value is not None:
        yield Entry(path, value, source=said)


def _extra(hint: Any) -> Mapping[str, Any]:
    """Returns what `unit` declares for a type or for a part of it; empty if nothing."""
    for meta in getattr(hint, "__metadata__", ()):
        if meta.extra:
            return dict(meta.extra)
    return next((found for part in get_args(hint) if (found := _extra(part))), {})
