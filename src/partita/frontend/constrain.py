"""`constrain`: a sharding constraint that needs no mesh, and is nothing outside of partita."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from partita.errors import SpecError
from partita.frontend.specs import Axes, axes_of
from partita.program.ir import show_axes
from partita.stablehlo import custom_calls as calls
from partita.stablehlo import shardings
from partita.stablehlo.constraints import CALL
from partita.stablehlo.internals import identity
from partita.stablehlo.mlir import ir


def _batched(said: dict[str, Any], dim: int, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Returns a constraint for a value with one more dimension, split along `names`."""
    axes, is_open = said["axes"], said["is_open"]
    for name in names or ():
        if any(name in along for along in axes):
            raise SpecError(
                f"pt.constrain says {show_axes(axes)} under jax.vmap(spmd_axis_name={name!r}), "
                "which splits the dimension that it adds along that axis; leave the axis out of "
                "one of them"
            )
    return {
        "axes": (*axes[:dim], names or (), *axes[dim:]),
        "is_open": (*is_open[:dim], names is None, *is_open[dim:]),
    }


_constrain = identity("partita_constrain", _batched)


def constrain(x: Any, spec: PartitionSpec) -> jax.Array:
    """Constrains how a value inside of a function is sharded over the mesh of the plan.

    In a function that partita plans, it is a constraint like `jax.lax.with_sharding_constraint`
    under a mesh. The value is resharded to that layout, the axes propagate from there, and tactics
    do not split it further. Anywhere else it is the identity, so that a model runs without
    partita's plans, and on a single device. The gradient has the same constraint. Under `jax.vmap`
    the added dimension is split along its `spmd_axis_name`, and left open without one.

    Args:
      x: an array.
      spec: for each dimension an axis of the mesh, several axes, None for unsharded, or
        `PartitionSpec.UNCONSTRAINED` to leave the dimension open; missing entries are unsharded.

    Raises:
      SpecError: more entries than dimensions, or an axis twice, that of `spmd_axis_name` included.
        An axis that the mesh lacks, or that does not divide the dimension, is reported when the
        function is planned.

    Example:
      >>> import jax.numpy as jnp
      >>> constrain(jnp.ones(4), PartitionSpec("data")).tolist()
      [1.0, 1.0, 1.0, 1.0]
    """
    axes, is_open = axes_of(spec, len(jax.typeof(x).shape), "the value to constrain")
    made: jax.Array = _constrain.bind(x, axes=axes, is_open=is_open)
    return made


def _lower(context: Any, value: Any, *, axes: Axes, is_open: tuple[bool, ...]) -> list[Any]:
    """The lowering rule while partita traces, as JAX wants it."""
    words = ir.RankedTensorType(value.type).rank - len(axes)  # of random keys
    text = shardings.of_plan((*axes, *[()] * words), (*is_open, *[True] * words))
    return calls.make(CALL, text, value)


LOWERING = (_constrain, _lower)
"""Lowering of constraints while partita traces."""
