"""Operations that only move elements: shapes, slices, pieces put together."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fuzzing.pool import FLOAT, NUMBERS, PLAIN, Pool, along, rank


def broadcasting(pool: Pool) -> None:
    a = pool.value(rank(1))
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    b = pool.value(lambda v: v.shape == (a.shape[dim],))
    after = a.ndim - 1 - dim
    pool.add(f"broadcast along {dim}", lambda x, y: x * y.reshape(-1, *(1,) * after), a, b)


def transpose(pool: Pool) -> None:
    a = pool.value(rank(2), PLAIN)
    if a is not None:
        order = tuple(pool.some(range(a.ndim), a.ndim, a.ndim))
        pool.add(f"transpose {order}", lambda x: x.transpose(order), a, moves=True)


def split(pool: Pool) -> None:
    a = pool.value(lambda v: any(size > 3 for size in v.shape), PLAIN)
    if a is None:
        return
    dim = pool.choice([d for d, size in enumerate(a.shape) if size > 3])
    major = pool.choice([p for p in range(1, a.shape[dim]) if a.shape[dim] % p == 0])
    new = (*a.shape[:dim], major, a.shape[dim] // major, *a.shape[dim + 1 :])
    pool.add(f"reshape {new}", lambda x: x.reshape(new), a, moves=True)


def merge(pool: Pool) -> None:
    a = pool.value(rank(2), PLAIN)
    if a is not None:
        dim = pool.integer(0, a.ndim - 2)
        new = (*a.shape[:dim], a.shape[dim] * a.shape[dim + 1], *a.shape[dim + 2 :])
        pool.add(f"reshape {new}", lambda x: x.reshape(new), a, moves=True)


def reshape(pool: Pool) -> None:
    """Any other shape: flat, a one put in or taken out, two dimensions cut otherwise."""
    a = pool.value(rank(1), PLAIN)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    options = [(a.type.size,), (*a.shape[:dim], 1, *a.shape[dim:])]
    options += [tuple(size for size in a.shape if size != 1), a.shape[::-1]]
    new = pool.choice(options)
    pool.add(f"reshape {new}", lambda x: x.reshape(new), a, moves=True)


def widen(pool: Pool) -> None:
    a = pool.value()
    if a is None:
        return
    dim, size = pool.integer(0, a.ndim), pool.choice((2, 4))

    def fn(x):
        # Not all alike: a compiler drops what is sliced from equal copies.
        scale = 1 + 0.1 * jnp.arange(size, dtype=x.dtype).reshape(-1, *(1,) * (x.ndim - dim))
        return jnp.expand_dims(x, dim) * scale

    pool.add(f"broadcast to {size} at {dim}", fn, a)


def repeat(pool: Pool) -> None:
    a = pool.value(rank(1), NUMBERS)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    name, fn = pool.choice(
        {
            "repeat": lambda x: jnp.repeat(x, 2, axis=dim),
            "tile": lambda x: jnp.tile(x, tuple(2 if d == dim else 1 for d in range(x.ndim))),
            "stack": lambda x: jnp.stack([x, x[::-1]], axis=dim),
        }.items()
    )
    pool.add(f"{name} {dim}", fn, a, moves=True)


def sliced(pool: Pool) -> None:
    a = pool.value(rank(1), PLAIN)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    size = a.shape[dim]
    start = pool.integer(0, size - 1)
    stop, stride = pool.integer(start + 1, size), pool.choice((1, 1, 2, 3))
    if pool.chance(20):  # one index, as layers are taken from a stack
        pool.add(f"index {dim} {start}", lambda x: x[along(dim, start)], a, moves=True)
    else:
        at = along(dim, slice(start, stop, stride))
        pool.add(f"slice {dim} {start}:{stop}:{stride}", lambda x: x[at], a, moves=True)


def reverse(pool: Pool) -> None:
    a = pool.value(rank(1), PLAIN)
    if a is not None:
        dim = pool.integer(0, a.ndim - 1)
        pool.add(f"reverse {dim}", lambda x: jnp.flip(x, dim), a, moves=True)


def roll(pool: Pool) -> None:
    a = pool.value(rank(1), NUMBERS)
    if a is not None:
        dim, by = pool.integer(0, a.ndim - 1), pool.choice((1, 1, -1, 2, 3, -3, 5, 7))
        pool.add(f"roll {dim} by {by}", lambda x: jnp.roll(x, by, dim), a, moves=True)


def pad(pool: Pool) -> None:
    a = pool.value(rank(1), NUMBERS)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    low, high, inside = pool.choice(
        ((0, 4, 0), (2, 2, 0), (0, 0, 1), (1, 0, 1), (-1, 1, 0), (2, -1, 1), (0, -1, 0))
    )
    widths = [(low, high, inside) if d == dim else (0, 0, 0) for d in range(a.ndim)]
    pool.add(
        f"pad {dim} {low} {high} {inside}",
        lambda x: jax.lax.pad(x, jnp.asarray(0, x.dtype), widths),
        a,
        moves=True,
    )


def neighbours(pool: Pool) -> None:
    """Slices that leave out an element or two, combined, shifted or put together again."""
    a = pool.value(lambda v: any(size > 2 for size in v.shape), NUMBERS)
    if a is None:
        return
    dim = pool.choice([d for d, size in enumerate(a.shape) if size > 2])
    first, last = along(dim, slice(1, None)), along(dim, slice(None, -1))
    one = along(dim, slice(0, 1))
    name, fn = pool.choice(
        {
            "difference": lambda x: x[first] - x[last],
            "sum of neighbours": lambda x: jnp.sum(x[first] + 2 * x[last], dim),
            "largest neighbours": lambda x: jnp.max(jnp.maximum(x[first], x[last]), dim),
            "shift": lambda x: jnp.concatenate([jnp.ones_like(x[one]), x[last]], dim),
            "shift back": lambda x: jnp.concatenate([x[first], jnp.zeros_like(x[one])], dim),
            "edge": lambda x: jnp.concatenate([x[one], x[last] + x[first]], dim),
            "sums of neighbours": lambda x: jnp.cumsum(x[first] + x[last], dim),
        }.items()
    )
    pool.add(f"{name} {dim}", fn, a)


def halves(pool: Pool) -> None:
    """The halves of a dimension change places, one of them negated, as rotary embeddings do."""
    a = pool.value(lambda v: any(size % 2 == 0 for size in v.shape), [FLOAT])
    if a is None:
        return
    dim = pool.choice([d for d, size in enumerate(a.shape) if size % 2 == 0])

    def fn(x):
        before, after = jnp.split(x, 2, axis=dim)
        return jnp.concatenate([-after, before], axis=dim)

    pool.add(f"rotated halves of {dim}", fn, a, moves=True)


def wrapped(pool: Pool) -> None:
    a = pool.value(rank(1, 3))
    if a is None:
        return
    dim, mode = pool.integer(0, a.ndim - 1), pool.choice(("wrap", "reflect", "edge"))
    widths = [(1, 1) if d == dim else (0, 0) for d in range(a.ndim)]
    pool.add(f"pad {dim} {mode}", lambda x: jnp.pad(x, widths, mode=mode), a, moves=True)


def concatenate(pool: Pool) -> None:
    a = pool.value(rank(1), PLAIN)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)

    def fits(v):
        return v.ndim == a.ndim and all(
            p == q for d, (p, q) in enumerate(zip(v.shape, a.shape, strict=True)) if d != dim
        )

    others = [pool.value(fits, [a.dtype]) for _ in range(pool.choice((1, 1, 2)))]
    if pool.chance(40):  # of one value, twice or more, alone or with others
        others = [*[a] * pool.choice((1, 1, 2)), *pool.some(others, 0, 1)]
        pool.rng.shuffle(others)
    pool.add(f"concatenate {dim}", lambda *x: jnp.concatenate(x, dim), a, *others, moves=True)


def split_apart(pool: Pool) -> None:
    a = pool.value(lambda v: any(size % 2 == 0 for size in v.shape), NUMBERS)
    if a is not None:
        dim = pool.choice([d for d, size in enumerate(a.shape) if size % 2 == 0])
        pool.add(f"halves of {dim}", lambda x: jnp.split(x, 2, axis=dim), a, moves=True)


OPERATIONS = (
    *(broadcasting, broadcasting, transpose, split, split, merge, merge, reshape, widen, repeat),
    *(
        sliced,
        reverse,
        roll,
        pad,
        wrapped,
        concatenate,
        split_apart,
        neighbours,
        neighbours,
        halves,
    ),
)
