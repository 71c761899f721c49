"""Device types as text: a line each, or one with every figure and where it is from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from partita.cost import Hardware
from partita.cost.devices.schema import Entry, entries
from partita.text import Table, quantity


def listing(known: Iterable[Hardware]) -> Table:
    """A line for each device type: its figures that have a column, and its peak in bf16."""
    table = Table(box=None, pad_edge=False)
    rows = [_row(each) for each in known]
    for column in dict.fromkeys(name for row in rows for name in row):
        left = column in ("type", "networks")
        table.add_column(column, justify="left" if left else "right")
    for row in rows:
        table.add_row(*row.values())
    return table


def _row(hardware: Hardware) -> dict[str, str]:
    columns: dict[str, list[Entry]] = {}
    for entry in entries(hardware):
        if entry.column:
            columns.setdefault(entry.column, []).append(entry)
    networks = _together(columns.pop("networks"))
    return {
        "type": hardware.name,
        **{column: _together(found) for column, found in columns.items()},
        "bf16 peak": quantity(hardware.flops("bf16"), "FLOP/s"),
        "networks": networks,
    }


def _together(found: Sequence[Entry]) -> str:
    """Figures of one unit, each with its name if it has one: `ici 90, dcn 3.125 GB/s`."""
    names = [" ".join(entry.path[1:-1]) for entry in found]
    values = [_value(entry).partition(" ") for entry in found]
    told = ", ".join(
        f"{name} {value}".strip() for name, (value, *_) in zip(names, values, strict=True)
    )
    return f"{told} {values[-1][2]}"


def shown(hardware: Hardware) -> str:
    """A device type with every figure and where it is from."""
    lines = [f"{hardware.name}: {hardware.description}"]
    plain: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries(hardware):
        table, name = entry.path[:-1], entry.path[-1]
        if entry.is_figure:
            lines += [f"  {_words(entry.path)}: {_value(entry)}", f"    {entry.source}"]
        elif name not in ("name", "description"):
            plain.setdefault(table, []).append(entry)
    for table, found in plain.items():
        facts = "; ".join(f"{_words(entry.path[-1:])} {_value(entry)}" for entry in found)
        lines.append(f"  {_words((*table, ''))}: {facts}" if table else f"  {facts}")
        lines += [f"    {found[0].source}"] if found[0].source else []
    return "\n".join(lines)


def as_data(known: Iterable[Hardware]) -> Any:
    """Device types as plain data, in base units: bytes, seconds, bytes/s, FLOP/s."""
    return msgspec.to_builtins(list(known))


def _words(path: tuple[str, ...]) -> str:
    """The path of a fact as words: `memory bandwidth`, `networks, ici, latency`."""
    first, *names, last = path if len(path) > 1 else ("", *path)
    own = [name.replace("_", " ") for name in (first, last)]
    return ", ".join(filter(None, (own[0], *names, own[1])))


def _value(entry: Entry) -> str:
    if entry.is_figure and not isinstance(entry.value, tuple | str):
        return quantity(entry.value, entry.unit)
    if isinstance(entry.value, bool):
        return "yes" if entry.value else "no"
    if isinstance(entry.value, tuple):
        return ", ".join(map(str, entry.value)) or "none"
    return str(entry.value)
