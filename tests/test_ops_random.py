"""Random small programs under random schedules: same numbers, and the collectives predicted.

The whole program is run, not its parts: import, spreading, lowering, emission and XLA's compiler.
`PARTITA_EXAMPLES=300 pytest tests/test_ops_random.py` looks longer.

Tolerance: everything is float32 and of order one. Sums of up to a few hundred terms are taken in
another order when partitioned, and a few operations follow one another, so results differ by some
1e-6 of their largest element. 1e-4 is far above that and far below a wrong collective, which loses
or repeats a whole piece.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import partita as pt
from partita.verify import compare

EXAMPLES = int(os.environ.get("PARTITA_EXAMPLES", "25"))
TOLERANCE = 1e-4
MESHES = ("x=2,y=4", "x=2,y=2", "x=2,y=2,z=2")
LARGEST = 2048  # elements of any value
MOST_STEPS, MOST_TACTICS = 8, 6
FLOAT, INT = jnp.float32, jnp.int32

# ---------------------------------------------------------------------------- random programs


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation of a random program, on values by number."""

    text: str
    fn: Callable[..., Any]
    inputs: tuple[int, ...]


class Pool:
    """The values made so far, by type only."""

    def __init__(self, draw, arguments):
        self.draw = draw
        self.arguments = arguments
        self.types = list(arguments)
        self.steps: list[Step] = []

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def choice(self, options):
        return self.draw(st.sampled_from(list(options)))

    def value(self, suits=lambda t: True, dtype=FLOAT):
        """The number of a value that suits, late ones as likely as early ones; None without."""
        found = [i for i, t in enumerate(self.types) if t.dtype == dtype and suits(t)]
        return self.choice(found) if found else None

    def add(self, text, fn, *inputs):
        """Adds an operation, unless its result is too large or there is nothing to apply it to."""
        if any(i is None for i in inputs):
            return
        made = jax.eval_shape(fn, *(self.types[i] for i in inputs))
        if made.size <= LARGEST and made.ndim <= 4 and made.size > 0:
            self.types.append(made)
            self.steps.append(Step(text, fn, inputs))


UNARY = {
    "tanh": jnp.tanh,
    "negate": lambda a: -a,
    "sine": jnp.sin,
    "scale": lambda a: 0.5 * a,
    "offset": lambda a: a + 0.25,
    "square": lambda a: jnp.tanh(a * a),
    "softmax": lambda a: jax.nn.softmax(a, axis=-1) if a.ndim else a,
    "flat": lambda a: a.reshape(-1),
    "iota": lambda a: a + 0.1 * jnp.arange(a.shape[-1], dtype=a.dtype) if a.ndim else a,
    "mean of itself": lambda a: a - jnp.mean(a, axis=0) if a.ndim else a,
    "barrier": lambda a: jax.lax.optimization_barrier(a),
    "constant": lambda a: (
        a * (np.arange(a.size, dtype=np.float32).reshape(a.shape) / max(a.size, 1))
    ),
}

BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: jnp.tanh(a * b),
    "maximum": jnp.maximum,
}

REDUCE = {
    "sum": lambda a, d: 0.25 * jnp.sum(a, d),
    "sum kept": lambda a, d: 0.25 * jnp.sum(a, d, keepdims=True),
    "max": jnp.max,
    "min": jnp.min,
    "prod": lambda a, d: jnp.prod(jnp.cos(a), d),
    "positions of the largest": lambda a, d: jnp.argmax(a, d[0]).astype(FLOAT) * 0.01,
}


def unary(pool):
    name = pool.choice(UNARY)
    pool.add(name, UNARY[name], pool.value())


def binary(pool):
    a = pool.value()
    shape = pool.types[a].shape
    b = pool.value(lambda t: t.shape == shape)
    name = pool.choice(BINARY)
    pool.add(name, BINARY[name], a, b)


def broadcasting(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    dim = pool.integer(0, pool.types[a].ndim - 1)
    size = pool.types[a].shape[dim]
    b = pool.value(lambda t: t.shape == (size,))
    after = pool.types[a].ndim - 1 - dim

    def fn(x, y):
        return x * y.reshape(-1, *(1,) * after)

    pool.add(f"broadcast along {dim}", fn, a, b)


def dot(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    k = pool.integer(0, pool.types[a].ndim - 1)
    b = pool.value(lambda t: pool.types[a].shape[k] in t.shape)
    left, right = pool.types[a].shape, pool.types[b].shape
    m = pool.choice([d for d, size in enumerate(right) if size == left[k]])
    batches = [(i, j) for i in range(len(left)) for j in range(len(right)) if i != k and j != m]
    batches = [(i, j) for i, j in batches if left[i] == right[j]]
    batch = pool.choice([(), *(((i,), (j,)) for i, j in batches)]) or ((), ())

    def fn(x, y):
        return jax.lax.dot_general(x, y, (((k,), (m,)), batch)) / left[k]

    pool.add(f"dot {k} {m} batch {batch}", fn, a, b)


def square(pool):
    a = pool.value(lambda t: t.ndim == 2 and t.shape[0] == t.shape[1])
    name, fn = pool.choice(
        {
            "a + a.T": lambda x: x + x.T,
            "a @ a": lambda x: x @ x / x.shape[0],
            "a @ a.T": lambda x: x @ x.T / x.shape[0],
            "causal": lambda x: jnp.where(
                jnp.arange(x.shape[0])[:, None] >= jnp.arange(x.shape[1]), x, -1.0
            ),
            "diagonal": lambda x: jnp.diagonal(x),
        }.items()
    )
    pool.add(name, fn, a)


def transpose(pool):
    a = pool.value(lambda t: t.ndim >= 2)
    if a is not None:
        order = tuple(pool.draw(st.permutations(range(pool.types[a].ndim))))
        pool.add(f"transpose {order}", lambda x: x.transpose(order), a)


def split(pool):
    a = pool.value(lambda t: any(size % 2 == 0 and size > 2 for size in t.shape))
    if a is None:
        return
    shape = pool.types[a].shape
    dim = pool.choice([d for d, size in enumerate(shape) if size % 2 == 0 and size > 2])
    major = pool.choice([p for p in (2, 4, shape[dim] // 2) if shape[dim] % p == 0])
    new = (*shape[:dim], major, shape[dim] // major, *shape[dim + 1 :])
    pool.add(f"reshape {new}", lambda x: x.reshape(new), a)


def merge(pool):
    a = pool.value(lambda t: t.ndim >= 2)
    if a is not None:
        shape = pool.types[a].shape
        dim = pool.integer(0, len(shape) - 2)
        new = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        pool.add(f"reshape {new}", lambda x: x.reshape(new), a)


def reduce(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    rank = pool.types[a].ndim
    dims = tuple(sorted(pool.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=2))))
    name = pool.choice(REDUCE)
    pool.add(f"{name} {dims}", lambda x: REDUCE[name](x, dims), a)


def widen(pool):
    a = pool.value()
    dim, size = pool.integer(0, pool.types[a].ndim), pool.choice((2, 4))

    def fn(x):
        # Not all alike: a compiler drops what is sliced from equal copies.
        scale = 1 + 0.1 * jnp.arange(size, dtype=x.dtype).reshape(-1, *(1,) * (x.ndim - dim))
        return jnp.expand_dims(x, dim) * scale

    pool.add(f"broadcast to {size} at {dim}", fn, a)


def sliced(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    dim = pool.integer(0, pool.types[a].ndim - 1)
    size = pool.types[a].shape[dim]
    start = pool.integer(0, size - 1)
    stop, stride = pool.integer(start + 1, size), pool.choice((1, 2))
    at = (slice(None),) * dim + (slice(start, stop, stride),)
    pool.add(f"slice {dim} {start}:{stop}:{stride}", lambda x: x[at], a)


def reverse(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is not None:
        dim = pool.integer(0, pool.types[a].ndim - 1)
        pool.add(f"reverse {dim}", lambda x: jnp.flip(x, dim), a)


def pad(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is not None:
        dim, low, high = pool.integer(0, pool.types[a].ndim - 1), *pool.choice(((0, 4), (2, 2)))
        widths = [(0, 0)] * dim + [(low, high)]
        widths += [(0, 0)] * (pool.types[a].ndim - len(widths))
        pool.add(f"pad {dim} {low} {high}", lambda x: jnp.pad(x, widths), a)


def concatenate(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    shape, dim = pool.types[a].shape, pool.integer(0, pool.types[a].ndim - 1)

    def fits(t):
        return t.ndim == len(shape) and all(
            p == q for d, (p, q) in enumerate(zip(t.shape, shape, strict=True)) if d != dim
        )

    pool.add(f"concatenate {dim}", lambda x, y: jnp.concatenate([x, y], dim), a, pool.value(fits))


def dynamic(pool):
    """A slice at a computed place, and an update there."""
    a, i = pool.value(lambda t: t.ndim >= 1), pool.value(lambda t: t.ndim == 1, INT)
    if a is None or i is None:
        return
    dim = pool.integer(0, pool.types[a].ndim - 1)
    size = max(1, pool.types[a].shape[dim] // 2)
    if pool.choice((True, False)):
        pool.add(
            f"dynamic slice {dim}",
            lambda x, at: jax.lax.dynamic_slice_in_dim(x, at[0], size, dim),
            a,
            i,
        )
    else:
        pool.add(
            f"dynamic update slice {dim}",
            lambda x, at: jax.lax.dynamic_update_slice_in_dim(
                x, 0.5 * jax.lax.slice_in_dim(x, 0, size, axis=dim), at[0], dim
            ),
            a,
            i,
        )


def gather(pool):
    a, i = pool.value(lambda t: t.ndim >= 1), pool.value(dtype=INT)
    if a is None or i is None:
        return
    dim = pool.integer(0, pool.types[a].ndim - 1)
    at = (slice(None),) * dim
    mode = pool.choice(("clip", "index", "fill"))
    if mode == "index":
        pool.add(f"index {dim}", lambda x, n: x[(*at, n)], a, i)
    elif mode == "clip":
        pool.add(f"take {dim}", lambda x, n: jnp.take(x, n, axis=dim, mode="clip"), a, i)
    else:
        pool.add(
            f"take {dim} filled",
            lambda x, n: x.at[(*at, n)].get(mode="fill", fill_value=0.5),
            a,
            i,
        )


def gather_pairs(pool):
    """Two index arrays at once."""
    a, i = pool.value(lambda t: t.ndim >= 2), pool.value(lambda t: t.ndim == 1, INT)
    if a is not None and i is not None:
        first = pool.choice((0, 1)) if pool.types[a].ndim > 2 else 0
        at = (slice(None),) * first
        pool.add(f"index {first} and {first + 1}", lambda x, n: x[(*at, n, n[::-1])], a, i)


def gather_along(pool):
    """One index for each row: a gather with batching dimensions."""
    a = pool.value(lambda t: t.ndim == 2)
    if a is None:
        return
    rows = pool.types[a].shape[0]
    i = pool.value(lambda t: t.shape[:1] == (rows,) and t.ndim <= 2, INT)
    pool.add(
        "take along 1",
        lambda x, n: jnp.take_along_axis(x, n.reshape(rows, -1), axis=1, mode="clip"),
        a,
        i,
    )


def one_hot(pool):
    a, i = pool.value(lambda t: t.ndim >= 1), pool.value(dtype=INT)
    if a is not None and i is not None:
        pool.add(
            "one hot @",
            lambda x, n: jnp.tensordot(jax.nn.one_hot(n, x.shape[0], dtype=x.dtype), x, 1),
            a,
            i,
        )


def scatter(pool):
    """Adds (or takes the largest of) updates at the places that an index array says."""
    i = pool.value(lambda t: t.ndim == 1, INT)
    u = pool.value(lambda t: i is not None and t.shape[:1] == pool.types[i].shape)
    if i is None or u is None:
        return
    rest = pool.types[u].shape[1:]
    kind = pool.choice(("into zeros", "into ones", "add", "max", "second"))
    if kind.startswith("into"):
        size, start = pool.choice((4, 8)), float(kind == "into ones")
        pool.add(
            f"scatter {kind} of {size}",
            lambda n, x: 0.5 * jnp.full((size, *rest), start, FLOAT).at[n].add(x),
            i,
            u,
        )
    elif kind == "second":
        pool.add(
            "scatter into dimension 1",
            lambda n, x: (
                jnp.zeros((3, 8, *rest), FLOAT)
                .at[:, n]
                .add(0.5 * jnp.broadcast_to(x, (3, *x.shape)))
            ),
            i,
            u,
        )
    else:
        a = pool.value(lambda t: t.ndim == 1 + len(rest) and t.shape[1:] == rest)
        pool.add(f"scatter {kind}", lambda x, n, y: getattr(x.at[n], kind)(0.5 * y), a, i, u)


def scatter_pairs(pool):
    i = pool.value(lambda t: t.ndim == 1, INT)
    u = pool.value(lambda t: i is not None and t.shape == pool.types[i].shape)
    if i is not None:
        pool.add(
            "scatter at pairs",
            lambda n, x: jnp.zeros((8, 8), FLOAT).at[n, n[::-1]].add(0.5 * x),
            i,
            u,
        )


def counting(pool):
    """Integers: sums, a division (which is not linear), counts, and back to floats."""
    i = pool.value(lambda t: t.ndim >= 1, INT)
    if i is None:
        return
    name, fn = pool.choice(
        {
            "integer sum": lambda n: jnp.sum(n, axis=0),
            "integer sum, divided": lambda n: jax.lax.div(jnp.sum(n, axis=0), jnp.int32(3)),
            "integer product": lambda n: jnp.prod(n % 5, axis=0),
            "any": lambda n: jnp.any(n > 3, axis=0).astype(INT),
            "all": lambda n: jnp.all(n > -3, axis=0).astype(INT),
            "bits": lambda n: jax.lax.reduce(n, np.int32(-1), jax.lax.bitwise_and, (0,)),
            "doubled": lambda n: 2 * n,
            "to float": lambda n: jnp.sum(n, axis=0).astype(FLOAT) * 0.01,
            "remainder": lambda n: n % 7,
        }.items()
    )
    pool.add(name, fn, i)


def scan(pool):
    """A loop over the rows of one value, with a carried value and maybe one read from outside."""
    a = pool.value(lambda t: t.ndim == 2)
    if a is None:
        return
    width = pool.types[a].shape[1]
    w = pool.value(lambda t: t.shape == (width, width))
    v = pool.value(lambda t: t.ndim == 2 and t.shape[1] == width)
    name, body, inputs = pool.choice(
        [
            ("decay", lambda c, row: (0.5 * c + row, c), (a,)),
            ("running largest", lambda c, row: (jnp.maximum(c, row), jnp.sum(c)), (a,)),
            ("recurrence", lambda c, row, w: (jnp.tanh(c @ w / width + row), c * row), (a, w)),
            ("rows against", lambda c, row, v: (jnp.tanh(c + row @ v.T @ v), row @ v.T), (a, v)),
        ]
    )

    def fn(x, *outside):
        step = lambda c, row: body(c, row, *outside)  # noqa: E731
        carried, stacked = jax.lax.scan(step, 0 * x[0], x)
        return carried + 0.1 * jnp.sum(stacked.reshape(len(x), -1), axis=0)[:1]

    pool.add(f"scan, {name}", fn, *inputs)


def layers(pool):
    """A stack of layers, applied one after the other in a loop."""
    w = pool.value(lambda t: t.ndim == 3 and t.shape[1] == t.shape[2])
    if w is None:
        return
    x = pool.value(lambda t: t.ndim == 2 and t.shape[1] == pool.types[w].shape[1])

    def fn(x, w):
        return jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer) + h, None), x, w)[0]

    pool.add("layers in a scan", fn, x, w)


def count_loop(pool):
    """Loops with a counter, of a known and of an unknown number of rounds."""
    a, i = pool.value(lambda t: t.ndim >= 1), pool.value(lambda t: t.ndim >= 1, INT)
    if pool.choice((True, False)):
        b = pool.value(lambda t: t.shape == pool.types[a].shape) if a is not None else None
        pool.add(
            "fori loop",
            lambda x, y: jax.lax.fori_loop(0, 3, lambda n, c: 0.5 * c + n * y, x),
            a,
            b,
        )
    else:
        pool.add(
            "while loop",
            lambda x, n: jax.lax.while_loop(
                lambda c: c[0] < jnp.max(n) % 4,
                lambda c: (c[0] + 1, jnp.tanh(c[1] - jnp.mean(c[1]))),
                (jnp.int32(0), x),
            )[1],
            a,
            i,
        )


def branch(pool):
    a, i = pool.value(lambda t: t.ndim >= 1), pool.value(lambda t: t.ndim >= 1, INT)
    if a is None or i is None:
        return
    b = pool.value(lambda t: t.shape == pool.types[a].shape)
    pool.add(
        "cond",
        lambda x, y, n: jax.lax.cond(
            jnp.sum(n) > 20, lambda: x + jnp.sum(y, 0), lambda: jnp.tanh(y)
        ),
        a,
        b,
        i,
    )


def convolution(pool):
    """Along the last dimension, of images `[N, C, W]`."""
    a = pool.value(lambda t: t.ndim == 3)
    if a is None:
        return
    channels = pool.types[a].shape[1]
    w = pool.value(lambda t: t.ndim == 3 and t.shape[1] == channels)
    groups = pool.choice((1, 2)) if channels % 2 == 0 else 1
    padding = pool.choice(("SAME", "VALID"))

    def fn(x, kernel):
        if groups == 2:  # each half of the kernels sees half of the channels
            kernel = kernel[: len(kernel) // 2 * 2, : channels // 2]
        made = jax.lax.conv_general_dilated(x, kernel, (1,), padding, feature_group_count=groups)
        return made / (channels * kernel.shape[-1])

    if w is None or pool.types[w].shape[0] < groups:
        return
    if padding == "SAME" or pool.types[w].shape[2] <= pool.types[a].shape[2]:
        pool.add(f"convolution {padding} {groups} groups", fn, a, w)


def windows(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    rank = pool.types[a].ndim
    dim = pool.integer(0, rank - 1)
    if pool.types[a].shape[dim] < 2:
        return
    shape = tuple(2 if d == dim else 1 for d in range(rank))
    name, init, combine = pool.choice(
        [("max", -np.inf, jax.lax.max), ("sum", np.float32(0), jax.lax.add)]
    )
    strides = shape if pool.choice((True, False)) else (1,) * rank

    def fn(x):
        return 0.5 * jax.lax.reduce_window(x, init, combine, shape, strides, "VALID")

    pool.add(f"windows, {name} {dim}", fn, a)


def ordering(pool):
    a = pool.value(lambda t: t.ndim >= 1)
    if a is None:
        return
    dim = pool.integer(0, pool.types[a].ndim - 1)
    name, fn = pool.choice(
        {
            "sort": lambda x: jnp.sort(x, axis=dim),
            "sort pairs": lambda x: jax.lax.sort((x, jnp.sin(x)), dimension=dim, num_keys=1)[1],
            "top 2": lambda x: jax.lax.top_k(x, min(2, x.shape[-1]))[0],
            "cumulative largest": lambda x: jax.lax.cummax(x, dim),
            "cumulative sum": lambda x: 0.1 * jnp.cumsum(x, dim),
        }.items()
    )
    pool.add(f"{name} {dim}", fn, a)


def batched(pool):
    """Linear algebra over batches, and Fourier transforms."""
    a = pool.value(lambda t: t.ndim >= 2)
    if a is None:
        return
    size = pool.types[a].shape[-1]
    name, fn = pool.choice(
        {
            "cholesky": lambda x: jnp.linalg.cholesky(
                jnp.einsum("...ik,...jk->...ij", x, x) / size + jnp.eye(x.shape[-2])
            ),
            "fourier": lambda x: jnp.abs(jnp.fft.fft(x) + 1) / size,
            "rows softmax": lambda x: jax.nn.softmax(x, axis=-2),
        }.items()
    )
    pool.add(name, fn, a)


OPERATIONS = [
    *(unary, unary, binary, binary, broadcasting, dot, dot, dot, square, square, transpose),
    *(split, merge, reduce, reduce, widen, sliced, reverse, pad, concatenate, dynamic),
    *(gather, gather, gather_pairs, gather_along, one_hot, scatter, scatter, scatter_pairs),
    *(counting, scan, scan, layers, count_loop, branch, convolution, windows, ordering, batched),
]


@st.composite
def programs(draw):
    """A function of a few arrays, with example arguments' types, and its text."""
    sizes = st.sampled_from([4, 8, 8, 16, 2, 6])
    shapes = draw(st.lists(st.lists(sizes, min_size=1, max_size=3), min_size=1, max_size=3))
    if draw(st.booleans()):
        shapes.append(draw(st.sampled_from([[8, 8], [4, 8, 8]])))
    floats = [jax.ShapeDtypeStruct(tuple(s), FLOAT) for s in shapes if math.prod(s) <= 1024]
    indices = draw(st.lists(st.lists(st.sampled_from([4, 8]), min_size=1, max_size=2), max_size=2))
    floats = floats or [jax.ShapeDtypeStruct((8, 8), FLOAT)]
    pool = Pool(draw, [*floats, *(jax.ShapeDtypeStruct(tuple(s), INT) for s in indices)])
    for _ in range(draw(st.integers(1, MOST_STEPS))):
        draw(st.sampled_from(OPERATIONS))(pool)
    used = {i for step in pool.steps for i in step.inputs}
    made = range(len(pool.arguments), len(pool.types))
    outputs = [i for i in made if i not in used or draw(st.integers(0, 5)) == 0] or [0]
    endless = any(step.text == "while loop" for step in pool.steps)  # has no gradient
    gradient = not endless and draw(st.integers(0, 3)) == 0
    return _function(pool, outputs, len(floats), gradient), pool.arguments, _text(pool, outputs)


def _function(pool, outputs, floats, gradient):
    def forward(*args):
        values = list(args)
        for step in pool.steps:
            values.append(step.fn(*(values[i] for i in step.inputs)))
        return [values[i] for i in outputs]

    def loss(weights, *rest):
        return sum(jnp.sum(jnp.tanh(v.astype(FLOAT))) for v in forward(*weights, *rest))

    def backward(*args):
        return jax.value_and_grad(loss)(args[:floats], *args[floats:])

    return backward if gradient else forward


def _text(pool, outputs):
    lines = [f"%{i} = argument {t.dtype}{list(t.shape)}" for i, t in enumerate(pool.arguments)]
    for number, step in enumerate(pool.steps, len(pool.arguments)):
        inputs = ", ".join(f"%{i}" for i in step.inputs)
        lines.append(f"%{number} = {step.text}({inputs}) : {list(pool.types[number].shape)}")
    return "\n".join([*lines, f"return {', '.join(f'%{i}' for i in outputs)}"])


# --------------------------------------------------------------------------- random schedules


@st.composite
def schedules(draw, arguments, mesh):
    """Some tactics on dimensions of the arguments."""
    axes = [part.partition("=")[0] for part in mesh.split(",")]
    tactics = []
    for _ in range(draw(st.integers(1, MOST_TACTICS))):
        axis, resolve = draw(st.sampled_from(axes)), draw(st.sampled_from([None, 0]))
        number = draw(st.integers(-1, len(arguments) - 1))
        if number < 0:
            patterns = {"result*": [draw(st.integers(0, 2))]}
        else:
            rank = len(arguments[number].shape)
            patterns = {f"args[{number}]": draw(st.sampled_from([*range(rank), "replicate"]))}
        tactics.append(pt.ManualPartition(patterns, axis, resolve))
    if draw(st.integers(0, 5)) == 0:
        tactics.append(pt.AutomaticPartition(budget=20, seed=draw(st.integers(0, 9))))
    return tactics


def example_arguments(arguments, seed):
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.shape, dtype=np.float32)
        if t.dtype == FLOAT
        else rng.integers(-9, 18, t.shape, dtype=np.int32)
        for t in arguments
    ]


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_a_partitioned_program_equals_the_original(data):
    fn, arguments, text = data.draw(programs())
    mesh = data.draw(st.sampled_from(MESHES))
    tactics = data.draw(schedules(arguments, mesh))
    note(
        f"{text}\nmesh {mesh}\n"
        + "\n".join(t.name + f" resolve={getattr(t, 'resolve', '')}" for t in tactics)
    )
    check(fn, arguments, mesh, tactics)


def make_plan(fn, arguments, mesh, tactics):
    try:
        return pt.plan(fn, *arguments, mesh=mesh, hardware="cpu", tactics=tactics)
    except pt.TacticError:  # there is no conflict to resolve
        tactics = [
            dataclasses.replace(t, resolve=None) if isinstance(t, pt.ManualPartition) else t
            for t in tactics
        ]
        return pt.plan(fn, *arguments, mesh=mesh, hardware="cpu", tactics=tactics)


def check(fn, arguments, mesh, tactics):
    args = example_arguments(arguments, 0)
    plan = make_plan(fn, arguments, mesh, tactics)
    placed = plan.shard(*args)
    compiled = plan.jit().lower(*placed).compile()
    comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
    original = jax.tree.leaves(jax.jit(fn)(*args))
    for mine, theirs in zip(jax.tree.leaves(compiled(*placed)), original, strict=True):
        scale = max(1.0, float(np.nanmax(np.abs(theirs), initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE * scale)
    assert comparison.equal, f"\n{comparison}\n{plan.spmd}"


# ------------------------------------------------------------- what random programs rarely reach


def looked_up(index_dtype):
    """A look-up, and an addition, at the places that narrow integers say."""

    def fn(table, indices):
        rows = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
        found = jax.lax.gather(table, indices, rows, (1, table.shape[1]))
        into = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
        return found, jax.lax.scatter_add(table, indices, jnp.tanh(found), into)

    indices = np.array([[3], [100], [127], [3]], index_dtype)
    return fn, [np.arange(512 * 4, dtype=np.float32).reshape(512, 4) / 512, indices]


def of_numbers(fn, dtype):
    """A function of 16 x 8 numbers and of 4 row numbers."""
    numbers = np.arange(16 * 8).reshape(16, 8) % 23 - 7
    if dtype == np.complex64:
        numbers = numbers * (1 - 0.5j)
    return fn, [numbers.astype(dtype), np.array([3, -1, 8, 3], np.int32)]


RARE = {
    "narrow signed indices": looked_up(np.int8),
    "narrow unsigned indices": looked_up(np.uint8),
    "complex sums": of_numbers(lambda x, i: jnp.sum(x, 0), np.complex64),
    "complex look-ups": of_numbers(lambda x, i: x[i], np.complex64),
    "complex additions at places": of_numbers(lambda x, i: x.at[i].add(2 + 1j), np.complex64),
    "boolean look-ups": of_numbers(lambda x, i: (x > 0)[i], np.int32),
    "bits of integers": of_numbers(
        lambda x, i: [
            jax.lax.reduce(x, np.int32(-1), jax.lax.bitwise_and, (0,)),
            jax.lax.reduce(x, np.int32(0), jax.lax.bitwise_or, (0,)),
            jax.lax.reduce(x, np.int32(0), jax.lax.bitwise_xor, (0,)),
        ],
        np.int32,
    ),
    "bits of bytes": of_numbers(
        lambda x, i: jax.lax.reduce(x, np.uint8(255), jax.lax.bitwise_and, (0,)), np.uint8
    ),
    "all and any": of_numbers(lambda x, i: (jnp.all(x > -7, 0), jnp.any(x > 14, 0)), np.int32),
    "a divided sum of integers": of_numbers(
        lambda x, i: jax.lax.div(jnp.sum(x, 0), jnp.int32(5)), np.int32
    ),
    "a sum of bytes that wraps": of_numbers(
        lambda x, i: jnp.sum(x, 0, dtype=jnp.int8).astype(FLOAT), np.int8
    ),
    "a slice of nothing": of_numbers(lambda x, i: (x[:0], x[:, :0]), np.float32),
    "half precision": of_numbers(lambda x, i: jnp.max(x, 0) * jnp.min(x, 0), np.float16),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", RARE)
def test_rare_operations(name, dim):
    """Exact: what is summed are small whole numbers."""
    fn, args = RARE[name]

    def named(numbers, places):
        return fn(numbers, places)

    tactics = [
        pt.ManualPartition({"numbers": dim}, axis="y"),
        pt.ManualPartition({"places": 0}, axis="x"),
    ]
    plan = pt.plan(named, *args, mesh="x=2,y=4", hardware="cpu", tactics=tactics)
    ours, theirs = plan.jit()(*args), jax.jit(fn)(*args)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        np.testing.assert_allclose(mine, their, rtol=1e-6)
