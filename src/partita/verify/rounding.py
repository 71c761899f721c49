"""Rounding: how far two evaluations of a program may differ if one adds in another order.

A partitioned program adds up the same numbers as the original, in another order. The difference
grows with the number of roundings on the way to a value, as their square root if they are
independent. Its unit is the last place of the coarsest type on the way. Data movement, integers and
booleans are exact.

Programs can amplify rounding (a softmax of large scores, a chaotic recurrence), and integers can
depend on it (the place of the largest element). So a difference above the tolerance is compared
with the effect of rounding on the original: its arguments are changed in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.program.ir import Operation, Program
from partita.stablehlo import mlir

PLACES = 8.0
"""Last places by which a single rounding may move a value; errors of a few add up."""
LARGEST_TOLERANCE = 0.1
"""Largest tolerance, relative to the largest element of a value: a lost or repeated shard causes a
larger difference."""
SHAKEN = 4.0
"""Largest accepted ratio of a partitioned program's difference to the effect of rounding on the
original."""


def epsilon(dtype: Any) -> float:
    """Returns the distance from one to the next number of a type; 0 for integers and other
    types."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


class Rounding:
    """The tolerance of every value of a program.

    Attributes:
      coarsest: distance from one to the next number of the coarsest type that it rounds to.
    """

    def __init__(self, program: Program) -> None:
        types = mlir.element_types()
        epsilons = [
            epsilon(types[v.type.dtype]) if v.type.dtype in types else 0.0 for v in program.values
        ]
        depth, coarse = [0.0] * len(program.values), [0.0] * len(program.values)
        for _ in range(2):  # what a loop carries is known when its body is
            for op in program.operations:
                deep = max((depth[v] for v in op.operands), default=0.0)
                most = max((coarse[v] for v in op.operands), default=0.0)
                rounds = _roundings(op)
                for v in op.results:
                    rounded = rounds if epsilons[v] else 0.0
                    depth[v] = deep + rounded
                    coarse[v] = max(most, epsilons[v] if rounded else 0.0)
        self._tolerances = [
            min(LARGEST_TOLERANCE, PLACES * eps * math.sqrt(deep)) if own else 0.0
            for eps, deep, own in zip(coarse, depth, epsilons, strict=True)
        ]
        self.coarsest = max(coarse, default=0.0)

    def tolerance(self, value: int) -> float:
        """Returns the tolerance of a value, relative to its largest element."""
        return self._tolerances[value]


def _roundings(op: Operation) -> float:
    """Estimates how often an operation rounds on the way to one element; sums are pairwise."""
    traits = op.traits
    moves = traits.free or traits.slices or traits.looks_up or traits.constant or traits.renames
    if moves or traits.transposes or traits.rearranges or traits.reads_window:
        return 0.0
    terms = math.prod(f.size for f in op.rule.factors if f.kind == "reduction")
    return op.times * (1.0 + math.log2(max(1, terms)))


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the largest difference relative to the largest finite element of `theirs`; infinite
    where integers or non-finite elements differ."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return math.inf
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return 0.0 if np.array_equal(ours, theirs) else math.inf
    if ours.dtype.itemsize < 4:
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(ours[finite]).all():
        return math.inf
    most = float(np.max(np.abs(ours[finite] - theirs[finite]), initial=0.0))
    return most / scale if (scale := largest(theirs)) else most and math.inf


def largest(array: np.ndarray) -> float:
    """The largest finite element, by its absolute value."""
    array = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def shaken(leaves: Sequence[np.ndarray], coarsest: float, seed: int) -> list[np.ndarray]:
    """Arguments that rounding has moved: by the last place of the coarsest type of a program."""
    rng = np.random.default_rng(seed)

    def shake(leaf: np.ndarray) -> np.ndarray:
        if not epsilon(leaf.dtype):
            return leaf
        step = max(epsilon(leaf.dtype), coarsest)
        wide = leaf.astype(np.float32) if leaf.dtype.itemsize < 4 else leaf
        moved: np.ndarray = wide * (1 + step * rng.choice([-1.0, 0.0, 1.0], leaf.shape))
        return moved.astype(leaf.dtype)

    return [shake(leaf) for leaf in leaves]


def as_numbers(leaf: Any) -> np.ndarray:
    """A result as numpy can compare it; random keys by their words."""
    if jnp.issubdtype(getattr(leaf, "dtype", np.dtype(float)), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
