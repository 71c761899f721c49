"""Directives of a plan file, for a program that has changed since: the same ones, numbered anew.

Arguments and results are known by their names, other values and operations by where they stand in
the program, colors and roles by dimensions that have them. What is not there any more is left out,
and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from partita.errors import FileError
from partita.program import Program
from partita.program.fingerprint import fingerprint
from partita.saved import keep
from partita.saved.anchors import aligned, in_short, most_common
from partita.saved.layouts import from_runs
from partita.saved.schema import (
    ActionTable,
    AnchorRow,
    DirectiveRow,
    LocalActionRow,
    MoveRow,
    MovesRow,
    PlacedMoveRow,
    PlaceRow,
    PlanTable,
    RequestRow,
    TileActionRow,
    TileRow,
    WhilePinnedRow,
)
from partita.tactics import Context
from partita.tiling import EVERY_COLOR, Node

_Roles = tuple[tuple[int, int], ...]
_Tile = TypeVar("_Tile", bound=TileActionRow)
_Local = TypeVar("_Local", bound=LocalActionRow)
MOST_OPERATIONS = 10**7
"""Operations of a program that a file may list."""

Gone = tuple[str, str]
"""What could not be kept, and why."""


class Translator:
    """Says what of a plan file means in another program, and collects what means nothing there."""

    def __init__(self, table: PlanTable, context: Context) -> None:
        self._table = table
        self._context = context
        self._program: Program = context.analysis.program
        self._anchors = {(row.color, row.role): row for row in table.anchors}
        self.gone: list[Gone] = []
        self._same = keep.text(fingerprint(self._program)) == table.program.text
        """Whether it is the same program after all, but for what is known of its operations."""

    def directives(self, rows: Sequence[DirectiveRow]) -> tuple[DirectiveRow, ...]:
        """The directives that are left."""
        found = [self._directive(row) for row in rows]
        return tuple(row for row in found if row is not None)

    def action(self, row: ActionTable) -> ActionTable | None:
        """Where a search put an axis; None if there is no such place."""
        with_silence, self.gone = self.gone, []  # directives say the same
        try:
            seeds = [(self.value(value), dim) for value, dim in row.seeds]
            kept = tuple((value, dim) for value, dim in seeds if value is not None)
            move = row.move and self._tile(row.move)
            local = row.local and self._local(row.local)
        finally:
            self.gone = with_silence
        if (row.move and not move) or (row.local and not local) or not self._has(row.axis):
            return None
        color = move.color if move else None
        changed = msgspec.structs.replace(row, seeds=kept, color=color, move=move, local=local)
        return changed

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

    # ------------------------------------------------------------------------------- directives

    def _directive(self, row: DirectiveRow) -> DirectiveRow | None:
        match row:
            case PlaceRow():
                return self._place(row)
            case TileRow(actions):
                tiles = [self._tile(action) for action in actions]
                return TileRow(tuple(tile for tile in tiles if tile is not None))
            case MovesRow(moves):
                found = [self._move(move) for move in moves]
                return MovesRow(tuple(move for move in found if move is not None))
            case WhilePinnedRow(pins, inner):
                held = [(self.value(value), axis) for value, axis in pins if self._has(axis)]
                kept = tuple((value, axis) for value, axis in held if value is not None)
                return WhilePinnedRow(kept, self.directives(inner))
        return row

    def _place(self, row: PlaceRow) -> PlaceRow | None:
        if not self._has(row.axis):
            return None
        requests = [self._request(request, row.axis) for request in row.requests]
        pinned = [self.value(value) for value in row.pinned]
        if None in pinned:
            self._lose(f"{pinned.count(None)} values pinned along {row.axis}", "they are gone")
        return msgspec.structs.replace(
            row,
            requests=tuple(request for request in requests if request is not None),
            pinned=tuple(value for value in pinned if value is not None),
            roles=self._roles(row.roles),
        )

    def _request(self, row: RequestRow, axis: str) -> RequestRow | None:
        what = f"{row.name} dim {', '.join(map(str, row.dims))} -> {axis}"
        value = self.value(row.value)
        if value is None:
            value = self._named.get(row.name)
        if value is None:
            self._lose(what, f"{self._program.name} has no {row.name}")
            return None
        rank = len(self._program.values[value].type.shape)
        dims = tuple(dim for dim in row.dims if dim < rank)
        if row.dims and not dims:
            self._lose(what, f"it is {self._program.values[value].type}, of {rank} dimensions")
            return None
        return msgspec.structs.replace(row, value=value, dims=dims)

    def _move(self, row: MoveRow) -> MoveRow | None:
        if isinstance(row, PlacedMoveRow):
            placement = self._place(row.placement)
            return None if placement is None else PlacedMoveRow(placement, row.what)
        return self._local(row) if isinstance(row, LocalActionRow) else self._tile(row)

    def _tile(self, row: _Tile) -> _Tile | None:
        if not self._has(row.axis):
            return None
        color = EVERY_COLOR if row.color == EVERY_COLOR else self._color(row.color)
        if color is None:
            self._lose(f"{self._told(row.color)} -> {row.axis}", "no such dimension is left")
            return None
        return msgspec.structs.replace(row, color=color, roles=self._roles(row.roles))

    def _local(self, row: _Local) -> _Local | None:
        if not self._has(row.axis):
            return None
        is_op = row.kind == "op"
        member = self.operation(row.member) if is_op else self.value(row.member)
        places = -1
        if member is not None and is_op:
            places = len(self._program.operations[member].rule.factors)
        elif member is not None:
            places = len(self._program.values[member].type.shape)
        if row.place >= places:
            what = "an operation" if is_op else "a value"
            self._lose(f"{what} inside, along {row.axis}", "it is gone, or has another form")
            return None
        return msgspec.structs.replace(row, member=member)

    def _has(self, axis: str) -> bool:
        """Whether the mesh has an axis; what is to lie along another one is lost."""
        if axis in self._context.mesh.names:
            return True
        gone = (f"everything along {axis}", f"mesh {self._context.mesh} has no axis {axis}")
        if gone not in self.gone:
            self._lose(*gone)
        return False

    def _lose(self, what: str, reason: str) -> None:
        self.gone.append((what, reason))

    # --------------------------------------------------------------------------- colors and roles

    def _color(self, then: int) -> int | None:
        row = self._anchors.get((then, None))
        graph = self._context.single.graph
        return most_common(
            graph.values[index].colors[place] if kind == "value" else graph.ops[index].colors[place]
            for kind, index, place in self._nodes(row)
        )

    def _roles(self, rows: Iterable[tuple[int, int]]) -> _Roles:
        propagator = self._context.single
        found = {}
        for _, then in rows:
            role = most_common(map(propagator.role, self._nodes(self._anchors.get((None, then)))))
            if role is None:
                self._lose("which role of a conflict gets an axis", "there is no such conflict")
            else:
                found[propagator.conflict_of[role]] = role
        return tuple(sorted(found.items()))

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

    def _told(self, color: int) -> str:
        """A color in the words of the file."""
        actions = (action for entry in self._table.history for action in entry.actions)
        return next((a.what for a in actions if a.color == color), f"color {color}")

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
        return {r.value: r.name for r in self._requests() if r.name in names}

    def _requests(self) -> Iterable[RequestRow]:
        waiting: list[DirectiveRow] = [d for e in self._table.history for d in e.directives]
        while waiting:
            row = waiting.pop()
            if isinstance(row, WhilePinnedRow):
                waiting += row.directives
            elif isinstance(row, PlaceRow):
                yield from row.requests
            elif isinstance(row, MovesRow):
                waiting += [m.placement for m in row.actions if isinstance(m, PlacedMoveRow)]

    @cached_property
    def _then(self) -> list[str]:
        """The operations of the plan's program in short."""
        listed = self._table.program.operations
        if not listed.order:
            return []
        total = sum(int(count or 1) for count in _RUN.findall(listed.order))
        if total > MOST_OPERATIONS:
            raise FileError(f"`operations`: there are {total}")
        codes = from_runs(listed.order, total, len(listed.kinds), "`operations`")
        return ["" if code is None else listed.kinds[code] for code in codes]

    @cached_property
    def _operations(self) -> dict[int, int]:
        """Operations of the plan's program and their numbers in this one."""
        if not self._then:
            return {}
        return aligned(self._then, [in_short(self._program, op) for op in self._program.operations])

    @cached_property
    def _producers(self) -> dict[int, tuple[int, int]]:
        """The values that operations of the plan's program make: which, and as which result."""
        value, found = len(self._table.program.arguments), {}
        for op, short in enumerate(self._then):
            for position, _ in enumerate(filter(None, short.rpartition("> ")[2].split(","))):
                found[value] = (op, position)
                value += 1
        return found


_RUN = re.compile(r"(?:([0-9]{1,12})\*)?(?:[0-9]+|-)")
