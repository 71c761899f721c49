"""A plan -> the contents of its file."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from functools import partial

import jax
import msgspec
import numpy as np

from partita.cost import Estimate
from partita.decisions import Context, Decision, Layouts, gathers, to_row
from partita.errors import FileError
from partita.frontend.calling import Marked
from partita.mesh import Mesh
from partita.planning.replay import Replay
from partita.planning.schedule import Scheduled, TacticReport
from partita.program import Program
from partita.program.fingerprint import Fingerprint, digest_of, fingerprint
from partita.saved.anchors import anchors, in_short
from partita.saved.schema import (
    FORMAT,
    UNSUMMED,
    ClosedOver,
    CollectiveRow,
    EstimateTable,
    OperationList,
    PlanTable,
    ProgramTable,
    SpecsTable,
    TacticTable,
    Tensor,
    Text,
    encode,
    in_runs,
)
from partita.spmd import Collective, SpmdProgram
from partita.tiling import Assignment, replicated, spec
from partita.version import __version__


def contents(done: Scheduled, donated: Marked, closed_over: Sequence[np.ndarray]) -> bytes:
    """The file of a plan.

    Args:
      done: where its schedule has come to.
      donated: the donated arguments.
      closed_over: constants that have become arguments of the program, the last ones.

    Raises:
      FileError: a tactic reports something that a file cannot hold.
    """
    try:
        return encode(table(done, donated, closed_over))
    except (msgspec.ValidationError, TypeError) as error:
        problem = str(error).replace("`$.", "`")
        raise FileError(
            f"the plan cannot be saved, a tactic reports otherwise: {problem}"
        ) from None


def table(done: Scheduled, donated: Marked, closed_over: Sequence[np.ndarray]) -> PlanTable:
    """The file of a plan as data; its arguments are those of `contents`."""
    context, assigned = done.stage.context, done.stage.assignment
    program, mesh = context.analysis.program, context.mesh
    decided = decisions_of(done)
    return PlanTable(
        partita_plan=FORMAT,
        checksum=UNSUMMED,
        partita=__version__,
        jax=jax.__version__,
        mesh=dict(mesh),
        networks={name: laid for name, laid in zip(mesh.names, mesh.networks, strict=True) if laid},
        hardware=context.hardware.name,
        capacity=done.estimate.capacity,
        program=_program(context, assigned, donated, closed_over),
        estimate=_estimate(done.estimate),
        collectives=collectives(done.spmd),
        layouts=digest(program, assigned, mesh),
        anchors=anchors(context, itertools.chain.from_iterable(decided)),
        history=tuple(map(partial(_tactic, mesh), done.history, decided)),
        gathered_again=tuple(to_row(each, mesh.names) for each in done.gathered_again),
    )


def tensors(
    program: Program, mesh: Mesh, assigned: Assignment
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The arguments and the results of a program, as a file lists them."""

    def each(names: Sequence[str], values: Sequence[int]) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(name, str(program.values[v].type), spec(assigned.values[v], mesh))
            for name, v in zip(names, values, strict=True)
        )

    return (
        each(program.argument_names, program.arguments),
        each(program.result_names, program.results),
    )


def text(found: Fingerprint) -> Text:
    """The lines of a program, each different one once."""
    return Text(*in_runs(found.lines), found.checks)


def collectives(spmd: SpmdProgram) -> tuple[CollectiveRow, ...]:
    """The collectives of a step, those of one line together, in the order of the program."""
    found: dict[tuple[str, tuple[str, ...], str], list[Collective]] = {}
    for each in spmd.collectives:
        found.setdefault((each.kind, each.axes, each.source), []).append(each)
    return tuple(
        CollectiveRow(
            *key,
            value=same[0].value,
            count=sum(each.count for each in same),
            bytes=sum(each.count * each.bytes for each in same),
        )
        for key, same in found.items()
    )


def closed_over_constants(
    program: Program, closed_over: Sequence[np.ndarray]
) -> tuple[ClosedOver, ...]:
    """Constants that have become arguments, as a file lists them."""
    values = program.arguments[len(program.arguments) - len(closed_over) :]
    return tuple(
        ClosedOver(program.values[v].type.bytes, digest_of(array))
        for v, array in zip(values, closed_over, strict=True)
    )


def _program(
    context: Context,
    assigned: Assignment,
    donated: Marked,
    closed_over: Sequence[np.ndarray],
) -> ProgramTable:
    program = context.analysis.program
    found = fingerprint(context.traced)  # loading compares that; decisions change it again
    arguments, results = tensors(program, context.mesh, assigned)
    return ProgramTable(
        name=program.name,
        fingerprint=found.digest,
        donate_argnums=donated.donate_argnums,
        donate_argnames=donated.donate_argnames,
        closed_over=closed_over_constants(program, closed_over),
        arguments=arguments,
        results=results,
        text=text(found),
        operations=OperationList(*in_runs(in_short(program, op) for op in program.operations)),
        specs=specs(program),
    )


def specs(program: Program) -> SpecsTable | None:
    """The shardings that `simulate` was given, if the program is one of it."""
    if program.specs is None:
        return None
    arguments, results = program.specs.arguments, program.specs.results
    return SpecsTable(
        {program.argument_names[number]: axes for number, axes in arguments.items()},
        {program.result_names[number]: axes for number, axes in results.items()},
    )


def decisions_of(done: Scheduled) -> list[tuple[Decision, ...]]:
    """The decisions of every tactic; those that do not lead to what it decided, as layouts."""
    replay, mesh = Replay(done), done.mesh
    return [
        entry.decided
        if replay.is_faithful(number)
        else _between(done.before(number).assignment, entry.assignment, mesh)
        for number, entry in enumerate(done.history)
    ]


def _between(before: Assignment, after: Assignment, mesh: Mesh) -> tuple[Decision, ...]:
    new = gathers(after.gathers - before.gathers)
    return Layouts.between(before, after, mesh), *new


def digest(program: Program, assigned: Assignment, mesh: Mesh) -> str:
    """A digest of the layout of every operation and value, and of what is pinned."""
    whole = Layouts.between(replicated(program), assigned, mesh)
    return hashlib.sha256(msgspec.json.encode(whole)).hexdigest()


def _tactic(mesh: Mesh, entry: TacticReport, decided: Sequence[Decision]) -> TacticTable:
    said = ("name", "memory", "decisions", "refused", "blocked", "conflicts", "resolved")
    return msgspec.convert(
        {
            **{name: getattr(entry, name) for name in said},
            "warnings": tuple(told for told in entry.warnings if told not in entry.effects),
            "decided": tuple(to_row(decision, mesh.names) for decision in decided),
        },
        TacticTable,
        from_attributes=True,
    )


def _estimate(estimate: Estimate) -> EstimateTable:
    traffic = [
        {"kind": kind, "axes": axes, **vars(all_)}
        for (kind, axes), all_ in estimate.traffic.items()
    ]
    said = {**vars(estimate), "traffic": traffic}
    return msgspec.convert(said, EstimateTable, from_attributes=True)
