"""Shardy's shardings, read from their attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from partita.errors import UnsupportedError
from partita.program.refused import INSTEAD
from partita.stablehlo.mlir import ir, sdy

PLAN_MESH = "partita_mesh"
"""Symbol that stands for the mesh of the plan, whatever that will be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """Content of an `sdy.sharding` for one tensor."""

    axes: tuple[tuple[str, ...], ...]
    """Names of the axes that split each dimension, major first."""
    open: tuple[bool, ...]
    """True for each dimension that may be split further."""
    mesh: tuple[tuple[str, int], ...]
    """The axes of its mesh; empty for that of the plan."""


def meshes_of(module: Any) -> dict[str, Any]:
    """The meshes of a module by their symbols, as attributes."""
    return {
        op.attributes["sym_name"].value: op.attributes["mesh"]
        for op in (view.operation for view in module.body.operations)
        if op.name == "sdy.mesh"
    }


def with_mesh(sharding: Any, meshes: dict[str, Any]) -> Any:
    """The same sharding with its mesh written out, so that it stands for itself."""
    given = sdy.TensorShardingAttr(sharding)
    reference = given.mesh_or_ref
    if not isinstance(reference, ir.FlatSymbolRefAttr) or reference.value not in meshes:
        return sharding
    return sdy.TensorShardingAttr.get(
        meshes[reference.value],
        list(given.dimension_shardings),
        list(given.replicated_axes),
        list(given.unreduced_axes),
    )


def read_sharding(sharding: Any, meshes: dict[str, Any], name: str) -> Said:
    """Reads a sharding.

    Args:
      sharding: an `sdy.sharding` attribute.
      meshes: by symbol, as `meshes_of` finds them.
      name: of the tensor, in the user's words.

    Raises:
      UnsupportedError: no `PartitionSpec` can express the sharding.
    """
    given = sdy.TensorShardingAttr(with_mesh(sharding, meshes))
    dims = [sdy.DimensionShardingAttr(dim) for dim in given.dimension_shardings]
    axes = [[sdy.AxisRefAttr(axis) for axis in dim.axes] for dim in dims]
    reasons = {
        "splits an axis in parts": any(a.sub_axis_info is not None for row in axes for a in row),
        "is a sum that is outstanding": bool(list(given.unreduced_axes)),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedError(f"the sharding of {name}, {given}, {reason}; {INSTEAD}")
    reference = given.mesh_or_ref
    ours = isinstance(reference, ir.FlatSymbolRefAttr)
    mesh = () if ours else tuple(map(sdy.MeshAxisAttr, sdy.MeshAttr(reference).axes))
    return Said(
        tuple(tuple(axis.name for axis in row) for row in axes),
        tuple(not dim.is_closed for dim in dims),
        tuple((axis.name, axis.size) for axis in mesh),
    )


def says_nothing(sharding: Any, meshes: dict[str, Any]) -> bool:
    """Returns whether a sharding leaves every dimension open; always True for a scalar.

    JAX adds such shardings to random keys and in manual computations.
    """
    given = sdy.TensorShardingAttr(with_mesh(sharding, meshes))
    reference = given.mesh_or_ref
    written = not isinstance(reference, ir.FlatSymbolRefAttr)
    if written and not list(sdy.MeshAttr(reference).axes):
        return True
    dims = [sdy.DimensionShardingAttr(dim) for dim in given.dimension_shardings]
    return all(not dim.is_closed and not list(dim.axes) for dim in dims)


def of_plan(axes: Sequence[Sequence[str]], open_: Sequence[bool]) -> str:
    """A sharding over the mesh of the plan, whatever that will be, as text.

    Args:
      axes: for each dimension the names of the axes that split it, major first.
      open_: for each dimension whether it may be split further.
    """
    return written(PLAN_MESH, [[f'"{axis}"' for axis in row] for row in axes], open_)


def written(mesh: str, axes: Iterable[Iterable[str]], open_: Iterable[bool]) -> str:
    """A sharding in Shardy's syntax.

    Args:
      mesh: symbol of its mesh.
      axes: for each dimension the axes that split it, as MLIR quotes them.
      open_: for each dimension whether it may be split further.
    """
    dims = (
        "{" + ", ".join([*row, *["?"] * more]) + "}" for row, more in zip(axes, open_, strict=True)
    )
    return f"#sdy.sharding<@{mesh}, [{', '.join(dims)}]>"
