"""Facts about an operation that are known where its device-local form is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from partita.mesh import Layout
from partita.program.ir import Operation, TensorType
from partita.program.rule import Halo, Reach
from partita.stablehlo.builder import Builder
from partita.stablehlo.mlir import ir


@dataclasses.dataclass(frozen=True)
class LocalRun:
    """One operation as a device runs it."""

    operation: Operation
    needs: tuple[Layout, ...]
    """Layout of every operand."""
    halos: tuple[Halo, ...]
    """Halo of every operand: the windows that reach into neighbouring shards."""
    makes: tuple[Layout, ...]
    """Layout of every result."""
    axes: frozenset[int]
    """All axes that the operation works along."""
    sums: frozenset[int]
    """Axes over which the result is partial."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    global_inputs: tuple[TensorType, ...]
    """Types of the operands before they were split."""
    global_outputs: tuple[TensorType, ...]
    partitioned: Mapping[str, Any]
    """Functions that say themselves how they are split."""

    def reaches(self, number: int) -> list[tuple[int, Reach]]:
        """Returns the dimensions along which a device has got a window of an operand."""
        return [(dim, reach) for dim, reach in enumerate(self.halos[number]) if reach]


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
