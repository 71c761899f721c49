"""A saved plan for a program or a mesh that has changed: its tactics decide again what they can.

No tactic is needed, and none searches: the file has the decisions of each. Where these are layouts
of another program, the shardings of its arguments are placed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

from partita.decisions import (
    Context,
    Decision,
    Layouts,
    Request,
    Row,
    ShardValues,
    Stage,
    from_row,
    kinds,
)
from partita.errors import FileError, TacticError
from partita.planning.prepare import Prepared
from partita.planning.schedule import Scheduled, unscheduled
from partita.saved import keep
from partita.saved.restore import Saved, check_form, numbered
from partita.saved.schema import TacticTable
from partita.saved.translate import NotKept, Translator
from partita.tactics import Outcome, Refusal, Tactic, in_turn, joined
from partita.tactics.given import KeepGiven, PropagateGiven, with_facts
from partita.tactics.placement import Placement
from partita.tactics.recorded import Recorded
from partita.text import show_entries
from partita.tiling import replicated

MOST_ORDERS = 4
"""Number of orders in which shardings are placed, to find one in which all fit."""


def rebase(saved: Saved, prepared: Prepared) -> tuple[Scheduled, tuple[NotKept, ...]]:
    """The schedule of a plan file, applied to another program or mesh; what it could not keep.

    Raises:
      FileError: the file numbers what there cannot be.
    """
    done, lost = unscheduled(prepared.context()), list[NotKept]()
    try:
        others = []
        for entry in saved.table.history:
            changing = _changing(entry)
            if changing is None:
                others.append(entry)
                continue
            try:
                done = done.then(changing)
            except TacticError as error:
                lost.append(NotKept(entry.name, str(error)))
        context = done.stage.context
        tactics = [_again(saved, entry, context) for entry in others]
        schedule: list[Tactic] = [again for again, _ in tactics]
        if not any(_keeps_given(again) for again, _ in tactics):
            schedule = with_facts(done.program, context.mesh, schedule)
        for tactic in schedule:
            done = done.then(tactic)
    except FileError as error:
        raise FileError(f"{str(saved.path)!r} cannot be rebased: {error}") from None
    lost += [each for _, gone in tactics for each in gone]
    return done, (*lost, *_sharded_otherwise(saved, done))


def _changing(entry: TacticTable) -> Recorded | None:
    """The tactic of an entry whose decisions change the program; None for another."""
    for row in entry.decided:
        check_form(row)
    kinds_of = kinds()
    if not any(kinds_of[row["decision"]].changes_program for row in entry.decided):
        return None
    return Recorded(entry.name, tuple(map(from_row, entry.decided)))


def _keeps_given(again: _Again) -> bool:
    return any(isinstance(each, KeepGiven | PropagateGiven) for each in again.decided)


@dataclasses.dataclass(frozen=True)
class _Again:
    """Decisions of a tactic of a file, as far as they are still possible."""

    name: str
    decided: tuple[Decision, ...] = dataclasses.field(repr=False)
    said: Outcome = dataclasses.field(repr=False)
    """Rest of its report: texts, and what fails now."""
    placed: tuple[Placement, ...] = dataclasses.field(default=(), repr=False)
    """Placements in place of its decisions, if these are layouts of another program."""

    def apply(self, stage: Stage) -> Outcome:
        """Applies its decisions."""
        outcomes = [_in_some_order(stage, self.placed)]
        stage = stage.at(outcomes[0].assignment)
        for decision in self.decided:
            tactic = (
                Placement(decision)
                if isinstance(decision, ShardValues)
                else Recorded(self.name, (decision,))
            )
            outcomes.append(tactic.apply(stage))
            stage = stage.at(outcomes[-1].assignment)
        return joined([*outcomes, self.said], stage.assignment)


def _again(saved: Saved, entry: TacticTable, context: Context) -> tuple[_Again, list[NotKept]]:
    """The tactic of an entry for another program, and what that has not."""
    translator = Translator(saved.table, context, entry.name)
    layouts = [row for row in entry.decided if row.get("decision") == _LAYOUTS]
    rows = translator.decisions([row for row in entry.decided if row not in layouts])
    decided = tuple(filter(None, (_fitting(row, context, translator) for row in rows)))
    said = Outcome(
        replicated(context.analysis.program),
        decisions=entry.decisions,
        refused=tuple(Refusal(each.what, f"not kept: {each.reason}") for each in translator.gone),
        memory=entry.memory,
    )
    placed = tuple(p for row in layouts for p in _placed(row, saved, context))
    return _Again(entry.name, decided, said, placed), translator.gone


def _fitting(row: Row, context: Context, translator: Translator) -> Decision | None:
    """Returns the decision of a row, without what the program has in another form now."""

    def lose(problem: str) -> None:
        translator.lose(problem, "it has another form now")

    return numbered(row, context).fitting(context.analysis.program, lose)


_LAYOUTS = str(Layouts.__struct_config__.tag)


def _placed(row: Row, saved: Saved, context: Context) -> Iterator[Placement]:
    """The shardings of arguments that a tactic left behind, each axis of each by itself."""
    program, mesh = context.analysis.program, context.mesh
    values = dict(zip(program.argument_names, program.arguments, strict=True))
    said, arguments = cast(Layouts, from_row(row)), saved.table.program.arguments
    for number, layout in said.first_values(len(arguments)):
        name = arguments[number].name
        if name in values:
            value = values[name]
            for dim, axes in enumerate(layout[: len(program.values[value].type.shape)]):
                for axis in filter(mesh.names.__contains__, axes):
                    request = Request(name, value, (dim,), name)
                    yield Placement(ShardValues((request,), mesh.axis(axis)))


def _in_some_order(stage: Stage, placements: Sequence[Placement]) -> Outcome:
    """Applies placements, those first that others would make impossible."""
    for _ in range(MOST_ORDERS):
        outcome = in_turn(stage, placements) if placements else Outcome(stage.assignment)
        layouts = outcome.assignment.values
        missed = [
            each
            for each in placements
            for request in each.shard.requests
            if each.shard.axis not in layouts[request.value][request.dims[0]]
        ]
        if not missed:
            break
        placements = [*missed, *(each for each in placements if each not in missed)]
    return outcome


def _sharded_otherwise(saved: Saved, done: Scheduled) -> Iterator[NotKept]:
    """Arguments that are there and are sharded otherwise now."""
    program, mesh = done.program, done.mesh
    arguments, _ = keep.tensors(program, mesh, done.stage.assignment)
    now = {argument.name: argument for argument in arguments}
    why = {
        name: refusal.reason
        for entry in done.history
        for refusal in entry.refused
        for name in [refusal.what.rpartition(" dimension ")[0]]
    }
    for then in saved.table.program.arguments:
        found = now.get(then.name)
        if found is None:
            if any(then.sharding):
                yield NotKept(f"{then.name} as {show_entries(then.sharding)}", "it is gone")
        elif found.sharding != then.sharding:
            was, is_ = show_entries(then.sharding), show_entries(found.sharding)
            reason = why.get(then.name, "where its axes come from has changed")
            yield NotKept(f"{then.name} as {was}, now {is_}", reason)
