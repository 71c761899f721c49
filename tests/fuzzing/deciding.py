"""Loops that end, and branches that are taken, by what is computed on the way.

What decides must not depend on rounding: arguments decide, and what halves of them, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fuzzing.blocks import (
    block,
    captured,
    carried,
    handed_on,
    loosened,
    row_of,
    runs,
    squashed,
)
from fuzzing.pool import FLOAT, INT, NUMBERS, REAL, WHOLE, Operation, Pool, Value, rank

DECIDES: dict[str, Callable[[Any], Any]] = {
    "any": lambda x: jnp.any(x > 1),
    "all": lambda x: jnp.all(x > 1),
    "not all": lambda x: ~jnp.all(x <= 1) & (jnp.max(x) > 1),
    "largest": lambda x: jnp.max(x) > 1,
    "count": lambda x: jnp.sum(x > 1) > 2,
    "norm": lambda x: jnp.sqrt(jnp.sum(jnp.maximum(x.astype(FLOAT), 0) ** 2)) > 1.23456,
    "first": lambda x: x.reshape(-1)[0] > 1,
}
"""Conditions that become false when numbers halve again and again."""

MASKED = ("any", "largest", "not all")
"""Those that become false, too, where only what is larger than one is halved."""


def until(pool: Pool) -> None:
    """A loop that goes on while a condition on all of a value holds; or one loop for each row.

    Rows that are done may wait for the others unchanged, as in batches of decoded sequences.
    """
    a, carries = pool.value(rank(1), REAL | WHOLE, exact=True), carried(pool)
    outside = captured(pool)
    if a is None:
        return
    mapped = a.ndim >= 2 and pool.chance(40)
    seen = row_of(a) if mapped else Value(a.type)
    inner = block(pool, [seen, *map(loosened, carries), *outside])
    nexts = [handed_on(inner, c) for c in inner.arguments[1 : 1 + len(carries)]]
    run = runs(inner, [v for v, _ in nexts])
    name, counts = pool.choice(DECIDES), pool.chance(50)
    masked = name in MASKED and pool.chance(50)

    def fn(x, *values):
        def one(row):
            def go_on(state):
                more = DECIDES[name](state[1])
                return more & (state[0] < 4) if counts else more

            def body(state):
                rounds, row, *carry = state
                made = run(row, *carry, *values[len(carries) :])
                made = [squashed(v, squash) for v, (_, squash) in zip(made, nexts, strict=True)]
                if masked:
                    busy = jnp.any(row > 1)
                    pairs = zip(made, carry, strict=True)
                    made = [jnp.where(busy, new, old) for new, old in pairs]
                halved = _halved(row)
                return [rounds + 1, jnp.where(row > 1, halved, row) if masked else halved, *made]

            return jax.lax.while_loop(go_on, body, [0, row, *values[: len(carries)]])

        start = jnp.clip(x, -40, 40) if x.dtype in REAL else x
        return _rounded(jax.vmap(one)(start) if mapped else one(start))

    text = f"until {name}, counts {counts}, masked {masked}, mapped {mapped}"
    pool.add(text, fn, a, *carries, *outside, inner=(inner,))


def _halved(x: Any) -> Any:
    return x * jnp.asarray(0.5, x.dtype) if x.dtype in REAL else x >> 1


def _rounded(values: Sequence[Any]) -> list[Any]:
    """As numbers that rounding may move, which whole ones must not be."""
    return [v if v.dtype in (*REAL, jnp.complex64) else 0.01 * v.astype(FLOAT) for v in values]


def whiles(pool: Pool) -> None:
    """A loop that ends by what it computes, in whole numbers that are counted down."""
    number, carries = pool.value(rank(0, 2), [INT]), carried(pool)
    outside = captured(pool)
    if number is None:
        return
    inner = block(pool, [Value(number.type), *map(loosened, carries), *outside])
    nexts = [handed_on(inner, c) for c in inner.arguments[1 : 1 + len(carries)]]
    run = runs(inner, [v for v, _ in nexts])

    def fn(n, *values):
        fixed = values[len(carries) :]

        def body(state):
            rounds, n, *carry = state
            made = run(n, *carry, *fixed)
            made = [squashed(v, squash) for v, (_, squash) in zip(made, nexts, strict=True)]
            return [rounds + 1, n - 3, *made]

        def go_on(state):
            return (state[0] < 4) & jnp.any(state[1] > 2)

        return _rounded(jax.lax.while_loop(go_on, body, [0, n, *values[: len(carries)]]))

    pool.add("while", fn, number, *carries, *outside, inner=(inner,))


def branched(pool: Pool) -> None:
    """A branch by a condition on all of a value; or one in each round of a loop, by its row."""
    a, outside = pool.value(rank(1), REAL | WHOLE, exact=True), captured(pool)
    start = pool.value(rank(0), REAL)
    if a is None or start is None:
        return
    looped = a.ndim >= 2 and pool.chance(70)
    seen = row_of(a) if looped else Value(a.type)
    inner = tuple(block(pool, [loosened(start), seen, *outside]) for _ in range(2))
    nexts = [handed_on(b, b.arguments[0]) for b in inner]
    run = [runs(b, [v]) for b, (v, _) in zip(inner, nexts, strict=True)]
    name, shrinks = pool.choice(DECIDES), pool.chance(40)

    def fn(x, carry, *fixed):
        def step(state, row):
            carry, left = state
            branches = [
                lambda c, r, *f, run=run, squash=squash: squashed(run(c, r, *f)[0], squash)
                for run, (_, squash) in zip(run, nexts, strict=True)
            ]
            decides = left if shrinks else row
            made = jax.lax.cond(DECIDES[name](decides), *branches, carry, row, *fixed)
            return (made, _halved(left)), made

        if looped:
            return jax.lax.scan(step, (carry, x[0]), x)[0][:1]
        return step((carry, x), x)[1]

    text = f"branches by {name}, in a loop {looped}, shrinks {shrinks}"
    pool.add(text, fn, a, start, *outside, inner=inner)


def chosen(pool: Pool) -> None:
    """One of two values for every row, or for all, by a condition on another."""
    a = pool.value(rank(1), REAL | WHOLE, exact=True)
    b = pool.value(lambda v: a is not None and v.shape[:1] == a.shape[:1] and v.ndim, NUMBERS)
    name, by_row = pool.choice(DECIDES), pool.chance(50)

    def fn(x, y):
        where = jax.vmap(DECIDES[name])(x) if by_row else DECIDES[name](x)
        where = where.reshape(-1, *(1,) * (y.ndim - 1)) if by_row else where
        return jnp.where(where, y, jnp.flip(y))

    pool.add(f"chosen by {name}, by row {by_row}", fn, a, b, moves=True)


OPERATIONS: tuple[Operation, ...] = (until, until, until, whiles, branched, branched, chosen)
