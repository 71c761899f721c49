"""Small pieces of HTML: elements, tables, bars, shardings as grids. All text is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from partita.escape import printable
from partita.report.data import named
from partita.text import show_entries

Entries = Sequence[str | Sequence[str] | None]


class Html(str):
    """Text that is HTML already, and not escaped again."""

    __slots__ = ()


_EMPTY = frozenset({"input", "rect", "line", "meta", "br"})


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is `class`; `aria_label` is `aria-label`; None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{told}>" if name in ("input", "meta", "br") else f"<{name}{told}/>")
    return Html(f"<{name}{told}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Elements and texts one after the other."""
    return Html("".join(c if isinstance(c, Html) else html.escape(printable(c)) for c in children))


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], **attributes: object
) -> Html:
    """A table. Columns whose heading ends in `#` are numbers."""
    numeric = [column.endswith("#") for column in columns]
    side = ["num" if number else None for number in numeric]
    heads = [
        tag("th", column.rstrip("#"), scope="col", class_=each)
        for column, each in zip(columns, side, strict=True)
    ]
    body = [
        tag(
            "tr",
            *(
                tag("td", tag("div", cell), class_=each, data_label=column.rstrip("#"))
                for cell, each, column in zip(row, side, columns, strict=True)
            ),
        )
        for row in rows
    ]
    made = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        **attributes,
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def listing(items: Iterable[object]) -> Html:
    """A list; nothing for no items."""
    found = [tag("li", item) for item in items]
    return tag("ul", *found) if found else Html("")


def bar(*parts: float | str) -> Html:
    """Draws shares of 1, each followed by its kind, as a bar next to the same figure in text."""
    fills = [
        tag("span", style=f"width:{100 * min(max(float(s), 0.0), 1.0):.1f}%", class_=f"fill {kind}")
        for s, kind in zip(parts[::2], parts[1::2], strict=True)
    ]
    return tag("span", *fills, class_="bar", aria_hidden="true")


def search_box(name: str, label: str, *more: object) -> Html:
    """A field that filters a table, with a line that says how many rows are shown."""
    field = tag("input", type="search", id=name, placeholder=label, aria_label=label)
    count = tag("span", class_="note", role="status", id=f"{name}-count")
    return tag("div", field, *more, count, class_="tools")


WIDE, HIGH = 84, 44
"""Width and height of a grid, in pixels."""

MOST_LINES = 16
"""Number of parts that are drawn of a dimension that is split into more."""


def grid(shape: Sequence[int], entries: Entries, mesh: dict[str, int]) -> Html:
    """Draws a sharding as a picture: the array with its splits, and the first device's shard."""
    parts = [_parts(entry, mesh) for entry in entries] + [1] * (len(shape) - len(entries))
    by_size = sorted(range(len(shape)), key=lambda dim: (parts[dim] == 1, -shape[dim], dim))
    chosen = sorted(by_size[:2])
    across = chosen[-1] if chosen else None
    down = chosen[0] if len(chosen) > 1 else None
    columns, rows = (1 if dim is None else parts[dim] for dim in (across, down))
    high = HIGH if down is not None else HIGH // 3
    told = f"{'×'.join(map(str, shape)) or 'scalar'}, {show_entries(entries)}"
    lines = [
        *(_line(x, 0, x, high) for x in _cuts(columns, WIDE)),
        *(_line(0, y, WIDE, y) for y in _cuts(rows, high)),
    ]
    drawn = tag(
        "svg",
        tag("rect", x=0.5, y=0.5, width=WIDE - 1, height=high - 1, class_="array"),
        tag(
            "rect", x=0.5, y=0.5, width=_side(WIDE, columns), height=_side(high, rows), class_="own"
        ),
        *lines,
        viewBox=f"0 0 {WIDE} {high}",
        width=WIDE,
        height=high,
        role="img",
        aria_label=f"{told}: cut into {rows} by {columns} parts",
        class_="grid",
    )
    return drawn


def _line(x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_="cut")


def _side(length: int, parts: int) -> float:
    """Returns the length of the first part in the picture, within the lines around it."""
    return round(length / min(parts, MOST_LINES) - 1, 2)


def _cuts(parts: int, length: int) -> list[float]:
    """Where to cut a side."""
    drawn = min(parts, MOST_LINES)
    return [length * n / drawn for n in range(1, drawn)]


def _parts(entry: str | Sequence[str] | None, mesh: dict[str, int]) -> int:
    return math.prod(mesh[axis] for axis in named(entry))
