"""What is known of an operation where its device-local form is written."""

from __future__ import annotations

import dataclasses

from partita.program.ir import Operation, TensorType
from partita.tiling import OpForm


@dataclasses.dataclass(frozen=True)
class LocalRun:
    """One operation as a device runs it."""

    operation: Operation
    form: OpForm
    sums: frozenset[int]
    """Axes over which the result is partial."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    global_inputs: tuple[TensorType, ...]
    """Types of the operands before they were split."""
    global_outputs: tuple[TensorType, ...]
