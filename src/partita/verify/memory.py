"""The memory that a compiler gives a program, on one device."""

from __future__ import annotations

import dataclasses
from typing import Any

from partita.cost.memory.model import padded
from partita.tiling import local_type
from partita.verify.predicted import Predicted


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device, all of them alive at the peak."""

    arguments: int
    """Bytes of the arguments; donated buffers are reused for results."""
    outputs: int
    """Results that have buffers of their own."""
    temporaries: int
    """Everything in between, as the compiler lays it out; constants of the program on a host."""

    @property
    def peak(self) -> int:
        """All of it."""
        return self.arguments + self.outputs + self.temporaries


def memory_of(analysis: Any) -> Memory:
    """Converts `compiled.memory_analysis()`."""
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )


def predicted_memory(plan: Predicted) -> Memory:
    """Returns a plan's predicted memory, split like a compiler's figures.

    The predicted peak is at one moment, when a result need not be live yet; a compiler keeps
    buffers of results during the whole step. Everything except arguments and results is called
    temporary.
    """
    program, spmd, estimate = plan.program, plan.spmd, plan.estimate
    outputs = sum(
        padded(local_type(program.values[value].type, layout, plan.mesh), plan.hardware.tile)
        for number, (value, layout) in enumerate(
            zip(program.results, spmd.result_layouts, strict=True)
        )
        if number not in program.aliases
    )
    rest = estimate.peak_memory - estimate.argument_memory
    written = min(round(outputs), rest)
    return Memory(estimate.argument_memory, written, rest - written)
