"""SPMD program -> something JAX runs: an `Exported` that carries the emitted module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from partita.mesh import Mesh
from partita.spmd.emit import emit
from partita.spmd.program import SpmdProgram, spec
from partita.tiling import Layout


def partition_spec(layout: Layout, mesh: Mesh, rank: int) -> PartitionSpec:
    """A layout as a `PartitionSpec` of an array of this rank.

    Typed random keys have a lower rank than the tensors that hold them.
    """
    return PartitionSpec(*spec(layout[:rank], mesh))


def layout_tree(tree: Any, layouts: Sequence[Layout], make: Callable[[Layout, int], Any]) -> Any:
    """A pytree like `tree`, its leaves made from the layout and the rank of each of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    made = [make(layout, len(leaf.shape)) for layout, leaf in zip(layouts, leaves, strict=True)]
    return jax.tree.unflatten(structure, made)


def export(spmd: SpmdProgram, arguments: Any, results: Any) -> jax.export.Exported:
    """The SPMD program as an `Exported` over an abstract mesh; needs no device.

    Args:
      spmd: the program.
      arguments: `(args, kwargs)` of the original function, as `ShapeDtypeStruct`s.
      results: its results, as `ShapeDtypeStruct`s.
    """
    mesh = AbstractMesh(spmd.mesh.sizes, spmd.mesh.names)

    def sharding(layout: Layout, rank: int) -> NamedSharding:
        return NamedSharding(mesh, partition_spec(layout, spmd.mesh, rank))

    args, kwargs = arguments

    # JAX builds the shell (trees, types, shardings) from a stand-in of the same signature; the
    # module that the shell carries is then replaced by ours.
    def stand_in(args: Any, kwargs: Any) -> Any:
        del args, kwargs
        return jax.tree.map(_nothing, results)

    stand_in.__name__ = spmd.program.name
    jitted = jax.jit(
        stand_in,
        in_shardings=layout_tree(arguments, spmd.argument_layouts, sharding),
        out_shardings=layout_tree(results, spmd.result_layouts, sharding),
        keep_unused=True,
    )
    # The emitted module is plain StableHLO, the same for every platform.
    anywhere = [jax.export.DisabledSafetyCheck.platform()]
    shell = jax.export.export(jitted, platforms=("cpu",), disabled_checks=anywhere)(args, kwargs)
    # The stand-in's derivative is not ours: JAX then refuses to differentiate.
    return dataclasses.replace(shell, mlir_module_serialized=emit(spmd), _get_vjp=None)


def _nothing(leaf: Any) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0, impl=leaf.dtype._impl.name), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)
