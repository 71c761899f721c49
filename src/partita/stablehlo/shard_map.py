"""Manual computations, the bodies of `shard_map`: they say themselves what each device does.

One over all axes of the mesh is one operation, whose operands are needed and whose results
are made as it says. What is inside stays as it is, collectives included. One over some axes only is
part of the program around it, see `partita.stablehlo.manual_regions`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import UnsupportedError
from partita.mesh import Mesh
from partita.program.collectives import COLLECTIVES, payload
from partita.program.ir import Given, ManualCollective, TensorType
from partita.program.op_traits import MANUAL
from partita.program.rule import Factor, Rule
from partita.stablehlo.internals import PMAP_AXIS
from partita.stablehlo.mlir import find, ir, sdy
from partita.stablehlo.refusals import tensor_type
from partita.stablehlo.shardings import read_sharding

SIDES = ("in_shardings", "out_shardings")
GROUPS = "replica_groups"


def facts(
    op: Any, operands: Sequence[TensorType], results: Sequence[TensorType], source: str
) -> tuple[Rule, Given]:
    """The rule of a manual computation and how it says that it is sharded.

    Raises:
      UnsupportedError: it says what no `PartitionSpec` can say, or is a `pmap`.
    """
    name = title(source)
    said = [
        [read_sharding(sharding, {}, name) for sharding in shardings_of(op, side)] for side in SIDES
    ]
    meshes = {each.mesh for side in said for each in side}
    if len(meshes) != 1:
        raise UnsupportedError(f"{name} is over {len(meshes)} meshes; expected one")
    (mesh,) = meshes
    if [axis for axis, _ in mesh] == [PMAP_AXIS]:
        raise UnsupportedError(
            f"the pmap{f' at {source}' if source else ''} is over {mesh[0][1]} devices of its own; "
            "write it as jax.vmap, and say with tactics what is sharded"
        )
    factors: list[Factor] = []
    axes: list[tuple[str, ...]] = []
    mappings = []
    for side, types in zip(said, (operands, results), strict=True):
        tensors = []
        for each, type_ in zip(side, types, strict=True):
            start = len(factors)
            factors += [Factor(size, "given") for size in type_.shape]
            axes += each.axes
            tensors.append(tuple((start + dim,) for dim in range(len(type_.shape))))
        mappings.append(tuple(tensors))
    return Rule(tuple(factors), mappings[0], mappings[1]), Given(tuple(axes), mesh)


def check_inside(op: Any, source: str) -> None:
    """Raises `UnsupportedError` for one inside of another, or one that reads what is outside."""
    every = find(op, lambda _: True)
    inside = every[:-1]
    blocks = [block for each in every for region in each.regions for block in region.blocks]
    known = {value for block in blocks for value in block.arguments}
    known.update(value for each in inside for value in each.results)
    if any(each.name == MANUAL for each in inside):
        raise UnsupportedError(f"{title(source)} holds another one; write it without")
    if any(value not in known for each in inside for value in each.operands):
        raise UnsupportedError(
            f"{title(source)} reads a value from outside of it; pass it as an argument"
        )


def collectives(
    op: Any, over: Sequence[tuple[str, int]], times: int, source: str
) -> list[ManualCollective]:
    """A collective inside of a manual computation, each operand by itself.

    Args:
      op: the MLIR operation.
      over: the axes of the mesh, with their sizes.
      times: how often it runs each time that the computation does.
      source: `file:line` of the collective.

    Raises:
      UnsupportedError: its groups of devices are not those along axes of the mesh.
    """
    mesh = Mesh(tuple(n for n, _ in over), tuple(s for _, s in over))
    axes = _axes(op, mesh)
    if axes is None:
        raise UnsupportedError(
            f"the shard_map has a collective{f' at {source}' if source else ''} whose "
            "groups of devices are not those along axes of the mesh; leave axis_index_groups out"
        )
    found = []
    for operand, result in zip(op.operands, op.results, strict=True):
        types = [tensor_type(v.type) for v in (operand, result)]
        size = payload(*(t.bytes for t in types))
        kind = op.name.rpartition(".")[2]
        if mesh.size(axes) > 1:
            names = mesh.axis_names(axes)
            found.append(ManualCollective(kind, names, size, times, types[0].dtype, source))
    return found


def _axes(op: Any, mesh: Mesh) -> tuple[int, ...] | None:
    """The axes along which a collective exchanges; None if it is along none."""
    orders = [
        order
        for count in range(len(mesh.names) + 1)
        for axes in itertools.combinations(range(len(mesh.names)), count)
        for order in itertools.permutations(axes)
    ]
    if COLLECTIVES[op.name.rpartition(".")[2]].hlo.pairs:
        pairs = np.array(op.attributes["source_target_pairs"]).tolist()
        return next(o for o in orders if _within(pairs, mesh.groups(o)))
    if not isinstance(op.attributes[GROUPS], ir.DenseElementsAttr):
        return None
    groups = np.array(op.attributes[GROUPS]).tolist()
    exact = (o for o in orders if sorted(mesh.groups(o)) == sorted(groups))
    return next(exact, None)


def _within(pairs: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> bool:
    number = {device: n for n, group in enumerate(groups) for device in group}
    return all(number[a] == number[b] for a, b in pairs)


def shardings_of(op: Any, side: str) -> list[Any]:
    """The shardings of its operands (`in_shardings`) or results (`out_shardings`)."""
    return list(sdy.TensorShardingPerValueAttr(op.attributes[side]).shardings)


def manual_axes(op: Any) -> list[str]:
    """The axes over which a computation is manual."""
    axes: Any = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return [str(axis) for axis in axes]


def title(source: str) -> str:
    """A manual computation, in the user's words."""
    return f"the shard_map at {source}" if source else "the shard_map"
