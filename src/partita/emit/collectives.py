"""Steps of resharding -> StableHLO: how each kind of collective is emitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from partita.emit import exchange
from partita.emit.ordered import as_made, as_ordered
from partita.program.collectives import (
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    COLLECTIVES,
    MASK,
    SLICE,
)
from partita.program.ir import TensorType
from partita.spmd.steps import Step
from partita.stablehlo.builder import COMBINE, Builder, set_apart
from partita.stablehlo.building import i64, joined
from partita.stablehlo.mlir import hlo, ir

Emitter = Callable[[Builder, Any, Step], Any]
"""Builds a step at the current insertion point: from the local value before it, that after it."""


def collective(build: Builder, value: Any, step: Step) -> Any:
    """A collective among the groups of devices along the axes of a step, as its entry spells it."""
    if not step.collective.reduces:
        return _operation(build, value, step).results[0]
    moved = dataclasses.replace(
        step,
        before=TensorType(step.before.shape, step.dtype),
        after=TensorType(step.after.shape, step.dtype),
    )
    op = _operation(build, as_ordered(build, value, step.combine), moved)
    scalar = build.type(TensorType((), step.dtype))
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        hlo.return_([COMBINE[step.combine](*block.arguments)])
    return as_made(build, op.results[0], step.after.dtype)


def _operation(build: Builder, value: Any, step: Step) -> Any:
    mesh, kind = build.mesh, step.collective
    size = mesh.size(step.axes)
    numbers = {"dim": step.dim, "split": step.split, "devices": size}
    attributes = {
        name: i64(numbers[what]) if what in numbers else ir.UnitAttr.get()
        for name, what in kind.attributes.items()
    }
    groups = f"dense<{mesh.groups(step.axes)}> : tensor<{mesh.devices // size}x{size}xi64>"
    return ir.Operation.create(
        f"stablehlo.{kind.name}",
        results=[build.type(step.after)],
        operands=[value],
        attributes={
            **attributes,
            "replica_groups": ir.Attribute.parse(groups),
            "channel_handle": build.channel(),
        },
        regions=int(kind.reduces),
    )


def _slice(build: Builder, value: Any, step: Step) -> Any:
    if not step.after.elements:
        return build.fill(build.type(step.after), 0)
    if step.window is not None:
        return exchange.window(build, [value], step.dim, step.window, step.axes)
    size = step.after.shape[step.dim]
    starts = {step.dim: build.offset(step.axes, size)}
    return build.slice(value, step.after.shape, starts)


def _mask(build: Builder, value: Any, step: Step) -> Any:
    return build.only_first(value, build.fill(value.type, 0), step.axes)


def _all_to_all(build: Builder, value: Any, step: Step) -> Any:
    # XLA's CPU compiler cuts the operand into one for each device, and fails where it then
    # sees through the shards: one may be of a transposed value, another one padding.
    return collective(build, set_apart(value), step)


def _collective_permute(build: Builder, value: Any, step: Step) -> Any:
    pairs = step.pairs(build.mesh)
    if step.send is None:
        return _permute(build, value, pairs)
    sent = exchange.sent(build, value, step.dim, step.send, step.axes)
    received = _permute(build, sent, pairs)
    if step.window is not None:
        return exchange.window(build, [value, received], step.dim, step.window, step.axes)
    return joined([value, received], step.dim)


def _permute(build: Builder, value: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Sends a value between pairs of devices; a device that receives nothing gets zeros."""
    listed = f"dense<{[list(pair) for pair in pairs]}> : tensor<{len(pairs)}x2xi64>"
    return ir.Operation.create(
        f"stablehlo.{COLLECTIVE_PERMUTE.name}",
        results=[value.type],
        operands=[value],
        attributes={
            "source_target_pairs": ir.Attribute.parse(listed),
            "channel_handle": build.channel(),
        },
    ).results[0]


EMITTERS: dict[str, Emitter] = {
    **dict.fromkeys(COLLECTIVES, collective),
    SLICE.name: _slice,
    MASK.name: _mask,
    ALL_TO_ALL.name: _all_to_all,
    COLLECTIVE_PERMUTE.name: _collective_permute,
}
"""Emitters by kind of step. Collectives within groups of devices need none of their own."""
