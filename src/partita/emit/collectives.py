"""Steps of resharding -> StableHLO: how each kind of collective is emitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from partita.emit import exchange
from partita.emit.builder import COMBINE, Builder, set_apart
from partita.emit.ordered import as_made, as_ordered
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    MASK,
    REDUCE_SCATTER,
    SLICE,
)
from partita.program.ir import TensorType
from partita.spmd.steps import Step
from partita.stablehlo.building import i64, joined
from partita.stablehlo.mlir import hlo, ir

Emitter = Callable[[Builder, Any, Step], Any]
"""Builds a step at the current insertion point: from the local value before it, that after it."""


def collective(build: Builder, value: Any, step: Step, **attributes: Any) -> Any:
    """A collective among the groups of devices along the axes of a step."""
    return _operation(build, value, step, attributes).results[0]


def _operation(
    build: Builder, value: Any, step: Step, attributes: dict[str, Any], regions: int = 0
) -> Any:
    mesh = build.mesh
    size = mesh.size(step.axes)
    groups = f"dense<{mesh.groups(step.axes)}> : tensor<{mesh.devices // size}x{size}xi64>"
    return ir.Operation.create(
        f"stablehlo.{step.kind}",
        results=[build.type(step.after)],
        operands=[value],
        attributes={
            **attributes,
            "replica_groups": ir.Attribute.parse(groups),
            "channel_handle": build.channel(),
        },
        regions=regions,
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


def _all_gather(build: Builder, value: Any, step: Step) -> Any:
    return collective(
        build, value, step, all_gather_dim=i64(step.dim), use_global_device_ids=ir.UnitAttr.get()
    )


def _all_reduce(build: Builder, value: Any, step: Step) -> Any:
    return _reducing(build, value, step, {})


def _reduce_scatter(build: Builder, value: Any, step: Step) -> Any:
    return _reducing(build, value, step, {"scatter_dimension": i64(step.dim)})


def _reducing(build: Builder, value: Any, step: Step, attributes: dict[str, Any]) -> Any:
    attributes = {**attributes, "use_global_device_ids": ir.UnitAttr.get()}
    moved = dataclasses.replace(
        step,
        before=TensorType(step.before.shape, step.dtype),
        after=TensorType(step.after.shape, step.dtype),
    )
    op = _operation(build, as_ordered(build, value, step.combine), moved, attributes, regions=1)
    scalar = build.type(TensorType((), step.dtype))
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        hlo.return_([COMBINE[step.combine](*block.arguments)])
    return as_made(build, op.results[0], step.after.dtype)


def _all_to_all(build: Builder, value: Any, step: Step) -> Any:
    # XLA's CPU compiler cuts the operand into one for each device, and fails where it then
    # sees through the shards: one may be of a transposed value, another one padding.
    return collective(
        build,
        set_apart(value),
        step,
        split_dimension=i64(step.split),
        concat_dimension=i64(step.dim),
        split_count=i64(build.mesh.size(step.axes)),
    )


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
        "stablehlo.collective_permute",
        results=[value.type],
        operands=[value],
        attributes={
            "source_target_pairs": ir.Attribute.parse(listed),
            "channel_handle": build.channel(),
        },
    ).results[0]


EMITTERS: dict[str, Emitter] = {
    SLICE.name: _slice,
    MASK.name: _mask,
    ALL_GATHER.name: _all_gather,
    ALL_REDUCE.name: _all_reduce,
    REDUCE_SCATTER.name: _reduce_scatter,
    ALL_TO_ALL.name: _all_to_all,
    COLLECTIVE_PERMUTE.name: _collective_permute,
}
"""Emitters by kind of step."""
