"""Finds the operations, colors and roles that decisions number again in another program.

An operation of a plan is known by what stands around it: both programs are lists of operations in
short, and the longest common parts of them are the same. A color or a role is known by dimensions
and factors that have it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from partita.decisions import EVERY_COLOR, Context, Decision, Refers, Row, translated
from partita.program import Operation, Program
from partita.saved.schema import AnchorRow

_Place = tuple[Literal["op", "result", "value"], int, int]
"""A factor of an operation, or a dimension of a result, by its place among all, or of a value."""

MOST = 6
"""Places by which a color or a role is known."""

LEAST_SHARE = 0.5
"""Least share of a program's operations that another must have for the two to be aligned: with
less in common, equal operations stand for different things."""


def in_short(program: Program, op: Operation) -> str:
    """An operation without sizes, which change more often than what a model does."""

    def ranks(values: Iterable[int]) -> str:
        return ",".join(str(len(program.values[v].type.shape)) for v in values)

    return f"{op.title} {ranks(op.operands)} > {ranks(op.results)}"


def anchors(context: Context, decisions: Iterable[Decision]) -> tuple[AnchorRow, ...]:
    """Returns places at which the colors and roles are found that decisions name."""
    wanted = set[tuple[str, int]]()

    def visit(refers: Refers, item: Any, _: Row) -> Any:
        if refers == "role":
            wanted.add(("role", item[1]))
        elif refers == "color" and item != EVERY_COLOR:
            wanted.add(("color", item))
        return item

    for decision in decisions:
        translated(msgspec.to_builtins(decision), visit)
    found: dict[tuple[str, int], list[_Place]] = {key: [] for key in sorted(wanted)}
    # What has a name is known by that alone: operations may be alike by chance.
    for nodes in (_named, _inside):
        missing = {key for key, places in found.items() if not places}
        for place, *numbers in nodes(context) if missing else ():
            for key in missing.intersection(zip(("color", "role"), numbers, strict=True)):
                found[key].append(place)
                if len(found[key]) == MOST:
                    missing.remove(key)
    return tuple(AnchorRow(tuple(places), **{key[0]: key[1]}) for key, places in found.items())


_Nodes = Iterator[tuple[_Place, int, int]]
"""Dimensions and factors, each with its color and role."""


def _named(context: Context) -> _Nodes:
    """The dimensions of arguments and results."""
    program = context.analysis.program
    yield from _dimensions(context, program.arguments)
    for place, result in enumerate(program.results):
        for (_, _, dim), color, role in _dimensions(context, [result]):
            yield ("result", place, dim), color, role


def _inside(context: Context) -> _Nodes:
    """All other dimensions, and the factors of operations."""
    graph, program = context.single.graph, context.analysis.program
    named = {*program.arguments, *program.results}
    yield from _dimensions(context, (v.index for v in program.values if v.index not in named))
    for op in graph.ops:
        for factor, (color, role) in enumerate(zip(op.colors, op.roles, strict=True)):
            yield ("op", op.index, factor), color, role


def _dimensions(context: Context, values: Iterable[int]) -> _Nodes:
    for value in values:
        found = context.single.graph.values[value]
        for dim, (color, role) in enumerate(zip(found.colors, found.roles, strict=True)):
            yield ("value", value, dim), color, role


def aligned(then: Sequence[str], now: Sequence[str]) -> dict[int, int]:
    """Maps operations of one program to those of another, as far as they are there."""
    matcher = difflib.SequenceMatcher(a=then, b=now, autojunk=len(now) > 2000)
    found = {
        block.a + n: block.b + n
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    }
    return found if len(found) >= LEAST_SHARE * len(then) else {}


def most_common(numbers: Iterable[int]) -> int | None:
    """The number that most agree on, the first of several; None if there is none."""
    found = Counter(number for number in numbers if number >= 0).most_common(1)
    return found[0][0] if found else None
