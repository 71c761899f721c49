"""SPMD program -> something JAX runs: an `Exported` that carries the emitted module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from partita.mesh import Mesh
from partita.program import mlir
from partita.program.artifact import artifact
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


def export(
    spmd: SpmdProgram, arguments: Any, results: Any, module: Any = None
) -> jax.export.Exported:
    """The SPMD program as an `Exported` over an abstract mesh; needs no device.

    Args:
      spmd: the program.
      arguments: `(args, kwargs)` of the original function, as `ShapeDtypeStruct`s.
      results: its results, as `ShapeDtypeStruct`s.
      module: another form of the program, within its MLIR context.
    """
    mesh = AbstractMesh(spmd.mesh.sizes, spmd.mesh.names)

    def sharding(layout: Layout, rank: int) -> NamedSharding:
        return NamedSharding(mesh, partition_spec(layout, spmd.mesh, rank))

    with mlir.context():
        serialized = mlir.serialize(emit(spmd) if module is None else module)
    return artifact(
        serialized,
        spmd.program.name,
        arguments,
        results,
        layout_tree(arguments, spmd.argument_layouts, sharding),
        layout_tree(results, spmd.result_layouts, sharding),
    )


class Completed:
    """A jitted function that takes keyword arguments as a dict, and then constants, at the end."""

    def __init__(self, jitted: Any, keywords: bool, constants: tuple[Any, ...]) -> None:
        self._jitted = jitted
        self._keywords = keywords
        self._constants = constants

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it as the function that was planned."""
        return self._jitted(*args, *self._rest(kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers for these arguments, as `jax.jit`'s `lower` does."""
        return self._jitted.lower(*args, *self._rest(kwargs))

    def _rest(self, kwargs: dict[str, Any]) -> list[Any]:
        if kwargs and not self._keywords:
            raise TypeError(f"unexpected keyword arguments {', '.join(kwargs)}")
        rest: list[Any] = [kwargs] if self._keywords else []
        return [*rest, self._constants] if self._constants else rest
