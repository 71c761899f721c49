"""`make paper-table`: the schedules of the PartIR paper, counted three times over.

For every row of `tools.partir` the number of collectives of each kind: by arithmetic, as
predicted by the plan, and in the program that XLA compiles for eight host devices. With a
difference anywhere the exit status is 1.
"""

from __future__ import annotations

import os

# What the user has set comes last and wins.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get(
    "XLA_FLAGS", ""
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import datetime
import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import partita as pt
from partita.cli import run
from partita.errors import closest
from partita.planning.schedule import lower_and_cost
from partita.tactics import Tactic
from partita.verify.collectives import found_collectives
from partita.verify.comparison import side_by_side
from partita.verify.hlo import parse
from tools.partir import ROWS, SUBJECTS, Row, Subject

QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Options of the compiler; collectives do not depend on how well the rest is compiled."""

WIDTH = 120
"""Columns of what is not printed to a terminal."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One kind of collective in one row, counted three times over."""

    subject: str
    schedule: str
    kind: str
    executed: bool
    """Whether those that run in a step are counted, rather than those in the program."""
    formula: str
    arithmetic: int
    predicted: int
    compiled: int | None
    """None where nothing is compiled."""

    @property
    def equal(self) -> bool:
        """Whether all counts agree."""
        return self.arithmetic == self.predicted and self.compiled in (None, self.predicted)


class Plans:
    """The plans of one subject; what schedules begin with in common is planned once."""

    def __init__(self, subject: Subject, small: bool = False) -> None:
        model = subject.model(small)
        self._whole = pt.plan(
            model.fn,
            *model.args,
            mesh=subject.mesh,
            hardware="tpu_v5e",
            tactics=[],
            donate_argnums=model.donate_argnums,
        )
        self._known: dict[tuple[str, ...], pt.Plan] = {}

    def of(self, row: Row) -> pt.Plan:
        """The plan of a row."""
        plan = self._after(row.tactics)
        return plan if row.memory is None else within(plan, row.memory)

    def _after(self, tactics: tuple[Tactic, ...]) -> pt.Plan:
        if not tactics:
            return self._whole
        key = tuple(tactic.name for tactic in tactics)
        if key not in self._known:
            self._known[key] = self._after(tactics[:-1]).then(tactics[-1])
        return self._known[key]


def within(plan: pt.Plan, memory: int) -> pt.Plan:
    """The same tiling, lowered for a device with so many bytes."""
    done = plan.done
    stage = dataclasses.replace(done.stage, memory=memory)
    lowering, estimate = lower_and_cost(stage)
    return dataclasses.replace(
        plan, done=dataclasses.replace(done, stage=stage, lowering=lowering, estimate=estimate)
    )


def compile_row(plan: pt.Plan) -> str:
    """The text of the compiled program."""
    lowered = plan.jit().lower(*plan.abstract())
    text: str = lowered.compile(compiler_options=QUICKLY).as_text()
    return text


def by_arithmetic(row: Row, small: bool = False) -> list[Line]:
    """The lines of a row as they are if all counts agree."""
    numbers = SUBJECTS[row.subject].numbers(small)
    start = functools.partial(Line, row.subject, row.schedule)
    lines = []
    for c in row.counts:
        n, often = c.of(numbers), c.runs(numbers)
        lines.append(start(c.kind, False, c.formula, n, n, n))
        if c.executed:
            lines.append(start(c.kind, True, c.executed, often, often, often))
    return lines or [start("none", False, "0", 0, 0, 0)]


@dataclasses.dataclass
class Tally:
    """Collectives by kind: how many there are, and how often they run."""

    instructions: Counter[str] = dataclasses.field(default_factory=Counter)
    runs: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, kind: str, times: int) -> None:
        """Counts one that runs so often."""
        self.instructions[kind] += 1
        self.runs[kind] += times

    def of(self, line: Line) -> int:
        """What a line is about."""
        return (self.runs if line.executed else self.instructions)[line.kind]


def count(row: Row, plan: pt.Plan, small: bool = False, text: str | None = None) -> list[Line]:
    """What a row counts to, by arithmetic, in its plan, and in the text of a compiled program.

    Kinds that the arithmetic does not know get lines of their own. So do collectives that are as
    many as predicted, but with other payloads or between other devices.
    """
    predicted = Tally()
    for collective in plan.collectives:
        predicted.add(collective.kind, collective.count)
    found = [] if text is None else found_collectives(parse(text))
    compiled = Tally()
    for each in found:
        compiled.add(each.collective.kind, each.times)

    def counted(line: Line) -> Line:
        made = None if text is None else compiled.of(line)
        return dataclasses.replace(line, predicted=predicted.of(line), compiled=made)

    def strange(what: str) -> Line:
        return Line(row.subject, row.schedule, what, False, "0", 0, 0, 0)

    lines = [counted(line) for line in by_arithmetic(row, small)]
    kinds = predicted.instructions.keys() | compiled.instructions.keys()
    others = kinds - {line.kind for line in lines}
    lines += [counted(strange(kind)) for kind in sorted(others)]
    comparison = side_by_side(plan.collectives, plan.mesh, found)
    unlike = (comparison.compiled - comparison.predicted).total()
    if unlike and compiled == predicted:
        line = strange("other payloads or groups")
        lines.append(dataclasses.replace(line, compiled=unlike))
    return lines


def view(lines: Iterable[Line]) -> Table:
    """The table."""
    table = Table(box=None, pad_edge=False)
    for column in ("model", "schedule", "collectives", "formula"):
        table.add_column(column, no_wrap=True)
    for column in ("arithmetic", "predicted", "compiled", ""):
        table.add_column(column, justify="right")
    shown = ("", "")
    for line in lines:
        before, shown = shown, (line.subject, line.schedule)
        table.add_row(
            line.subject if before[0] != line.subject else "",
            line.schedule if before != shown else "",
            f"{line.kind}, runs" if line.executed else line.kind,
            line.formula,
            str(line.arithmetic),
            str(line.predicted),
            "-" if line.compiled is None else str(line.compiled),
            "" if line.equal else "<- differs",
        )
    return table


def reasons(rows: Sequence[Row], small: bool = False) -> str:
    """The letters of the formulas, and the reasons for each."""
    text = []
    for name in dict.fromkeys(row.subject for row in rows):
        subject = SUBJECTS[name]
        text.append(f"{name}: {subject.what}, on {subject.mesh}")
        for letter, number in subject.numbers(small).items():
            text.append(f"  {letter} = {number}, {subject.letters[letter]}")
        for row in rows:
            for c in row.counts if row.subject == name else ():
                often = f" (runs {c.executed})" if c.executed else ""
                text.append(f"  {row.schedule}, {c.kind} {c.formula}{often}: {c.why}")
    return "\n".join(text)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    subjects: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="T32, IT32, ...; all by default.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Two layers instead of 32.")] = False,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Leave out the compiled programs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Count the collectives of the PartIR paper's schedules; the exit status is 1 if any differ."""
    for name in subjects or ():
        if name not in SUBJECTS:
            expected = ", ".join(map(repr, SUBJECTS))
            raise pt.ModelError(f"no model {name!r}{closest(name, SUBJECTS)}; expected {expected}")
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    wanted = subjects or list(SUBJECTS)
    rows = [row for row in ROWS if row.subject in wanted]
    lines = []
    with Console(stderr=True).status("") as status:
        for name in dict.fromkeys(row.subject for row in rows):
            status.update(f"{name}: tracing")
            plans = Plans(SUBJECTS[name], small)
            for row in rows:
                if row.subject == name:
                    status.update(f"{name}: {row.schedule}")
                    plan = plans.of(row)
                    text = None if no_compile else compile_row(plan)
                    lines += count(row, plan, small, text)
    passed = all(line.equal for line in lines)
    if as_json:
        print(json.dumps({"passed": passed, "lines": list(map(dataclasses.asdict, lines))}))
    else:
        console.print(view(lines), "")
        print(reasons(rows, small))
        print(
            f"\n{datetime.date.today()}, partita {version('partita')}, jax {version('jax')}, "
            f"8 host devices: {'all agree' if passed else 'NOT all agree'}"
        )
    raise typer.Exit(0 if passed else 1)


def main() -> None:
    """Entry point."""
    run(app)


if __name__ == "__main__":
    main()
