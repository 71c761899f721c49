"""What most tests need: arguments, plans with a file's own defaults, the original beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tools.compiling import compiled

import partita as pt
from partita.verify import compare


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract argument."""
    return jax.ShapeDtypeStruct(shape, dtype)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """A concrete argument: normal numbers, the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def planner(**defaults: Any) -> Callable[..., pt.Plan]:
    """`pt.plan` with defaults of a test file; without tactics nothing is split."""
    return functools.partial(pt.plan, **{"hardware": "tpu_v5e", "tactics": (), **defaults})


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Two pytrees are the same, up to rounding: relative to the largest number, or to 1."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, their = jax.random.key_data(mine), jax.random.key_data(their)
        mine, their = np.asarray(mine, np.complex128), np.asarray(their, np.complex128)
        scale = max(1.0, float(np.max(np.abs(their), initial=0.0)))
        np.testing.assert_allclose(mine, their, rtol=0, atol=tolerance * scale)


def runs_as_the_original(plan: pt.Plan, *args: Any, tolerance: float = 1e-5) -> pt.Plan:
    """The plan, after it has run: the original's results, and the collectives predicted."""
    placed = plan.shard(*args)
    program = compiled(plan.jit(), *placed)
    comparison = compare(plan.collectives, plan.mesh, program.as_text())
    assert comparison.equal, f"\n{comparison}"
    assert_same(program(*placed), compiled(jax.jit(plan.fn), *args)(*args), tolerance)
    return plan
