"""Planned functions as parts of others, on meshes whose shardings are part of types.

On an explicit mesh, JAX has the sharding of a value in its type and derives the type of every
result; operations without such a rule fail. A planned function needs no such types, because the
plan has decided its shardings. Inside of it they are dropped, as by `jax.sharding.auto_axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from partita.frontend.trace import is_explicit


def automatic(shardings: Any) -> Any:
    """Returns the same shardings over axes that are not part of types."""
    meshes: dict[Any, Any] = {}

    def changed(sharding: NamedSharding) -> NamedSharding:
        mesh = sharding.mesh
        if mesh not in meshes:
            types = (AxisType.Auto,) * len(mesh.axis_names)
            meshes[mesh] = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)
        return NamedSharding(meshes[mesh], sharding.spec, memory_kind=sharding.memory_kind)

    made: Any = jax.tree.map(changed, shardings)
    return made


def without_explicit_types(run: Callable[..., Any], args: Any, out_shardings: Any) -> Any:
    """Runs something without shardings in types; its results have them, where they are in use.

    Args:
      run: what to run.
      args: its arguments.
      out_shardings: of its results, over the mesh of the plan.
    """
    leaves: list[NamedSharding] = jax.tree.leaves(out_shardings)
    explicit = bool(leaves) and is_explicit(leaves[0].mesh)
    context = jax.sharding.get_abstract_mesh()
    if not explicit or not (is_explicit(context) or any(map(_is_typed, jax.tree.leaves(args)))):
        return run(*args)
    inside = jax.sharding.auto_axes(run, axes=leaves[0].mesh.axis_names, out_sharding=out_shardings)
    if not context.empty:
        return inside(*args)
    with jax.sharding.use_abstract_mesh(leaves[0].mesh.abstract_mesh):
        return inside(*args)


def _is_typed(value: Any) -> bool:
    sharding = getattr(jax.typeof(value), "sharding", None)
    return sharding is not None and is_explicit(sharding.mesh)
