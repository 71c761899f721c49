"""A StableHLO module as something that JAX runs: an `Exported` with the module inside."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from partita.errors import UnsupportedError
from partita.stablehlo.internals import random_key_type


def artifact(
    module: bytes,
    name: str,
    arguments: tuple[Any, Any],
    results: Any,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> jax.export.Exported:
    """Wraps a module; needs no device.

    Args:
      module: the portable artifact, its arguments and results flat.
      name: what to call the function.
      arguments: `(args, kwargs)`, nested, as `ShapeDtypeStruct`s.
      results: its results.
      in_shardings: of the arguments, nested alike; unspecified by default.
      out_shardings: of the results.

    Raises:
      UnsupportedError: it has 64-bit types, and JAX is not set to use them.
    """
    for leaf in jax.tree.leaves((arguments, results)):
        if jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True) != leaf.dtype:
            raise UnsupportedError(
                f"{name} has arrays of {leaf.dtype}, which JAX runs only after "
                'jax.config.update("jax_enable_x64", True)'
            )

    # JAX builds the shell (trees, types, shardings) from a stand-in of the same signature; the
    # module that the shell carries is then replaced by ours.
    def stand_in(args: Any, kwargs: Any) -> Any:
        del args, kwargs
        return jax.tree.map(_nothing, results)

    stand_in.__name__ = name
    given = {} if in_shardings is None else {"in_shardings": in_shardings}
    given |= {} if out_shardings is None else {"out_shardings": out_shardings}
    jitted = jax.jit(stand_in, keep_unused=True, **given)
    # The modules are plain StableHLO, the same for every platform.
    anywhere = [jax.export.DisabledSafetyCheck.platform()]
    shell = jax.export.export(jitted, platforms=("cpu",), disabled_checks=anywhere)(*arguments)
    return dataclasses.replace(
        shell,
        mlir_module_serialized=module,
        in_tree=jax.tree.structure(arguments),  # jax.jit takes no shardings for keywords
        _get_vjp=None,  # the stand-in's is not ours: JAX then refuses to differentiate
    )


def _nothing(leaf: Any) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0, impl=random_key_type(leaf.dtype)), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)
