"""Blocks: random operations in a row, as loops, branches, maps and derivatives run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fuzzing.elements import KEYS
from fuzzing.pool import DEEPEST, ERROR, MOST_STEPS, NUMBERS, REAL, WHOLE, Pool, Value

Run = Callable[..., list[Any]]


def grow(pool: Pool, steps: int) -> None:
    """Adds random operations, one after the other; about so many, as not every draw fits."""
    for _ in range(4 * steps):
        if len(pool.steps) < steps and pool.size[0] < MOST_STEPS:
            pool.choice(pool.choice(pool.kinds[min(pool.depth, DEEPEST)]))(pool)


def block(pool: Pool, types: Sequence[Value], most: int = 2) -> Pool:
    """A block of a few random operations on values of these types."""
    inner = Pool(pool.rng, [Value(v.type, v.error) for v in types], pool)
    grow(inner, pool.integer(1, most))
    return inner


def runs(inner: Pool, results: Sequence[Value]) -> Run:
    """A block as a function."""
    return lambda *args: inner.run(args, results)


def results_of(inner: Pool, most: int = 2, dtypes: Any = None) -> list[Value]:
    """What a block gives: some of the values that it made."""
    made = [v for step in inner.steps for v in step.outputs]
    if dtypes is not None:
        made = [v for v in made if v.dtype in dtypes]
    return inner.some(made, 1, most)


def captured(pool: Pool) -> list[Value]:
    """Values that a block reads from outside."""
    return pool.some(pool.suitable(dtypes=NUMBERS | set(KEYS)), 0, 2)


def loosened(value: Value, shape: tuple[int, ...] | None = None) -> Value:
    """A value as a block sees it that runs again and again: rounded by the rounds before."""
    type_ = jax.ShapeDtypeStruct(value.shape if shape is None else shape, value.dtype)
    return Value(type_, max(value.error, ERROR.get(value.dtype, 0.0)))


def row_of(value: Value) -> Value:
    return Value(jax.ShapeDtypeStruct(value.shape[1:], value.dtype), value.error)


def handed_on(inner: Pool, start: Value) -> tuple[Value, bool]:
    """The value that becomes a carried one in the next round, and whether to squash it."""
    made = [v for step in inner.steps for v in step.outputs if v.type == start.type]
    found = inner.choice(made) if made else start
    return found, found is start or inner.chance(50)


def squashed(value: Any, squash: bool) -> Any:
    return jnp.tanh(value) if squash and value.dtype in REAL else value


def carried(pool: Pool, most: int = 2) -> list[Value]:
    """Values to carry; numbers in doubles as often as pools hold them."""
    return pool.some(pool.suitable(dtypes=REAL | WHOLE), 0, most)
