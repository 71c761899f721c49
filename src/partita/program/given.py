"""Shardings that the arguments and results of a module already have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir.dialects import sdy

from partita.errors import UnsupportedError
from partita.program import mlir
from partita.program.ir import GivenSharding
from partita.program.operations import CONSTRAINT

_INSTEAD = f"; {CONSTRAINT}"


def given_shardings(
    module: Any,
    main: Any,
    arguments: Sequence[tuple[str, int]],
    results: Sequence[tuple[str, int]],
) -> tuple[GivenSharding, ...]:
    """Reads `sdy.sharding` and `mhlo.sharding` of a function's arguments and results.

    Args:
      module: where the meshes are.
      main: the function.
      arguments: name and value of every argument.
      results: the same of every result.

    Raises:
      UnsupportedError: a sharding that no `PartitionSpec` can say.
    """
    meshes = {
        op.attributes["sym_name"].value: sdy.MeshAttr(op.attributes["mesh"])
        for op in (view.operation for view in module.body.operations)
        if op.name == "sdy.mesh"
    }
    found: list[GivenSharding] = []
    for which, named in (("arg_attrs", arguments), ("res_attrs", results)):
        infos = mlir.attributes_of(main, which, len(named))
        for (name, value), info in zip(named, infos, strict=True):
            if "sdy.sharding" in info:
                found += _shardy(name, value, sdy.TensorShardingAttr(info["sdy.sharding"]), meshes)
            elif "mhlo.sharding" in info:
                _check_replicated(name, info["mhlo.sharding"].value)
    return tuple(found)


def _shardy(name: str, value: int, given: Any, meshes: dict[str, Any]) -> Iterator[GivenSharding]:
    reference = given.mesh_or_ref
    mesh = meshes[reference.value] if hasattr(reference, "value") else sdy.MeshAttr(reference)
    if not list(mesh.axes):
        return
    dims = [sdy.DimensionShardingAttr(dim) for dim in given.dimension_shardings]
    axes = [[sdy.AxisRefAttr(axis) for axis in dim.axes] for dim in dims]
    closed = {dim.is_closed for dim in dims}
    reasons = {
        "splits an axis in parts": any(a.sub_axis_info is not None for row in axes for a in row),
        "is a sum that is outstanding": bool(list(given.unreduced_axes)),
        "leaves only some dimensions open": len(closed) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedError(f"the sharding of {name}, {given}, {reason}{_INSTEAD}")
    yield GivenSharding(
        name,
        value,
        tuple(tuple(axis.name for axis in row) for row in axes),
        False in closed,
        tuple((axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes)),
    )


def _check_replicated(name: str, given: str) -> None:
    if given != "{replicated}":
        raise UnsupportedError(
            f"the sharding of {name}, {given!r}, does not say which axis is which{_INSTEAD}, or "
            "export the program with Shardy (jax_use_shardy_partitioner)"
        )
