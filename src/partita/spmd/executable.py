"""SPMD program -> something JAX runs: an `Exported` that carries the emitted module."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from partita.mesh import Mesh
from partita.spmd.emit import emit
from partita.spmd.program import SpmdProgram, spec
from partita.tiling import Layout


def partition_spec(layout: Layout, mesh: Mesh) -> PartitionSpec:
    """A layout as a `PartitionSpec`."""
    return PartitionSpec(*spec(layout, mesh))


def export(spmd: SpmdProgram, arguments: Any, results: Any) -> jax.export.Exported:
    """The SPMD program as an `Exported` over an abstract mesh; needs no device.

    Args:
      spmd: the program.
      arguments: `(args, kwargs)` of the original function, as `ShapeDtypeStruct`s.
      results: its results, as `ShapeDtypeStruct`s.
    """
    mesh = AbstractMesh(spmd.mesh.sizes, spmd.mesh.names)

    def shardings(tree: Any, layouts: tuple[Layout, ...]) -> Any:
        specs = [NamedSharding(mesh, partition_spec(lay, spmd.mesh)) for lay in layouts]
        return jax.tree.unflatten(jax.tree.structure(tree), specs)

    args, kwargs = arguments

    # JAX builds the shell (trees, types, shardings) from a stand-in of the same signature; the
    # module that the shell carries is then replaced by ours.
    def stand_in(args: Any, kwargs: Any) -> Any:
        del args, kwargs
        return jax.tree.map(_nothing, results)

    stand_in.__name__ = spmd.program.name
    jitted = jax.jit(
        stand_in,
        in_shardings=shardings((args, kwargs), spmd.argument_layouts),
        out_shardings=shardings(results, spmd.result_layouts),
        keep_unused=True,
    )
    # The emitted module is plain StableHLO, the same for every platform.
    anywhere = [jax.export.DisabledSafetyCheck.platform()]
    shell = jax.export.export(jitted, platforms=("cpu",), disabled_checks=anywhere)(args, kwargs)
    return dataclasses.replace(shell, mlir_module_serialized=emit(spmd))


def _nothing(leaf: Any) -> jax.Array:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0, impl=leaf.dtype._impl.name), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)
