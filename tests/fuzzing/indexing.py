"""Operations that read and write at computed places."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fuzzing.pool import FLOAT, NUMBERS, PLAIN, REAL, WHOLE, Pool, Value, along, like, rank


def _places(pool: Pool, most: int = 2) -> Value | None:
    return pool.value(rank(0, most), WHOLE)


def _apart(update):
    """An update of this shape and type that is not made of what it is written into.

    XLA's CPU compiler may write one that is while it still reads it: a batch of one, on one device
    as well, and behind a barrier, too.
    """
    return jnp.arange(1, update.size + 1).reshape(update.shape).astype(update.dtype)


def dynamic(pool: Pool) -> None:
    """A slice at a computed place, or an update there."""
    a, i = pool.value(rank(1), NUMBERS), _places(pool, 1)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    size = pool.choice((1, 1, max(1, a.shape[dim] // 2), a.shape[dim]))
    piece = (*a.shape[:dim], size, *a.shape[dim + 1 :])
    update = pool.value(lambda v: v.shape == piece, [a.dtype])
    row = pool.value(lambda v: v.shape == (*a.shape[:dim], *a.shape[dim + 1 :]), [a.dtype])
    if pool.chance(40):
        pool.add(
            f"dynamic slice of {size} in {dim}",
            lambda x, at: jax.lax.dynamic_slice_in_dim(x, at.reshape(-1)[0], size, dim),
            a,
            i,
            moves=True,
        )
    elif row is not None and pool.chance(50):
        pool.add(
            f"dynamic update of one in {dim}",
            lambda x, y, at: jax.lax.dynamic_update_index_in_dim(x, y, at.reshape(-1)[0], dim),
            a,
            row,
            i,
            moves=True,
        )
    elif update is not None:
        pool.add(
            f"dynamic update of {size} in {dim}",
            lambda x, y, at: jax.lax.dynamic_update_slice_in_dim(x, y, at.reshape(-1)[0], dim),
            a,
            update,
            i,
            moves=True,
        )
    else:
        pool.add(
            f"dynamic update by itself of {size} in {dim}",
            lambda x, at: jax.lax.dynamic_update_slice_in_dim(
                x, _apart(jax.lax.slice_in_dim(x, 0, size, axis=dim)), at.reshape(-1)[0], dim
            ),
            a,
            i,
            moves=True,
        )


def dynamic_pairs(pool: Pool) -> None:
    """A slice, or an update, that moves along two dimensions."""
    a, i = pool.value(rank(2), NUMBERS), pool.value(rank(1, 1), WHOLE)
    if a is None or i is None:
        return
    first = pool.integer(0, a.ndim - 2)
    sizes = list(a.shape)
    sizes[first] = pool.choice((1, max(1, sizes[first] // 2)))
    sizes[first + 1] = pool.choice((1, sizes[first + 1]))

    def starts(n):
        zero = jnp.zeros((), n.dtype)
        return [n[0] if d == first else n[-1] if d == first + 1 else zero for d in range(a.ndim)]

    if pool.chance(50):
        pool.add(
            f"dynamic slice {sizes}",
            lambda x, n: jax.lax.dynamic_slice(x, starts(n), sizes),
            a,
            i,
            moves=True,
        )
    else:
        pool.add(
            f"dynamic update {sizes}",
            lambda x, n: jax.lax.dynamic_update_slice(
                x, _apart(jax.lax.slice(x, [0] * x.ndim, sizes)[::-1]), starts(n)
            ),
            a,
            i,
            moves=True,
        )


def gather(pool: Pool) -> None:
    a, i = pool.value(rank(1), PLAIN), _places(pool)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    name, fn = pool.choice(
        {
            "index": lambda x, n: x[along(dim, n)],
            "take": lambda x, n: jnp.take(x, n, axis=dim, mode="clip"),
            "take filled": lambda x, n: (
                jnp.asarray(x).at[along(dim, n)].get(mode="fill", fill_value=2)
            ),
            "take wrapped": lambda x, n: jnp.take(x, n, axis=dim, mode="wrap"),
            "take in bounds": lambda x, n: (
                jnp.asarray(x).at[along(dim, n % x.shape[dim])].get(mode="promise_in_bounds")
            ),
        }.items()
    )
    pool.add(f"{name} {dim}", fn, a, i, moves=True)


def gather_pairs(pool: Pool) -> None:
    """Two index arrays at once, next to each other or not."""
    a, i = pool.value(rank(2)), pool.value(rank(1, 1), WHOLE)
    if a is None:
        return
    first = pool.integer(0, a.ndim - 2)
    apart = a.ndim > 2 and pool.chance(30)
    middle = (slice(None),) if apart and first == 0 else ()
    pool.add(
        f"index {first} and another, apart {bool(middle)}",
        lambda x, n: x[along(first, n, *middle, n[::-1])],
        a,
        i,
        moves=True,
    )


def batched(pool: Pool) -> None:
    """A slice, or an update, at a place of its own for each of a batch."""
    a = pool.value(rank(2), NUMBERS)
    i = pool.value(lambda v: a is not None and v.type.size >= a.shape[0], WHOLE)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 2)
    size = pool.choice((1, 1, max(1, a.shape[dim + 1] // 2), max(1, a.shape[dim + 1] - 1)))

    def places(x, n):
        return n.reshape(-1)[: x.shape[0]]

    if pool.chance(50):
        pool.add(
            f"dynamic slice of {size} in {dim}, of each of a batch",
            lambda x, n: jax.vmap(lambda y, at: jax.lax.dynamic_slice_in_dim(y, at, size, dim))(
                x, places(x, n)
            ),
            a,
            i,
            moves=True,
        )
    else:
        pool.add(
            f"dynamic update of {size} in {dim}, of each of a batch",
            lambda x, n: jax.vmap(
                lambda y, at: jax.lax.dynamic_update_slice_in_dim(
                    y, _apart(jax.lax.slice_in_dim(y, 0, size, axis=dim)), at, dim
                )
            )(x, places(x, n)),
            a,
            i,
            moves=True,
        )


def write_window(pool: Pool) -> None:
    """One window, at a computed place where it may not fit, or at a fixed one."""
    a, i = pool.value(rank(1)), _places(pool, 1)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    size = a.shape[dim]
    wide = pool.choice((1, 1, max(1, size // 2), max(1, size - 1)))
    name = pool.choice(("set", "add", "multiply", "max", "min"))
    piece = along(dim, slice(0, wide))
    if pool.chance(50):
        at = pool.integer(0, size - wide)
        pool.add(
            f"{name} {wide} from {at} in {dim}",
            lambda x: getattr(x.at[along(dim, slice(at, at + wide))], name)(_apart(0.5 * x[piece])),
            a,
        )
        return
    fn = getattr(
        jax.lax, {"set": "scatter", "multiply": "scatter_mul"}.get(name, f"scatter_{name}")
    )
    numbers = jax.lax.ScatterDimensionNumbers(tuple(range(a.ndim)), (), (dim,))
    pool.add(
        f"scatter {name} of a window of {wide} in {dim}",
        lambda x, n: fn(x, n.reshape(-1)[:1], _apart(0.5 * x[piece]), numbers),
        a,
        i,
    )


def gather_windows(pool: Pool) -> None:
    """Windows that keep their dimension, mostly wider than one index."""
    a, i = pool.value(rank(2, 2), [FLOAT]), pool.value(rank(1, 1), WHOLE)
    if a is None or i is None:
        return
    wide = pool.choice((1, max(1, a.shape[0] // 2)))
    numbers = jax.lax.GatherDimensionNumbers((1, 2), (), (0,))
    pool.add(
        f"gather windows of {wide}",
        lambda x, n: jax.lax.gather(x, n[:, None], numbers, (wide, x.shape[1]), mode="clip"),
        a,
        i,
        moves=True,
    )


def along_axis(pool: Pool) -> None:
    """One index for each row, read or written: gather and scatter with batching dimensions."""
    a = pool.value(rank(2, 3))
    if a is None:
        return
    dim, rows = pool.integer(1, a.ndim - 1), a.shape[0]
    i = pool.value(lambda v: v.type.size >= rows, WHOLE)

    def places(x, n):
        width = min(3, n.size // rows)
        n = n.reshape(-1)[: rows * width]
        n = n.reshape(rows, *(width if d == dim else 1 for d in range(1, x.ndim)))
        return jnp.broadcast_to(n, (*x.shape[:dim], width, *x.shape[dim + 1 :]))

    def put(x, n):  # every place once at most: otherwise it is not said which value stays
        first = places(x, n)
        first = jax.lax.slice_in_dim(first, 0, 1, axis=dim) % x.shape[dim]
        return jnp.put_along_axis(x, first, 0.5, axis=dim, inplace=False)

    if pool.chance(60):
        mode = pool.choice(("clip", "fill"))
        pool.add(
            f"take along {dim} {mode}",
            lambda x, n: jnp.take_along_axis(x, places(x, n), axis=dim, mode=mode),
            a,
            i,
            moves=True,
        )
    else:
        pool.add(f"put along {dim}", put, a, i, moves=True)


def by_position(pool: Pool) -> None:
    """One index for each row, or each token, whose own numbers count up: labels out of logits."""
    a, i = pool.value(rank(2, 4), PLAIN), _places(pool)
    if a is None or i is None:
        return
    tokens = a.ndim >= 3 and pool.chance(50)
    lead = pool.integer(0, a.ndim - 3 if tokens else a.ndim - 2)
    rows, dim = a.shape[lead], lead + (2 if tokens else 1)
    shape = a.shape[lead:dim]
    inside, order = pool.chance(50), pool.choice(("up", "up", "down", "turned"))
    name = pool.choice(("get", "get", "get", "set", "add", "max", "multiply"))
    if name != "get" and a.dtype not in NUMBERS - {np.dtype(np.complex64)}:
        name = "set"

    def at(x, n):
        n = jnp.resize(n, shape)
        counted = {
            "up": jnp.arange(rows),
            "down": jnp.arange(rows)[::-1],
            "turned": (jnp.arange(rows) + 1) % rows,
        }[order]
        index = (counted[:, None], jnp.arange(shape[1])) if tokens else (counted,)
        return along(lead, *index, n % x.shape[dim] if inside else n)

    def fn(x, n):
        places = at(x, n)
        if name == "get":
            return x[places]
        return getattr(x.at[places], name)(_apart(x[places]))

    text = f"{name} at {lead} by position {order}, tokens {tokens}, inside {inside}"
    pool.add(text, fn, a, i, moves=name in ("get", "set"))


def one_hot(pool: Pool) -> None:
    a, i = pool.value(rank(1)), _places(pool)
    pool.add(
        "one hot @",
        lambda x, n: jnp.tensordot(jax.nn.one_hot(n, x.shape[0], dtype=x.dtype), x, 1),
        a,
        i,
    )


def scatter(pool: Pool) -> None:
    """Adds (or takes the largest of) updates at the places that an index array says."""
    i = pool.value(rank(1, 1), WHOLE)
    u = pool.value(lambda v: i is not None and v.shape[:1] == i.shape)
    if i is None or u is None:
        return
    rest = u.shape[1:]
    kind = pool.choice(
        ("into zeros", "into ones", "add", "max", "min", "multiply", "second", "set")
    )
    if kind.startswith("into"):
        size, start = pool.choice((4, 8)), float(kind == "into ones")
        pool.add(
            f"scatter {kind} of {size}",
            lambda n, x: 0.5 * jnp.full((size, *rest), start, x.dtype).at[n].add(x),
            i,
            u,
        )
    elif kind == "second":
        pool.add(
            "scatter into dimension 1",
            lambda n, x: (
                jnp.zeros((3, 8, *rest), x.dtype)
                .at[:, n]
                .add(0.5 * jnp.broadcast_to(x, (3, *x.shape)))
            ),
            i,
            u,
        )
    elif kind == "set":  # one place only: of several alike it is not said which value stays
        a = pool.value(lambda v: v.shape[1:] == rest and v.ndim == u.ndim, [u.dtype])
        pool.add("scatter set", lambda x, n, y: x.at[n[:1]].set(y[:1]), a, i, u, moves=True)
    else:
        a = pool.value(lambda v: v.ndim == 1 + len(rest) and v.shape[1:] == rest, [u.dtype])
        pool.add(f"scatter {kind}", lambda x, n, y: getattr(x.at[n], kind)(0.5 * y), a, i, u)


def scatter_whole(pool: Pool) -> None:
    i, u = pool.value(rank(1, 1), WHOLE), None
    if i is not None:
        u = pool.value(lambda v: v.shape == i.shape, WHOLE)
    name, fn = pool.choice(
        {
            "counts": lambda n, x: jnp.zeros(8, jnp.int32).at[n].add(x.astype(jnp.int32)),
            "least": lambda n, x: jnp.full(8, 9, x.dtype).at[n].min(x),
            "histogram": lambda n, x: jnp.bincount(jnp.abs(n.astype(jnp.int32) + x), length=16),
        }.items()
    )
    pool.add(f"scatter of whole numbers, {name}", fn, i, u)


def scatter_pairs(pool: Pool) -> None:
    i = pool.value(rank(1, 1), WHOLE)
    u = pool.value(like(i))
    pool.add(
        "scatter at pairs",
        lambda n, x: jnp.zeros((8, 8), x.dtype).at[n, n[::-1]].add(0.5 * x),
        i,
        u,
    )


def segments(pool: Pool) -> None:
    i = pool.value(rank(1, 1), WHOLE)
    u = pool.value(lambda v: i is not None and v.shape[:1] == i.shape)
    count = pool.choice((4, 8))
    name, fn = pool.choice(
        {
            "sums": jax.ops.segment_sum,
            "products": lambda x, *how, **kw: jax.ops.segment_prod(jnp.cos(x), *how, **kw),
            "maxima": lambda x, *how, **kw: jnp.maximum(jax.ops.segment_max(x, *how, **kw), -9),
            "minima": lambda x, *how, **kw: jnp.minimum(jax.ops.segment_min(x, *how, **kw), 9),
        }.items()
    )
    pool.add(
        f"segment {name} of {count}", lambda n, x: 0.5 * fn(x, n % count, num_segments=count), i, u
    )


def search(pool: Pool) -> None:
    """Places in a sorted array."""
    a = pool.value(rank(1, 1), REAL | WHOLE, exact=True)
    b = pool.value(rank(1, 2), [] if a is None else [a.dtype], exact=True)
    pool.add("search", lambda x, y: jnp.searchsorted(jnp.sort(x), y), a, b, sharp=True)


OPERATIONS = (
    *(dynamic, dynamic, dynamic, dynamic_pairs, gather, gather, gather, gather_pairs),
    *(batched, batched, write_window, write_window),
    *(
        gather_windows,
        along_axis,
        along_axis,
        by_position,
        by_position,
        by_position,
        one_hot,
        scatter,
        scatter,
        scatter,
        scatter_whole,
    ),
    *(scatter_pairs, segments, search),
)
