"""The directives of a tactic, as rows of a file, and back.

Axes are named. Values, conflicts, roles and colors are numbers that hold for the program of the
file, and are checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from partita.errors import FileError
from partita.mesh import Mesh
from partita.saved.schema import (
    DirectiveRow,
    GivenPropagationRow,
    GivenShardingsRow,
    LocalActionRow,
    LocalMoveRow,
    MoveRow,
    MovesRow,
    PlacedMoveRow,
    PlaceRow,
    RequestRow,
    TileActionRow,
    TileMoveRow,
    TileRow,
    WhilePinnedRow,
)
from partita.tactics import Context, Directive, Request
from partita.tactics.automatic import Tile
from partita.tactics.combine import WhilePinned
from partita.tactics.given import GivenPropagation, GivenShardings
from partita.tactics.placement import Placement
from partita.tactics.starts import Placed
from partita.tiling import LocalAction, TileAction

_KINDS = {"op": "operation", "value": "value"}


def rows(directives: Iterable[Directive], mesh: Mesh) -> tuple[DirectiveRow, ...]:
    """Directives as a file lists them: all, or none if one is of a kind that it cannot hold."""
    found = [_row(directive, mesh) for directive in directives]
    held = tuple(row for row in found if row is not None)
    return held if len(held) == len(found) else ()


def action_row(action: TileAction, mesh: Mesh) -> TileActionRow:
    """A tile action as a file has it."""
    axis = mesh.names[action.axis]
    return TileActionRow(action.color, axis, action.roles, action.without, action.sums)


def local_row(action: LocalAction, mesh: Mesh) -> LocalActionRow:
    """A local action as a file has it."""
    return LocalActionRow(action.kind, action.member, mesh.names[action.axis], action.place)


def _row(directive: Directive, mesh: Mesh) -> DirectiveRow | None:
    match directive:
        case Placement():
            return _place_row(directive, mesh)
        case Tile(actions):
            return _tile_row(actions, mesh)
        case WhilePinned(pins, inner):
            named = tuple((value, mesh.names[axis]) for value, axis in pins)
            held = rows(inner, mesh)
            return WhilePinnedRow(named, held) if held or not inner else None
        case GivenShardings(_, _, propagates, decides):
            return GivenShardingsRow(propagates, decides)
        case GivenPropagation(_, _, decides):
            return GivenPropagationRow(decides)
    return None


def _place_row(placement: Placement, mesh: Mesh) -> PlaceRow:
    asked = tuple(
        RequestRow(r.name, r.value, tuple(r.dims), r.told, r.unless_used)
        for r in placement.requests
    )
    axis = mesh.names[placement.axis]
    return PlaceRow(asked, axis, placement.pinned, placement.roles, placement.colors)


def _tile_row(actions: Sequence[TileAction | LocalAction | Placed], mesh: Mesh) -> DirectiveRow:
    tiles = [action for action in actions if isinstance(action, TileAction)]
    if len(tiles) == len(actions):
        return TileRow(tuple(action_row(action, mesh) for action in tiles))
    return MovesRow(tuple(_move_row(action, mesh) for action in actions))


def _move_row(action: TileAction | LocalAction | Placed, mesh: Mesh) -> MoveRow:
    match action:
        case TileAction():
            return TileMoveRow(**msgspec.structs.asdict(action_row(action, mesh)))
        case LocalAction():
            return LocalMoveRow(**msgspec.structs.asdict(local_row(action, mesh)))
    return PlacedMoveRow(_place_row(action.placement, mesh), action.what)


class DirectiveReader:
    """Reads directives of a file for a program, and checks that they are of it.

    Raises:
      FileError: they are not.
      AxisError: the mesh has no such axis.
    """

    def __init__(self, context: Context) -> None:
        self._program = context.analysis.program
        self._groups = context.analysis.groups
        self._mesh = context.mesh

    def directives(self, rows: Sequence[DirectiveRow]) -> tuple[Directive, ...]:
        """The directives that rows stand for."""
        return tuple(map(self._directive, rows))

    def action(self, row: TileActionRow) -> TileAction:
        """The tile action that a row stands for."""
        if row.color >= self._groups.colors:
            raise FileError(f"there is no color {row.color}")
        self._check_roles(row.roles)
        axis = self._mesh.axis(row.axis)
        return TileAction(row.color, axis, row.roles, row.without, row.sums)

    def local(self, row: LocalActionRow) -> LocalAction:
        """The local action that a row stands for."""
        program = self._program
        rows = program.operations if row.kind == "op" else program.values
        if row.member >= len(rows):
            raise FileError(f"there is no {_KINDS[row.kind]} {row.member}")
        if row.kind == "op":
            places = len(program.operations[row.member].rule.factors)
        else:
            places = len(program.values[row.member].type.shape)
        if row.place >= places:
            raise FileError(f"there is no place {row.place} of {_KINDS[row.kind]} {row.member}")
        return LocalAction(row.kind, row.member, self._mesh.axis(row.axis), row.place)

    def check_dim(self, value: int, dim: int) -> None:
        """Raises `FileError` if there is no such dimension of a value."""
        shapes = [v.type.shape for v in self._program.values[value : value + 1]]
        if not any(dim < len(shape) for shape in shapes):
            raise FileError(f"there is no dimension {dim} of a value {value}")

    def _directive(self, row: DirectiveRow) -> Directive:
        program = self._program
        operations = tuple(op for op in program.operations if op.given)
        match row:
            case PlaceRow():
                return self._placement(row)
            case TileRow(actions):
                return Tile(tuple(map(self.action, actions)))
            case MovesRow(moves):
                return Tile(tuple(map(self._move, moves)))
            case WhilePinnedRow(pins, inner):
                self._check_values(value for value, _ in pins)
                numbered = tuple((value, self._mesh.axis(axis)) for value, axis in pins)
                return WhilePinned(numbered, self.directives(inner))
            case GivenShardingsRow(propagates, decides):
                return GivenShardings(program.given, operations, propagates, decides)
            case GivenPropagationRow(decides):
                return GivenPropagation(program.given, operations, decides)

    def _move(self, row: MoveRow) -> TileAction | LocalAction | Placed:
        match row:
            case TileMoveRow():
                return self.action(row)
            case LocalMoveRow():
                return self.local(row)
        return Placed(self._placement(row.placement), row.what)

    def _placement(self, row: PlaceRow) -> Placement:
        self._check_roles(row.roles)
        self._check_values(row.pinned)
        asked = tuple(map(self._request, row.requests))
        return Placement(asked, self._mesh.axis(row.axis), row.pinned, row.roles, row.colors)

    def _request(self, row: RequestRow) -> Request:
        self._check_values([row.value])
        for dim in row.dims:
            self.check_dim(row.value, dim)
        return Request(row.name, row.value, row.dims, row.told, row.unless_used)

    def _check_values(self, values: Iterable[int]) -> None:
        for value in values:
            if value >= len(self._program.values):
                raise FileError(f"there is no value {value}")

    def _check_roles(self, roles: Sequence[tuple[int, int]]) -> None:
        groups = self._groups.conflict_groups
        for conflict, role in roles:
            if conflict >= len(groups) or role not in groups[conflict]:
                raise FileError(f"there is no role {role} of a conflict {conflict}")
