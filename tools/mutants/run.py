"""Runs tests against mutants, each in a process of its own."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.mutants.planted import Mutant, MutantError, planted

ROOT = Path(__file__).parents[2]

MOST = 300
"""Seconds that tests may take. A mutant that makes them take longer is found."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What tests say of a mutant."""

    mutant: Mutant | None
    """None for the package as it is."""
    test: str
    """The first test that failed; empty if all passed."""
    seconds: float
    """Until then, the start of Python included."""

    @property
    def found(self) -> bool:
        """Whether a test failed."""
        return bool(self.test)


def tried(mutant: Mutant | None, tests: Sequence[str], most: float = MOST) -> Outcome:
    """Runs tests on a copy of the package, with a mutant if there is one.

    Raises:
      MutantError: the mutant cannot be planted, or the tests did not run.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted(mutant, folder)
        begun = time.monotonic()
        status, output = _run(mutant, folder, tests, most)
        seconds = time.monotonic() - begun
        if status is None:
            return Outcome(mutant, f"none had failed after {most:g} s", seconds)
        result = folder / "result"
        if status not in (0, 1) or (status == 1) != result.exists():
            where = "without a mutant" if mutant is None else f"with that in {mutant.file}"
            raise MutantError(f"the tests did not run {where} (status {status}):\n{output}")
        return Outcome(mutant, result.read_text() if status else "", seconds)


def _run(
    mutant: Mutant | None, folder: Path, tests: Sequence[str], most: float
) -> tuple[int | None, str]:
    """The exit status of the tests, None if they took too long, and the end of what they wrote."""
    first = " ".join(mutant.first) if mutant else ""
    command = [sys.executable, "-m", "tools.mutants.suite", folder, folder / "result", first]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*map(str, command), *tests],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(most)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:  # what it started is in the same group
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return status, log.read_text()[-4000:]
