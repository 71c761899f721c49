"""Facts about an operation that are known where its device-local form is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from partita.emit.builder import Builder
from partita.program.ir import Operation, TensorType
from partita.stablehlo.mlir import ir
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
    partitioned: Mapping[str, Any]
    """Functions that say themselves how they are split."""


def opened(block: Any, operands: Sequence[Any], build: Builder) -> list[Any]:
    """Moves the operations of a manual computation to the end of the body; returns its results."""
    *inside, returned = [view.operation for view in block.operations]
    for argument, value in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(value)
    results = list(returned.operands)
    for each in inside:
        build.body.append(each)
        each.walk(lambda inner: renumber(inner, build))
    return results


def renumber(op: Any, build: Builder) -> Any:
    """Gives a collective a channel of its own."""
    if "channel_handle" in op.attributes:
        op.attributes["channel_handle"] = build.channel()
    return ir.WalkResult.ADVANCE
