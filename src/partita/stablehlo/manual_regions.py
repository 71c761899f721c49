"""Computations that are manual over some axes of a mesh only: `shard_map` with `axis_names`.

Along these axes the body says itself what each device does; along the others it is a program like
any. So it becomes part of the program around it: `passes.manual.unfold` puts its operations where
it stood, and a call at each operand and result, by which a value enters or leaves. Inside, values
are what the devices along the manual axes have of them. Their operations note these axes, have a
factor more for each, which is split along it, and so cannot be split along it otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from partita.errors import UnsupportedError
from partita.program.collectives import DIMENSIONS
from partita.program.ir import Given, ManualCollective, Operation, TensorType, Work
from partita.program.op_traits import FULL_TO_SHARD, MANUAL, SHARD_TO_FULL, traits
from partita.program.rule import Factor, Rule
from partita.stablehlo import attributes
from partita.stablehlo.custom_calls import create, target_of
from partita.stablehlo.mlir import ir
from partita.stablehlo.rules import notation
from partita.stablehlo.shard_map import collectives, title
from partita.stablehlo.shardings import read_sharding

_AXES = "partita.manual_axes"
"""Note of an operation: the axes over which it is manual."""

_SHARDING = "partita.manual_sharding"
"""Note of a call by which a value enters or leaves: its axes, and its sharding outside."""


class Manual(NamedTuple):
    """The axes over which an operation is manual."""

    axes: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    """All axes of the mesh, with their sizes."""

    def union(self, other: Manual) -> Manual:
        """The axes of both, in the order of the mesh."""
        mesh = self.mesh or other.mesh
        axes = {*self.axes, *other.axes}
        return Manual(tuple(axis for axis, _ in mesh if axis in axes), mesh)


def note(op: Any, manual: Manual) -> None:
    """Notes further axes on an operation, and on those that it orders.

    Constants are the same on all devices, and can be like those of the program around.
    """
    if op.name == "sdy.constant":
        return
    attributes.put(op, _AXES, json.dumps(noted(op).union(manual)))
    if traits(op.name).treatment == "structure":
        for region in op.regions:
            for view in region.blocks[0].operations:
                note(view.operation, manual)


def noted(op: Any) -> Manual:
    """The axes over which an operation is noted to be manual.

    What makes a value in a manual computation is noted; what another pass has put there may not be.
    """
    return _parsed(attributes.get(op, _AXES))


def is_manual(op: Any) -> bool:
    """Returns whether an operation is in a computation that is manual over some or all axes."""
    around = op.parent
    while around is not None and around.name != MANUAL:
        around = around.parent
    return around is not None or bool(noted(op).axes)


@functools.cache
def _parsed(text: str) -> Manual:
    if not text:
        return Manual()
    axes, mesh = json.loads(text)
    return Manual(tuple(axes), tuple((name, size) for name, size in mesh))


def crossed(kind: str, value: Any, type_: Any, sharding: Any, manual: Manual) -> Any:
    """A value on the other side, once it enters or leaves; made at the insertion point.

    Args:
      kind: of the operation.
      value: on this side.
      type_: on the other one.
      sharding: outside.
      manual: the axes of the computation.
    """
    (made,) = create(kind, [value], [type_])
    attributes.put(made.owner, _SHARDING, json.dumps([manual.axes, str(sharding)]))
    note(made.owner, manual)
    return made


def crosses(op: Any) -> str:
    """The kind of an operation by which a value enters or leaves; empty for others."""
    return target_of(op) if attributes.get(op, _SHARDING) else ""


def outside(op: Any, manual: Manual) -> Manual:
    """The axes over which the result of an operation is manual: fewer, where a value leaves."""
    if crosses(op) != SHARD_TO_FULL:
        return manual
    left, _ = json.loads(attributes.get(op, _SHARDING))
    return manual._replace(axes=tuple(axis for axis in manual.axes if axis not in left))


def crossing(op: Any, operand: TensorType, result: TensorType, source: str) -> tuple[Rule, Given]:
    """The rule of an operation by which a value enters or leaves, and how it is given sharded.

    A dimension that is split manually is made of two factors: what the manual axes split, and what
    each device has of it, which others may split further.

    Args:
      op: the call.
      operand: the type of what enters or leaves, outside if it enters.
      result: the same on the other side.
      source: `file:line` of the manual computation.

    Raises:
      UnsupportedError: it says what no `PartitionSpec` can say.
    """
    axes_here, text = json.loads(attributes.get(op, _SHARDING))
    enters = crosses(op) == FULL_TO_SHARD
    full, shard = (operand, result) if enters else (result, operand)
    said = read_sharding(ir.Attribute.parse(text), {}, title(source))
    sizes = dict(said.mesh)
    factors: list[Factor] = []
    axes: list[tuple[str, ...]] = []
    full_dims, shard_dims = [], []
    for whole, part, here, is_open in zip(
        full.shape, shard.shape, said.axes, said.open, strict=True
    ):
        manual = tuple(axis for axis in here if axis in axes_here and sizes[axis] > 1)
        made_of = []
        if manual:
            made_of.append(len(factors))
            factors.append(Factor(whole // part if part else 1, "given"))
            axes.append(manual)
        made_of.append(len(factors))
        shard_dims.append((len(factors),))
        factors.append(Factor(part, "parallel" if is_open else "given"))
        axes.append(tuple(axis for axis in here if axis not in axes_here))
        full_dims.append(tuple(made_of))
    sides = (tuple(full_dims),), (tuple(shard_dims),)
    operands, results = sides if enters else sides[::-1]
    return Rule(tuple(factors), operands, results), Given(tuple(axes), said.mesh)


def confined(made: Operation, manual: Manual) -> Operation:
    """An operation with a factor more for each axis over which it is manual."""
    used = {axis for names in made.given.axes for axis in names} if made.given else set()
    rest = [(axis, size) for axis, size in manual.mesh if axis in manual.axes and axis not in used]
    factors = tuple(Factor(size, "manual") for _, size in rest)
    rule = dataclasses.replace(made.rule, factors=(*made.rule.factors, *factors))
    axes = tuple(axis for axis, _ in rest)
    given = made.given
    if given is not None:
        given = dataclasses.replace(given, axes=(*given.axes, *((axis,) for axis in axes)))
    return dataclasses.replace(made, rule=rule, given=given, manual=axes)


def exchange(
    op: Any, made: Operation, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Operation:
    """An operation that only a manual computation may have, with its rule and what it exchanges.

    Raises:
      UnsupportedError: its groups of devices are not those along manual axes.
    """
    if not made.traits.collective:  # what tells devices apart: a scalar
        return dataclasses.replace(
            made, rule=Rule.same(results[0].shape, len(operands), len(results))
        )
    manual = noted(op)
    found = collectives(op, manual.mesh, 1, made.source)
    _check(found, manual)
    work = Work((), (), tuple(found))
    return dataclasses.replace(made, rule=_collective_rule(op, operands, results), work=work)


def _collective_rule(
    op: Any, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Rule:
    """Along what a collective can be split: dimensions that it neither cuts nor joins.

    Whatever devices do along other axes, it has them exchange element by element.
    """
    kind = op.name.rpartition(".")[2]
    moved = {int(op.attributes[name].value) for name in DIMENSIONS if name in op.attributes}
    sides = (
        ", ".join(
            " ".join(
                f"{side}{number}_{dim}!" if dim in moved else f"d{number}_{dim}"
                for dim in range(len(type_.shape))
            )
            for number, type_ in enumerate(types)
        )
        for types, side in ((operands, "i"), (results, "o"))
    )
    return notation.read(" -> ".join(sides), operands, results, kind)


def _check(found: Sequence[ManualCollective], manual: Manual) -> None:
    for each in found:
        if other := [axis for axis in each.axes if axis not in manual.axes]:
            raise UnsupportedError(
                f"the shard_map has a collective at {each.source or 'an unknown line'} along "
                f"{', '.join(other)}, over which it is not manual; add "
                f"{'it' if len(other) == 1 else 'them'} to its axis_names"
            )
