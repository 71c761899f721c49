"""The file of a plan -> where its schedule had come to, for the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec

from partita import files
from partita.cost import Estimate, Traffic
from partita.decisions import Context, Decision, Refers, Row, Stage, apply, from_row, translated
from partita.errors import AxisError, FileError, MeshError, TacticError
from partita.frontend.trace import Traced
from partita.mesh import Mesh
from partita.planning.schedule import Scheduled, unscheduled
from partita.program import Program
from partita.program.fingerprint import Fingerprint, differences, fingerprint
from partita.saved import keep
from partita.saved.schema import EstimateTable, PlanTable, TacticTable, Tensor, decode
from partita.tactics import Outcome, Refusal
from partita.tactics.recorded import Recorded
from partita.tiling import replicated
from partita.version import __version__

MOST_BYTES = 2**30
"""Bytes that a plan file may have."""

MOST_SHOWN = 12
"""Differences between programs that a message lists."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A plan file that has been read; what it says of a program is not yet checked."""

    path: Path
    mesh: Mesh
    table: PlanTable = dataclasses.field(repr=False)

    @property
    def hardware(self) -> str:
        """The device type that the plan was made for."""
        return self.table.hardware

    @property
    def capacity(self) -> int:
        """Bytes per device that the plan may use."""
        return self.table.capacity

    @property
    def hoist_from(self) -> int | None:
        """Bytes of the smallest constant that has become an argument; None if none has."""
        return min((each.bytes for each in self.table.program.closed_over), default=None)

    def over(self, mesh: Mesh) -> Saved:
        """The same file, for a mesh that the user gives: with its devices, and its networks.

        Raises:
          MeshError: the plan is for another mesh.
        """
        if mesh != self.mesh:
            raise MeshError(
                f"the plan in {str(self.path)!r} is for mesh {self.mesh}, the mesh given is "
                f"{mesh}; plan for that mesh, or leave mesh= out"
            )
        return dataclasses.replace(
            self,
            mesh=mesh if any(mesh.networks) else dataclasses.replace(self.mesh, given=mesh.given),
        )

    def is_for(self, program: Program, traced: Traced) -> bool:
        """Returns whether the plan is for a program; takes the arguments of `check_program`."""
        return not self._differences(program, traced, fingerprint(program))

    def check_program(self, program: Program, traced: Traced) -> None:
        """Raises `FileError`, with what differs, if the plan is for another program.

        Args:
          program: the one to run, as the mesh has it.
          traced: as it was traced.
        """
        found = self.differences(program, traced)
        if not found:
            return
        raise FileError(
            "\n".join(
                [
                    f"the plan in {str(self.path)!r} is for another program than {program.name}:",
                    *found,
                    "plan again, and save that; or load it with rebase=True, which keeps what "
                    "still fits",
                ]
            )
        )

    def differences(self, program: Program, traced: Traced) -> list[str]:
        """Returns lines on how a program differs from that of the plan; takes the same arguments.

        Raises:
          FileError: it does not, and the file lists other operations nevertheless.
        """
        now = fingerprint(program)
        found = self._differences(program, traced, now)
        if not found and keep.text(now) != self.table.program.text:
            raise FileError(f"{str(self.path)!r} lists other operations than its program has")
        if not found:
            return []
        shown = [f"  {line}" for line in found[:MOST_SHOWN]]
        more = len(found) - len(shown)
        written = [
            f"it was written by {name} {then}, this is {name} {here}"
            for name, then, here in (
                ("partita", self.table.partita, __version__),
                ("jax", self.table.jax, jax.__version__),
            )
            if then != here
        ]
        return [*shown, *([f"  and {more} differences more"] if more else []), *written]

    def restore(self, context: Context) -> Scheduled:
        """Applies the decisions of the plan, and lowers and estimates it anew.

        Args:
          context: of the same program, on the mesh of the plan.

        Raises:
          FileError: the file splits the program in a way that is not possible, or this partita
            makes other layouts of the same decisions.
        """
        try:
            done = unscheduled(context)
            for entry in self.table.history:
                done = done.then(_recorded(entry, done.stage))
            if self.table.gathered_again is not None:
                again = [read(row, done.stage.context) for row in self.table.gathered_again]
                done = done.gathering_again(again)
        except (FileError, AxisError, TacticError) as error:
            raise FileError(f"{str(self.path)!r} cannot be applied: {error}") from None
        said, program, assigned = self.table, done.program, done.stage.assignment
        if (said.program.arguments, said.program.results) != keep.tensors(
            program, self.mesh, assigned
        ):
            raise FileError(
                f"{str(self.path)!r} cannot be applied: the shardings that it lists are not those "
                "that its tactics led to"
            )
        if said.layouts and said.layouts != keep.digest(program, assigned, self.mesh):
            raise FileError(
                f"{str(self.path)!r} cannot be applied: its decisions lead to other layouts inside "
                f"than they did in partita {said.partita}, which wrote it; plan again, or load it "
                "with rebase=True"
            )
        return done

    def _differences(self, program: Program, traced: Traced, now: Fingerprint) -> list[str]:
        said = self.table.program
        arguments, results = keep.tensors(program, self.mesh, replicated(program))
        found = _renamed("argument", said.arguments, arguments)
        found += _renamed("result", said.results, results)
        then = (*said.donate_argnums, *said.donate_argnames) or "none"
        here = (*traced.donate_argnums, *traced.donate_argnames) or "none"
        if then != here:
            found.append(f"donated arguments: were {then}, now {here}")
        if not found:
            held = keep.closed_over_constants(program, traced.closed_over)
            found += [
                f"constants[{number}] holds other numbers"
                for number, (then, is_) in enumerate(zip(said.closed_over, held, strict=False))
                if then != is_
            ]
        if found or now.digest == said.fingerprint:
            return found
        return differences(self._fingerprint(), now, program)

    def _fingerprint(self) -> Fingerprint:
        """Returns the fingerprint of the program that the file is for."""
        said, text = self.table.program, self.table.program.text
        lines = text.listed(len(text.checks) // 2, f"{str(self.path)!r}: `order`")
        return Fingerprint(said.fingerprint, lines, text.checks)


def read_plan(path: str | Path) -> Saved:
    """Reads a plan file.

    Raises:
      FileError: there is none, or it is damaged or of another format.
    """
    try:
        data = files.read(path, MOST_BYTES)
    except OSError as error:
        raise FileError(f"cannot read the plan file {str(path)!r}: {error.strerror}") from None
    return saved_as(data, Path(path))


def saved_as(data: bytes, path: Path) -> Saved:
    """The contents of a plan file; raises as `read_plan`."""
    table = decode(data, path)
    try:
        return Saved(path, mesh_of(table), table)
    except (AxisError, MeshError) as error:
        raise FileError(f"{str(path)!r} is not a plan file that can be read: {error}") from None


def mesh_of(table: PlanTable) -> Mesh:
    """The mesh that a file says; an error if there cannot be such a one."""
    names, sizes = tuple(table.mesh), tuple(table.mesh.values())
    mesh = Mesh(names, sizes, tuple(table.networks.get(name, ()) for name in names))
    for name in table.networks:
        mesh.axis(name)
    return mesh


def _renamed(what: str, then: Sequence[Tensor], now: Sequence[Tensor]) -> list[str]:
    """Returns the differences between lists of arguments or results: names, types and order."""
    old, new = ({t.name: t.type for t in tensors} for tensors in (then, now))
    found = [f"{what} {name} ({old[name]}) is gone" for name in old if name not in new]
    found += [f"{what} {name} ({new[name]}) is new" for name in new if name not in old]
    found += [
        f"{what} {name} was {old[name]}, now {new[name]}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    if not found and [t.name for t in then] != [t.name for t in now]:
        return [f"the {what}s are in another order"]
    return found


def _recorded(entry: TacticTable, stage: Stage) -> Recorded:
    """The tactic of an entry, to apply to a stage; as layouts, if an earlier partita listed others
    than its decisions lead to."""
    context = stage.context
    decided = tuple(read(row, context) for row in entry.decided)
    if entry.reached is not None:
        reached = read(entry.reached, context)
        if apply(stage, decided).assignment != apply(stage, [reached]).assignment:
            decided = (reached,)
    said = Outcome(
        stage.assignment,
        memory=entry.memory,
        refused=tuple(Refusal(**msgspec.structs.asdict(each)) for each in entry.refused),
        **{name: getattr(entry, name) for name in _SAID},
    )
    return Recorded(entry.name, decided, said)


_SAID = ("decisions", "blocked", "conflicts", "resolved", "warnings")


def read(row: Row, context: Context) -> Decision:
    """The decision of a row of a file, checked against a program and a mesh.

    Raises:
      FileError: the program has no such value, dimension or the like; or the row is no decision.
      AxisError: the mesh has no such axis.
    """
    decision = numbered(row, context)
    if problem := decision.problem(context.analysis.program):
        raise FileError(problem)
    return decision


def numbered(row: Row, context: Context) -> Decision:
    """The decision of a row of a file; dimensions and factors that it names are not checked.

    Raises:
      FileError: the program has no such value, color or the like; or the row is no decision.
      AxisError: the mesh has no such axis.
    """
    program, groups = context.analysis.program, context.analysis.groups

    def visit(refers: Refers, item: Any, _: Row) -> Any:
        if refers == "axis":
            return context.mesh.axis(item)
        if refers == "role":
            conflict, role = item
            known = groups.conflict_groups[conflict : conflict + 1]
            if not any(role in roles for roles in known):
                raise FileError(f"there is no role {role} of a conflict {conflict}")
        elif refers in counts and not item < counts[refers]:
            raise FileError(f"there is no {refers} {item}")
        return item

    counts = {
        "color": groups.colors,
        "value": len(program.values),
        "operation": len(program.operations),
    }
    check_form(row)
    return from_row(translated(row, visit))


def check_form(row: Row) -> None:
    """Raises `FileError` unless a row of a file is a decision; what it refers to is not checked."""
    try:
        from_row(
            translated(
                row,
                lambda refers, item, _: 0 if isinstance(item, str) and refers == "axis" else item,
            )
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise FileError(f"a decision cannot be read: {error}") from None


def estimate_of(said: EstimateTable) -> Estimate:
    """The estimate that a file says."""
    traffic = {
        (each.kind, each.axes): Traffic(each.count, each.bytes, each.seconds)
        for each in said.traffic
    }
    offloaded = Traffic(**msgspec.structs.asdict(said.offloaded))
    both = {"traffic": traffic, "offloaded": offloaded}
    return Estimate(**{**msgspec.structs.asdict(said), **both})
