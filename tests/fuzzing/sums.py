"""Operations that combine elements: products, reductions, windows, orders, linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fuzzing.pool import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    PLAIN,
    REAL,
    SMALL_WHOLE,
    WHOLE,
    Pool,
    like,
    rank,
)

REDUCE = {
    "sum": lambda a, d: 0.25 * jnp.sum(a, d),
    "sum kept": lambda a, d: 0.25 * jnp.sum(a, d, keepdims=True),
    "mean": jnp.mean,
    "variance": jnp.var,
    "max": jnp.max,
    "min": jnp.min,
    "prod": lambda a, d: jnp.prod(jnp.cos(a), d),
    "log of sums": lambda a, d: 0.25 * jax.nn.logsumexp(a, d),
    "norm": lambda a, d: jnp.sqrt(0.1 + jnp.sum(a * a, d)),
    "sum of a square": lambda a, d: jnp.tanh(jnp.sum(a, d) ** 2),
}

OF_WHOLE = {
    "sum": lambda n, d: jnp.sum(n, d),
    "sum, divided": lambda n, d: jax.lax.div(jnp.sum(n, d), jnp.asarray(3, jnp.sum(n, d).dtype)),
    "narrow sum": lambda n, d: jnp.sum(n, d, dtype=n.dtype),
    "product": lambda n, d: jnp.prod(n % 5, d),
    "largest": jnp.max,
    "any": lambda n, d: jnp.any(n > 3, d),
    "all": lambda n, d: jnp.all(n < 9, d),
    "bits in all": lambda n, d: jax.lax.reduce(
        n, np.array(-1).astype(n.dtype), jax.lax.bitwise_and, d
    ),
    "bits in any": lambda n, d: jax.lax.reduce(n, np.array(0, n.dtype), jax.lax.bitwise_or, d),
    "parity": lambda n, d: jax.lax.reduce(n, np.array(0, n.dtype), jax.lax.bitwise_xor, d),
    "from five": lambda n, d: jax.lax.reduce(n, np.array(5, n.dtype), jax.lax.add, d),
    "mean": lambda n, d: 0.1 * jnp.mean(n.astype(FLOAT), d),
}


def dot(pool: Pool) -> None:
    a = pool.value(rank(1))
    if a is None:
        return
    k = pool.integer(0, a.ndim - 1)
    b = pool.value(lambda v: a.shape[k] in v.shape, [a.dtype])
    if b is None:
        return
    left, right = a.shape, b.shape
    m = pool.choice([d for d, size in enumerate(right) if size == left[k]])
    batches = [(i, j) for i in range(len(left)) for j in range(len(right)) if i != k and j != m]
    batches = [(i, j) for i, j in batches if left[i] == right[j]]
    batch = pool.choice([(), *(((i,), (j,)) for i, j in batches)]) or ((), ())
    wide = jnp.float32 if pool.chance(30) else None

    def fn(x, y):
        made = jax.lax.dot_general(x, y, (((k,), (m,)), batch), preferred_element_type=wide)
        return made / left[k]

    pool.add(f"dot {k} {m} batch {batch}", fn, a, b)


def whole_dot(pool: Pool) -> None:
    """Of whole numbers, small ones summed in wide ones, or of complex ones."""
    dtype = pool.choice((np.dtype(np.int8), INT, COMPLEX, BOOL))
    a = pool.value(rank(1), [dtype])
    b = pool.value(lambda v: a is not None and v.ndim >= 1 and v.shape[0] == a.shape[-1], [dtype])
    wide = jnp.int32 if dtype in (*WHOLE, BOOL) else None

    def fn(x, y):
        if dtype == BOOL:
            x, y = x.astype(jnp.int8), y.astype(jnp.int8)
        return jnp.tensordot(x, y, 1, preferred_element_type=wide)

    pool.add(f"dot of {dtype}", fn, a, b)


def square(pool: Pool) -> None:
    a = pool.value(lambda v: v.ndim == 2 and v.shape[0] == v.shape[1])
    name, fn = pool.choice(
        {
            "a + a.T": lambda x: x + x.T,
            "a @ a": lambda x: x @ x / x.shape[0],
            "a @ a.T": lambda x: x @ x.T / x.shape[0],
            "causal": lambda x: jnp.where(
                jnp.arange(x.shape[0])[:, None] >= jnp.arange(x.shape[1]), x, -1.0
            ),
            "diagonal": jnp.diagonal,
            "trace": lambda x: 0.25 * jnp.trace(x),
            "a @ a.T @ a": lambda x: x @ x.T @ x / x.size,
        }.items()
    )
    pool.add(name, fn, a)


def product(pool: Pool) -> None:
    """Products without a sum: of all pairs, or of three tensors at once."""
    a, b = pool.value(rank(1, 2)), pool.value(rank(1, 2))
    if a is None or b is None:
        return
    if pool.chance(50):
        pool.add("outer product", lambda x, y: jnp.tensordot(x, y, 0), a, b)
    else:
        v = pool.value(lambda v: v.shape == a.shape[-1:])
        pool.add("three at once", lambda x, y, z: jnp.einsum("...k,k,k->...", x, y, z) / 4, a, v, v)


def attention(pool: Pool) -> None:
    q = pool.value(lambda v: v.ndim in (2, 3) and v.shape[-1] <= 16, [FLOAT])
    k = pool.value(
        lambda v: (
            q is not None
            and v.ndim == q.ndim
            and (v.shape[:-2], v.shape[-1]) == (q.shape[:-2], q.shape[-1])
        ),
        [FLOAT],
    )

    def fn(q, k):
        scores = jnp.einsum("...id,...jd->...ij", q, k) / q.shape[-1]
        return jnp.einsum("...ij,...jd->...id", jax.nn.softmax(scores), k)

    pool.add("attention", fn, q, k)


def reduce(pool: Pool) -> None:
    a = pool.value(rank(1))
    if a is None:
        return
    dims = tuple(sorted(pool.some(range(a.ndim), 1, 2)))
    name = pool.choice(REDUCE)
    pool.add(f"{name} {dims}", lambda x: REDUCE[name](x, dims), a)


def reduce_whole(pool: Pool) -> None:
    a = pool.value(rank(1), WHOLE)
    if a is None:
        return
    dims = tuple(sorted(pool.some(range(a.ndim), 1, 2)))
    name = pool.choice(OF_WHOLE)
    pool.add(f"{name} of whole numbers {dims}", lambda x: OF_WHOLE[name](x, dims), a)


def reduce_others(pool: Pool) -> None:
    dtype = pool.choice((COMPLEX, BOOL))
    a = pool.value(rank(1), [dtype])
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    fns = (jnp.sum,) if dtype == COMPLEX else (jnp.any, jnp.all, jnp.sum)
    fn = pool.choice(fns)
    pool.add(f"{fn.__name__} of {dtype} {dim}", lambda x: fn(x, dim), a)


def two_at_once(pool: Pool) -> None:
    """A reduction with two operands: the largest element and where it is."""
    a = pool.value(rank(1), REAL | WHOLE, exact=True)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    fn = pool.choice((jnp.argmax, jnp.argmin))
    pool.add(f"{fn.__name__} {dim}", lambda x: fn(x, dim), a, sharp=True)


def convolution(pool: Pool) -> None:
    """Of one or two spatial dimensions: strided, dilated, transposed, grouped."""
    spatial = pool.choice((1, 1, 2))
    a = pool.value(rank(2 + spatial, 2 + spatial))
    if a is None:
        return
    channels = a.shape[1]
    w = pool.value(lambda v: v.ndim == 2 + spatial and v.shape[1] == channels, [a.dtype])
    if w is None:
        return
    groups = pool.choice((1, 1, 2, channels)) if channels % 2 == 0 else 1
    batches = 2 if groups == 1 and a.shape[0] % 2 == w.shape[0] % 2 == 0 and pool.chance(15) else 1
    options = dict(
        window_strides=(pool.choice((1, 1, 2)),) * spatial,
        lhs_dilation=(pool.choice((1, 1, 2)),) * spatial,
        rhs_dilation=(pool.choice((1, 1, 2)),) * spatial,
        padding=pool.choice(("SAME", "VALID", ((1, 2),) * spatial)),
    )
    if options["lhs_dilation"][0] > 1:  # then "SAME" does not say which
        options["padding"] = (pool.choice(((2, 2), (0, 0), (1, -1))),) * spatial
    last = pool.chance(30)

    def fn(x, kernel):
        if groups > 1:  # each group of the kernels sees its group of the channels
            kernel = kernel[: len(kernel) // groups * groups, : channels // groups]
        numbers = None
        if last:  # channels last, as images often are
            x = jnp.moveaxis(x, 1, -1)
            kernel = jnp.moveaxis(kernel, (0, 1), (-1, -2))
            numbers = ("NWC", "WIO", "NWC") if spatial == 1 else ("NHWC", "HWIO", "NHWC")
        made = jax.lax.conv_general_dilated(
            x,
            kernel,
            **options,
            feature_group_count=groups,
            batch_group_count=batches,
            dimension_numbers=numbers,
        )
        return made / (channels * w.shape[-1])

    if w.shape[0] >= groups:
        text = f"convolution {groups} {batches} groups, last {last}, {options}"
        pool.add(text, fn, a, w)


def windows(pool: Pool) -> None:
    a = pool.value(rank(1))
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    if a.shape[dim] < 2:
        return
    shape = tuple(2 if d == dim else 1 for d in range(a.ndim))
    name, init, combine = pool.choice(
        [("max", -np.inf, jax.lax.max), ("sum", 0, jax.lax.add), ("min", np.inf, jax.lax.min)]
    )
    strides = shape if pool.chance(50) else (1,) * a.ndim
    padding = pool.choice(("VALID", "SAME"))

    def fn(x):
        start = np.array(init).astype(x.dtype)
        return 0.5 * jax.lax.reduce_window(x, start, combine, shape, strides, padding)

    pool.add(f"windows, {name} {dim} {padding}", fn, a)


def cumulative(pool: Pool) -> None:
    a = pool.value(rank(1))
    if a is None:
        return
    dim, back = pool.integer(0, a.ndim - 1), pool.chance(30)
    name, fn = pool.choice(
        {
            "largest": jax.lax.cummax,
            "least": jax.lax.cummin,
            "sum": lambda x, *how, **kw: 0.1 * jax.lax.cumsum(x, *how, **kw),
            "product": lambda x, *how, **kw: jax.lax.cumprod(jnp.cos(x), *how, **kw),
            "log of sums": lambda x, *how, **kw: 0.2 * jax.lax.cumlogsumexp(x, *how, **kw),
            "scan": lambda x, dim, **kw: 0.1 * jax.lax.associative_scan(jnp.add, x, axis=dim, **kw),
        }.items()
    )
    pool.add(f"cumulative {name} {dim} {back}", lambda x: fn(x, dim, reverse=back), a)


def ordering(pool: Pool) -> None:
    """Orders by keys that nothing has rounded, and the values of others, sorted."""
    exact = pool.chance(50)
    a = pool.value(rank(1), REAL | WHOLE if exact else REAL, exact=exact)
    if a is None:
        return
    dim = pool.integer(0, a.ndim - 1)
    names = {
        "sort": lambda x: jnp.sort(x, axis=dim),
        "top 2": lambda x: jax.lax.top_k(x, min(2, x.shape[-1]))[0],
        "median": lambda x: jnp.median(x.astype(FLOAT), axis=dim),
    }
    if exact:
        names |= {
            "argsort": lambda x: jnp.argsort(x, axis=dim),
            "places of the top 2": lambda x: jax.lax.top_k(x, min(2, x.shape[-1])),
            "backwards": lambda x: jnp.sort(x, axis=dim, descending=True),
        }
    name, fn = pool.choice(names.items())
    pool.add(f"{name} {dim}", fn, a, moves=name != "median")
    if exact:
        other = pool.value(like(a))
        pool.add(
            f"sort pairs {dim}",
            lambda x, y: jax.lax.sort((x, y), dimension=dim, num_keys=1),
            a,
            other,
            moves=True,
        )


def order_many(pool: Pool) -> None:
    """Several values in the order of one or several of them, ties in the order of the next."""
    a = pool.value(rank(1), REAL | WHOLE | set(SMALL_WHOLE), exact=True)
    if a is None:
        return
    dim, keys = pool.integer(0, a.ndim - 1), pool.choice((1, 2, 2))
    dtypes = REAL | WHOLE | {BOOL, *SMALL_WHOLE}
    more = [pool.value(like(a), dtypes, exact=True) for _ in range(keys - 1)]
    more += [pool.value(like(a), PLAIN) for _ in range(pool.choice((0, 1, 2)))]
    rough = pool.chance(40) and a.dtype in WHOLE

    def fn(x, *others):
        x = x % 3 if rough else x  # many ties
        return jax.lax.sort((x, *others), dimension=dim, num_keys=keys, is_stable=True)

    text = f"sort {1 + len(more)} by {keys} along {dim}, ties {rough}"
    pool.add(text, fn, a, *more, moves=True)


def linear_algebra(pool: Pool) -> None:
    """Over batches of matrices that are far from singular."""
    a = pool.value(lambda v: v.ndim >= 2 and max(v.shape[-2:]) <= 16, [FLOAT])
    if a is None:
        return
    size = a.shape[-1]

    def positive(x):
        return jnp.einsum("...ik,...jk->...ij", x, x) / size + jnp.eye(x.shape[-2])

    def system(x):
        triangle = jnp.tril(positive(x))
        lower, transposed = True, bool(size % 3)
        return jax.lax.linalg.triangular_solve(
            triangle, x, left_side=True, lower=lower, transpose_a=transposed
        )

    def spectrum(x):
        values, vectors = jnp.linalg.eigh(positive(x))
        return jnp.einsum("...ij,...j,...kj->...ik", vectors, jnp.tanh(values), vectors)

    name, fn = pool.choice(
        {
            "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
            "triangular solve": lambda x: 0.3 * system(x),
            "qr": lambda x: jnp.abs(jnp.linalg.qr(positive(x) + jnp.eye(x.shape[-2]))[1]) / 4,
            "eigh": spectrum,
            "eigenvalues": lambda x: jnp.linalg.eigvalsh(positive(x)) / 4,
            "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False) / size,
            "solve": lambda x: 0.3 * jnp.linalg.solve(positive(x), x),
            "determinant": lambda x: jnp.log(jnp.linalg.det(positive(x)) + 1) / 4,
            "inverse": lambda x: jnp.linalg.inv(positive(x)),
        }.items()
    )
    pool.add(name, fn, a)


def fourier(pool: Pool) -> None:
    a = pool.value(rank(1), [FLOAT, COMPLEX])
    if a is None:
        return
    size = a.shape[-1]
    names = {
        "fourier": lambda x: jnp.fft.fft(x) / size,
        "fourier in 2": lambda x: jnp.fft.fft2(x) / size,
        "inverse fourier": jnp.fft.ifft,
    }
    if a.dtype == FLOAT:
        names["real fourier"] = lambda x: jnp.fft.rfft(x) / size
        names["there and back"] = lambda x: jnp.fft.irfft(jnp.fft.rfft(x), size)
    name = pool.choice(names)
    if a.ndim >= 2 or name != "fourier in 2":
        pool.add(name, names[name], a)


def pairs(pool: Pool) -> None:
    """Distances of all pairs: one broadcast against another, then a sum."""
    a = pool.value(rank(2, 2), [FLOAT])
    b = pool.value(lambda v: a is not None and v.ndim == 2 and v.shape[1] == a.shape[1], [FLOAT])
    pool.add("distances", lambda x, y: jnp.sum(jnp.abs(x[:, None] - y), -1) / x.shape[1], a, b)


OPERATIONS = (
    *(dot, dot, dot, dot, whole_dot, square, square, product, attention, reduce, reduce, reduce),
    *(reduce_whole, reduce_others, two_at_once, convolution, convolution, windows, cumulative),
    *(ordering, order_many, order_many, linear_algebra, fourier, pairs),
)
