"""Types of the numbers in a decision, which declare what they refer to.

A decision names colors, values, operations, roles and axes by number. Their fields have the types
of this module, so that whatever handles decisions of any kind goes by these and knows no kind:
plan files write axes by name, a number that the program does not have is an error, and for a
program that has changed numbers are translated. For example, of

    class ShardColor(Decision, frozen=True):
        color: Color
        axis: Axis
        roles: tuple[Resolved, ...] = ()

`walk` calls a function with `("color", 3)`, `("axis", 0)` and `("role", [1, 4])`.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable, MutableMapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

Refers = Literal["axis", "color", "value", "operation", "dim", "role", "decision"]
"""Kinds of things that a part of a decision refers to."""

_KEY = "refers to"


def _number(refers: Refers, least: int = 0) -> Any:
    return msgspec.Meta(ge=least, le=2**53, extra={_KEY: refers})


Axis = Annotated[int, _number("axis")]
"""Position of an axis in the mesh; in files, its name."""
Color = Annotated[int, _number("color", -1)]
"""Number of a color group; -1 stands for all of them."""
Value = Annotated[int, _number("value")]
"""Number of a value of the program."""
Operation = Annotated[int, _number("operation")]
"""Number of an operation of the program."""
Dim = Annotated[int, _number("dim")]
"""Dimension of the `value` in the same row."""
Resolved = Annotated[tuple[int, int], msgspec.Meta(extra={_KEY: "role"})]
"""Numbers of a group of conflict sets and of the role in it that gets the axis."""
Nested = Annotated[Any, msgspec.Meta(extra={_KEY: "decision"})]
"""A decision in another one."""


class _Lost:
    """Stands in for what a number referred to and is no more."""


LOST = _Lost()

Row = MutableMapping[str, Any]
"""A decision, or a part of one, as JSON data."""

Visit = Callable[[Refers, Any, Row], Any]
"""Called with what is referred to, the number, and the row that has it, in which the fields of rows
around it are found, too; returns what to put in its place, or `LOST`."""


def walk(row: Row, kind: type[msgspec.Struct], visit: Visit) -> Any:
    """Replaces the references of a decision given as JSON data.

    An item of a list that has lost a reference is left out; anything else that has is `LOST`.

    Args:
      row: the data; not changed.
      kind: the class that it is of, for the types of its fields.
      visit: what to replace a reference with.
    """
    return _walk(row, _type_of(kind), visit, row)


@functools.cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _walk(item: Any, type_: inspect.Type, visit: Visit, row: Row) -> Any:
    match type_:
        case inspect.Metadata(inner, _, extra):
            refers = (extra or {}).get(_KEY)
            return visit(refers, item, row) if refers else _walk(item, inner, visit, row)
        case inspect.StructType(fields=fields):
            within = item if item is row else ChainMap(item, row)
            found = {
                field.encode_name: _walk(item[field.encode_name], field.type, visit, within)
                for field in fields
                if field.encode_name in item
            }
            return LOST if LOST in found.values() else {**item, **found}
        case inspect.VarTupleType(each):
            kept = (_walk(one, each, visit, row) for one in item)
            return [one for one in kept if one is not LOST]
        case inspect.TupleType(kinds):
            parts = [_walk(one, t, visit, row) for one, t in zip(item, kinds, strict=True)]
            return LOST if LOST in parts else parts
    return item
