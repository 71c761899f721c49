"""Running cells of the accuracy table, each in a process of its own; results are kept in a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import partita as pt
from partita import models
from partita.errors import FileError
from partita.verify import Verification
from partita.verify.backends import backend_for
from partita.verify.check import verified
from tools.accuracy.cells import BY_NAME, MODELS, SINGLE, Cell, sized
from tools.accuracy.keep import DEFAULT, How, compile_or_recall


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a step."""

    step: float
    serial: float
    compute: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a cell. Sizes in bytes per device, times in seconds."""

    cell: Cell
    definition: str
    """What the cell was made of, and by which sources."""
    outcome: str
    """`compiled`, `out of memory`, `timeout` or `failed`."""
    reason: str = ""
    fits: bool = False
    """As predicted."""
    capacity: int = 0
    """Bytes that the plan may use."""
    predicted_memory: int = 0
    compiled_memory: int | None = None
    collectives: str = ""
    """How near they are: one of `partita.verify.AGREEMENTS`."""
    rewrites: dict[str, int] = dataclasses.field(default_factory=dict)
    """Known rewrites that the compiler has done, `Backend.rewrites`, and how often."""
    predicted_time: Times | None = None
    compiled_time: Times | None = None
    """By the compiler's cycles, and the ring model for its collectives."""
    plan_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def memory_error(self) -> float | None:
        """Predicted over compiled peak, less 1."""
        if self.compiled_memory is None:
            return None
        return self.predicted_memory / self.compiled_memory - 1


@functools.cache
def sources() -> str:
    """A fingerprint of this package: of other sources, predictions may be others."""
    digest = hashlib.sha256()
    package = Path(pt.__file__).parent
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".toml")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def definition(cell: Cell, how: How = DEFAULT) -> str:
    """All that a result is made of, so that an old one of something else is not taken."""
    combiner = "" if how.combine else ", combiner off"
    options = "".join(f", {option}" for option in how.options)
    return f"{cell.definition()}{combiner}{options}, partita {sources()}"


def measure(cell: Cell, compiled: Path, how: How = DEFAULT) -> Result:
    """Plans a cell in this process, and compiles it if `compiled`, a folder, does not have it.

    Args:
      cell: what to measure.
      compiled: folder of compiled programs.
      how: what the compiler is told.
    """
    start = time.perf_counter()
    plan = planned(cell)
    seconds = time.perf_counter() - start
    backend = backend_for(cell.topology)
    program = compile_or_recall(plan, backend, compiled, how)
    found = verified(plan, backend, "partitioned", program)
    return result_of(cell, found, seconds, how)


def planned(cell: Cell) -> pt.Plan:
    """The plan of a cell; of fewer candidates than there are cells for, the last."""
    size, schedule = sized(cell.model), BY_NAME[cell.schedule]
    model = models.build(size.preset, **size.changes)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh=cell.mesh,
        hardware=cell.hardware,
        tactics=schedule.tactics(size.preset),
        donate_argnums=model.donate_argnums,
    )
    return plan.candidates(schedule.place + 1)[-1] if schedule.place else plan


def result_of(cell: Cell, found: Verification, plan_seconds: float, how: How = DEFAULT) -> Result:
    """What a verification says of a cell."""
    estimate, time_ = found.estimate, found.time
    common = Result(
        cell,
        definition(cell, how),
        "compiled",
        fits=estimate.fits,
        capacity=estimate.capacity,
        predicted_memory=estimate.peak_memory,
        predicted_time=Times(estimate.step_time, estimate.serial_time, estimate.compute_time),
        plan_seconds=plan_seconds,
        compile_seconds=found.seconds or 0.0,
    )
    if found.out_of_memory is not None:
        return dataclasses.replace(common, outcome="out of memory", reason=str(found.out_of_memory))
    assert found.memory is not None and found.collectives is not None
    compiled = None
    if time_ is not None:
        compiled = Times(time_.step_time, time_.serial_time, time_.compute_time)
    return dataclasses.replace(
        common,
        compiled_memory=found.memory.peak,
        collectives=found.collectives.agreement,
        rewrites=found.collectives.rewrites,
        compiled_time=compiled,
    )


def measure_apart(cell: Cell, compiled: Path, limit: float, how: How = DEFAULT) -> Result:
    """Measures a cell in a process of its own, which is ended after `limit` seconds."""
    made_of = definition(cell, how)
    command = _command(cell, compiled, how)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return Result(cell, made_of, "timeout", f"took more than {limit:.0f} s")
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Result)
    except msgspec.DecodeError:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Result(cell, made_of, "failed", lines[-1][:300])


def _command(cell: Cell, compiled: Path, how: How) -> list[str]:
    """What measures a cell and prints its result."""
    names = (cell.model, cell.schedule, cell.topology)
    command = [sys.executable, "-m", "tools.accuracy", "--one", *names]
    options = [word for option in how.options for word in ("--compiler-option", option)]
    command += ["--compiled", str(compiled), *options]
    return command if how.combine else [*command, "--no-combine"]


def kept(path: Path, how: How = DEFAULT) -> dict[Cell, Result]:
    """The results in a file, the last of each cell; without those of other cells or sources.

    Raises:
      FileError: a line is no result.
    """
    found: dict[Cell, Result] = {}
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            result = msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError as error:
            raise FileError(
                f"{path}, line {number} is no result ({error}); take the line out, or say "
                "--results with another file"
            ) from error
        if result.cell.model in (*MODELS, *SINGLE) and result.definition == definition(
            result.cell, how
        ):
            found[result.cell] = result
    return found


def complete(
    wanted: Sequence[Cell],
    path: Path,
    compiled: Path,
    limit: float,
    again: bool = False,
    how: How = DEFAULT,
) -> Iterator[tuple[Cell, Result | None]]:
    """Measures the cells that a file does not have, and appends them to it one by one.

    Yields each cell before (with None) and after it is measured; those that are kept, only after.

    Args:
      wanted: cells.
      path: of the file, with a line of JSON for each result.
      compiled: folder of compiled programs.
      limit: seconds for a cell.
      again: measure those again that have failed or taken too long.
      how: what the compiler is told.
    """
    known = kept(path, how)
    for cell in wanted:
        result = known.get(cell)
        if result is None or (again and result.outcome in ("timeout", "failed")):
            yield cell, None
            result = measure_apart(cell, compiled, limit, how)
            with path.open("a", encoding="utf-8") as file:
                file.write(msgspec.json.encode(result).decode() + "\n")
        yield cell, result
