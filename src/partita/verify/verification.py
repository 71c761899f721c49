"""Comparison of a prediction with a compiler's result: the findings, and their report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from partita.cost import Estimate
from partita.cost.estimate import StepTime
from partita.escape import printed
from partita.run.executable import Form
from partita.text import Text, plain, size
from partita.verify import tables
from partita.verify.backends import Backend
from partita.verify.comparison import Comparison
from partita.verify.compile import OutOfMemoryError
from partita.verify.memory import Memory
from partita.verify.predicted import Predicted
from partita.verify.profile import Profile, profile


@dataclasses.dataclass(frozen=True, repr=False)
class Verification:
    """Comparison of a prediction with the compiled program, from `Plan.verify`; prints as a
    report."""

    plan: Predicted
    backend: Backend
    """The compiler, and the devices compiled for."""
    form: Form
    predicted_memory: Memory
    memory: Memory | None
    """Memory that the compiler assigns; None if the program did not fit."""
    collectives: Comparison | None
    """Collectives by executions per step where the compiler may unroll loops; on host devices, as
    they appear in the program's text. None if the program did not fit."""
    time: StepTime | None
    """Compute by the compiler's cycles, collectives by the cost model; None where the compiler
    estimates none, or the hardware file has no clock."""
    out_of_memory: OutOfMemoryError | None
    unknown_loops: tuple[str, ...]
    """Loops of the compiled program whose trip count is not known; they count once."""
    seconds: float | None
    """Compile time in seconds."""
    computed_again: int = 0
    """Operations that the compiler has run once more than the program, to save memory."""
    program: str = dataclasses.field(default="", compare=False)
    """The compiled program, as HLO; empty if it did not fit."""

    @property
    def topology(self) -> str | None:
        """The devices compiled for; None for host devices."""
        return self.backend.topology

    @property
    def estimate(self) -> Estimate:
        """Predicted time and memory."""
        return self.plan.estimate

    @property
    def problems(self) -> tuple[str, ...]:
        """Differences that must not occur; empty if the prediction holds.

        Some compilers keep the collectives that a plan makes explicit, apart from known rewrites;
        the one for hosts does. Others rewrite some, and a compiler that partitions by itself
        chooses its own: differences there are reported, but are not problems.
        """
        found = []
        kept = self.form == "partitioned" and self.backend.keeps_collectives
        if kept and self.collectives is not None and not self.collectives.explained:
            found.append("the compiled program has other collectives than the plan")
        if self.out_of_memory is not None and self.estimate.fits:
            found.append("the plan was predicted to fit, and the compiler runs out of memory")
        if self.exceeds and self.estimate.fits:
            found.append("the plan was predicted to fit, and what was compiled needs more")
        return tuple(found)

    @property
    def exceeds(self) -> bool:
        """True if a compiler that does not enforce the memory limit needs more than the plan may
        use."""
        if self.memory is None or self.backend.refuses or self.backend.topology is None:
            return False
        return self.memory.peak > self.estimate.capacity

    @property
    def widened(self) -> bool:
        """True if the devices move wider types than the plan; sizes are those of the wider ones."""
        return any(self.backend.widening(c.dtype) > 1 for c in self.plan.collectives)

    @property
    def passed(self) -> bool:
        """True if there are no `problems`."""
        return not self.problems

    @printed
    def __str__(self) -> str:
        return plain(self.view())

    @printed
    def __repr__(self) -> str:
        found = "; ".join(self.problems) or "no problems"
        name, mesh = self.plan.program.name, self.plan.mesh
        return (
            f"<Verification of {name} on {mesh}, {self.form}, "
            f"for {self.topology or 'host devices'}: {found}>"
        )

    def profile(self, folder: str | Path) -> Profile:
        """Compares a profile that `jax.profiler.trace(folder)` made of the same program with the
        prediction.

        Raises:
          FileError: there is no trace in the folder, or none of this program.
        """
        return profile(self.plan.timeline, self.program, folder)

    def view(self) -> RenderableType:
        """The report as something that rich can print."""
        plan, target = self.plan, self.backend.target
        title = f"{plan.program.name} on mesh {plan.mesh}, {self.form} form, for {target}"
        parts: list[RenderableType] = [Text(title, style="bold")]
        if self.collectives is not None:
            parts += [Text(), tables.collectives(self.collectives, plan.mesh)]
        parts += [Text(), tables.memory(self.predicted_memory, self.memory)]
        if self.time is not None:
            parts += [Text(), tables.time(self.estimate, self.time)]
        parts += [Text(), *self._notes()]
        return Group(*parts)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data for JSON. Times in seconds, sizes in bytes."""
        plan, memory = self.plan, self.out_of_memory
        comparison = self.collectives
        return {
            "program": plan.program.name,
            "mesh": dict(plan.mesh),
            "hardware": plan.hardware.name,
            "topology": self.topology,
            "form": self.form,
            "passed": self.passed,
            "problems": list(self.problems),
            "collectives": None
            if comparison is None
            else tables.collectives_data(comparison, plan.mesh),
            "agreement": None if comparison is None else comparison.agreement,
            "rewrites": None if comparison is None else comparison.rewrites,
            "memory": {
                "predicted": tables.memory_data(self.predicted_memory),
                "compiled": None if self.memory is None else tables.memory_data(self.memory),
                "capacity": plan.estimate.capacity,
                "fits": plan.estimate.fits,
            },
            "out_of_memory": None
            if memory is None
            else {"message": str(memory), "used": memory.used, "capacity": memory.capacity},
            "time": None
            if self.time is None
            else {
                "predicted": tables.time_data(plan.estimate),
                "compiled": tables.time_data(self.time),
            },
            "unknown_loops": list(self.unknown_loops),
            "computed_again": self.computed_again,
            "compile_seconds": self.seconds,
        }

    def _notes(self) -> list[RenderableType]:
        lines: list[RenderableType] = []
        if self.out_of_memory is not None:
            lines.append(Text(str(self.out_of_memory), style="red"))
        if self.widened:
            lines.append(Text(self.backend.widening_note, style="yellow"))
        if self.collectives is not None:
            for name, times in self.collectives.rewrites.items():
                does = self.backend.rewrites[name]
                lines.append(Text(f"Rewritten by the compiler, {times} x {name}: {does}."))
        if self.computed_again:
            lines.append(
                Text(
                    f"To save memory, {self.computed_again} operations are computed again (.remat)."
                )
            )
        if self.exceeds and self.memory is not None:
            needed, capacity = self.memory.peak, self.estimate.capacity
            text = f"It needs {size(needed)}, and the plan may use {size(capacity)}."
            lines.append(Text(text, style="red"))
        if self.unknown_loops:
            names = ", ".join(self.unknown_loops)
            lines.append(Text(f"Loops of unknown length, counted once: {names}", style="yellow"))
        if self.seconds is not None:
            lines.append(Text(f"Compiled in {self.seconds:.1f} s."))
        for problem in self.problems:
            lines.append(Text(f"DIFFERS: {problem}", style="bold red"))
        if self.passed:
            lines.append(Text("As predicted." if self._as_predicted() else "No failure."))
        return lines

    def _as_predicted(self) -> bool:
        return self.collectives is not None and self.collectives.explained
