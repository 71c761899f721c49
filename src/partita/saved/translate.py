"""Decisions of a plan file, for a program that has changed since: the same ones, numbered anew.

Arguments and results are known by their names, other values and operations by where they stand in
the program, colors and roles by dimensions that have them. What is not there any more is left out,
and said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from partita.decisions import EVERY_COLOR, LOST, Context, Refers, Row, translated
from partita.decisions.layouts import length
from partita.escape import printed
from partita.program import Program
from partita.program.fingerprint import fingerprint
from partita.saved import keep
from partita.saved.anchors import aligned, in_short, most_common
from partita.saved.schema import AnchorRow, PlanTable
from partita.tiling import Node


@dataclasses.dataclass(frozen=True)
class NotKept:
    """Something that a plan file decided and that its rebased plan does not."""

    what: str
    reason: str
    tactic: str = ""
    """The tactic that decided it, where that is known."""

    @printed
    def __str__(self) -> str:
        who = f"{self.tactic}: " if self.tactic else ""
        return f"{who}{self.what}: {self.reason}"


class Translator:
    """Says what the decisions of a tactic of a plan file mean in another program, and collects what
    means nothing there."""

    def __init__(self, table: PlanTable, context: Context, tactic: str) -> None:
        self._tactic = tactic
        self._table = table
        self._context = context
        self._program: Program = context.analysis.program
        self._anchors = {(row.color, row.role): row for row in table.anchors}
        self.gone: list[NotKept] = []
        self._same = keep.text(fingerprint(context.traced)) == table.program.text and (
            context.origin is None or self._now == list(self._then)
        )
        """True if the program is the same, except for what is known of its operations."""

    def decisions(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The decisions that are left, of those that rows stand for."""
        found = (translated(row, self._visit) for row in rows)
        return tuple(row for row in found if row is not LOST)

    def value(self, then: int) -> int | None:
        """A value of the plan's program in this one."""
        said = self._table.program
        if then < len(said.arguments):
            return self._named.get(said.arguments[then].name)
        if self._same:
            return then if then < len(self._program.values) else None
        name = self._result_names.get(then)
        if name in self._named:
            return self._named[name]
        producer = self._producers.get(then)
        op = None if producer is None else self._operations.get(producer[0])
        if producer is None or op is None:
            return None
        results = self._program.operations[op].results
        return results[producer[1]] if producer[1] < len(results) else None

    def operation(self, then: int) -> int | None:
        """An operation of the plan's program in this one."""
        if self._same:
            return then if then < len(self._program.operations) else None
        return self._operations.get(then)

    # ------------------------------------------------------------------------------- references

    def _visit(self, refers: Refers, item: Any, row: Row) -> Any:
        """Returns the number or name in this program and mesh of one in the file."""
        match refers:
            case "axis":
                return item if self._has(item) else LOST
            case "value":
                return self._told_value(item, row)
            case "operation":
                what = f"an operation inside{_along(row)}"
                return self._or_lost(self.operation(item), what, "it is gone")
            case "dim":
                return self._dim(item, row)
            case "color":
                return self._told_color(item, row)
            case "role":
                return self._role(item[1])
        return item

    def _or_lost(self, found: int | None, what: str, why: str) -> Any:
        if found is None:
            self.lose(what, why)
            return LOST
        return found

    def _told_value(self, then: int, row: Row) -> Any:
        """A value, in this program."""
        found, name = self._value_of(then, row), row.get("name")
        if name is None:
            return self._or_lost(found, f"a value inside{_along(row)}", "it is gone")
        return self._or_lost(found, _asked(row), f"{self._program.name} has no {name}")

    def _value_of(self, then: int, row: Row) -> int | None:
        """A value of the plan's program; one that a row names is known by that name, too."""
        found = self.value(then)
        return self._named.get(row.get("name", "")) if found is None else found

    def _dim(self, dim: int, row: Row) -> Any:
        """A dimension of the value that its row names, if that has so many."""
        value = self._value_of(row["value"], row)
        if value is None:
            return dim  # the value is lost, and says so
        type_ = self._program.values[value].type
        if dim < len(type_.shape):
            return dim
        if len(row["dims"]) == 1:
            rank = len(type_.shape)
            self.lose(_asked(row), f"it is {type_}, of {rank} dimensions")
        return LOST

    def _told_color(self, then: int, row: Row) -> Any:
        if then == EVERY_COLOR:
            return then
        what = f"{self._name_of_color(then)} -> {row['axis']}"
        return self._or_lost(self._color(then), what, "no such dimension is left")

    def _role(self, then: int) -> Any:
        propagator = self._context.single
        role = most_common(map(propagator.role, self._nodes(self._anchors.get((None, then)))))
        if role is None:
            self.lose("which role of a conflict gets an axis", "there is no such conflict")
            return LOST
        return [propagator.conflict_of[role], role]

    def _has(self, axis: str) -> bool:
        """Returns whether the mesh has an axis; decisions along another one are lost."""
        if axis in self._context.mesh.names:
            return True
        what = f"everything along {axis}"
        if not any(each.what == what for each in self.gone):
            self.lose(what, f"mesh {self._context.mesh} has no axis {axis}")
        return False

    def lose(self, what: str, reason: str) -> None:
        """Adds to what is gone."""
        self.gone.append(NotKept(what, reason, self._tactic))

    # --------------------------------------------------------------------------- colors and roles

    def _color(self, then: int) -> int | None:
        row = self._anchors.get((then, None))
        graph = self._context.single.graph
        return most_common(
            graph.values[index].colors[place] if kind == "value" else graph.ops[index].colors[place]
            for kind, index, place in self._nodes(row)
        )

    def _nodes(self, row: AnchorRow | None) -> Iterable[Node]:
        """The dimensions and factors of an anchor that are there."""
        for kind, then, place in row.nodes if row else ():
            now = self.operation(then) if kind == "op" else self._result_or_value(kind, then)
            if now is None:
                continue
            value, op = self._program.values, self._program.operations
            places = len(op[now].rule.factors if kind == "op" else value[now].type.shape)
            if place < places:
                yield "op" if kind == "op" else "value", now, place

    def _result_or_value(self, kind: str, then: int) -> int | None:
        """A result by its place among all, or a value."""
        if kind == "value":
            return self.value(then)
        results = self._table.program.results
        return self._named.get(results[then].name) if then < len(results) else None

    def _name_of_color(self, color: int) -> str:
        """A color by a dimension of an argument of the file that has it."""
        anchor = self._anchors.get((color, None))
        arguments = self._table.program.arguments
        for kind, index, dim in anchor.nodes if anchor else ():
            if kind == "value" and index < len(arguments):
                return f"{arguments[index].name} dim {dim}"
        return f"color {color}"

    # ------------------------------------------------------------------------------- the programs

    @cached_property
    def _named(self) -> dict[str, int]:
        """Values of this program by their names; of tags that several have, none."""
        program = self._program
        tags = [tag for tag, _ in program.tagged]
        return {
            **{tag: value for tag, value in program.tagged if tags.count(tag) == 1},
            **dict(zip(program.result_names, program.results, strict=True)),
            **dict(zip(program.argument_names, program.arguments, strict=True)),
        }

    @cached_property
    def _result_names(self) -> dict[int, str]:
        """The names of results of the plan's program that requests say."""
        names = {result.name for result in self._table.program.results}
        found: dict[int, str] = {}

        def visit(refers: Refers, item: Any, row: Row) -> Any:
            if refers == "value" and row.get("name") in names:
                found[item] = row["name"]
            return item

        for entry in self._table.history:
            for decision in entry.decided:
                translated(decision, visit)
        return found

    @cached_property
    def _then(self) -> tuple[str, ...]:
        """The operations of the plan's program in short."""
        found = self._table.program.operations
        return found.listed(length(found.order), "`operations`")

    @cached_property
    def _now(self) -> list[str]:
        """The operations of this program in short."""
        return [in_short(self._program, op) for op in self._program.operations]

    @cached_property
    def _operations(self) -> dict[int, int]:
        """Operations of the plan's program and their numbers in this one."""
        if not self._then:
            return {}
        return aligned(self._then, self._now)

    @cached_property
    def _producers(self) -> dict[int, tuple[int, int]]:
        """The values that operations of the plan's program make: which, and as which result."""
        value, found = len(self._table.program.arguments), {}
        for op, short in enumerate(self._then):
            for position, _ in enumerate(filter(None, short.rpartition("> ")[2].split(","))):
                found[value] = (op, position)
                value += 1
        return found


def _asked(row: Row) -> str:
    """A request in words."""
    dims = ", ".join(map(str, row["dims"]))
    return f"{row['name']} dim {dims}{f' -> {axis}' if (axis := row.get('axis')) else ''}"


def _along(row: Row) -> str:
    axis = row.get("axis")
    return f", along {axis}" if axis else ""
