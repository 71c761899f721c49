"""What XLA's GPU compiler stores, one experiment a row: a function, and the large arrays of it that
kernels write to memory.

Predictions are tested against these rows everywhere, the compiler itself where it is installed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import partita as pt


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A function of arguments of these types, as `bf16[4,8]`."""

    rule: str
    fn: Callable[..., Any]
    types: tuple[str, ...]
    stored: tuple[str, ...]
    """Type and number of elements of what kernels write, the largest first: `bf16 4096x2048`."""
    devices: tuple[str, ...] = ("h100", "a100_80gb")
    """Where it is so."""

    def __str__(self) -> str:
        return self.rule


def gradients(loss):
    """Of all numbers that the function takes."""

    def fn(*args):
        numbers = [n for n, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.floating)]
        return jax.grad(loss, numbers)(*args)

    return fn


def total(x):
    return jnp.sum(x.astype(jnp.float32) ** 2)


def attention(q, k, v):
    scores = jnp.einsum("bqk,bsk->bqs", q, k).astype(jnp.float32)
    return jnp.einsum("bqs,bsk->bqk", jax.nn.softmax(scores).astype(q.dtype), v)


ROWS_OF_SOFTMAX = [("b200", 2048, False), ("b200", 2176, True), ("h100", 2176, False)]
"""Devices, rows of an `attention`, and whether a softmax of them stores an exponential."""


OPERATIONS = {
    "tanh": jnp.tanh,
    "sine": jnp.sin,
    "log_plus_one": jnp.log1p,
    "exponential_minus_one": jnp.expm1,
    "cbrt": jnp.cbrt,
    "sqrt": jnp.sqrt,
}

COSTLY = {
    "h100": {"tanh", "sine", "log_plus_one", "exponential_minus_one", "cbrt"},
    "v100": {"tanh", "sine", "log_plus_one", "exponential_minus_one", "cbrt"},
    "a100_80gb": {"tanh"},
}
"""Which of the operations two kernels that read the result do not both compute."""


def reduced_twice(operation):
    """Rows and columns of what an operation makes, which no single kernel reduces."""

    def fn(x):
        y = OPERATIONS[operation](x)
        return jnp.sum(y, 1), jnp.max(y, 0)

    return fn


def cross_entropy(x, w, y):
    logits = (x @ w).astype(jnp.float32)
    label = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - label)


X, W = "bf16[4096,2048]", "bf16[2048,2048]"
XS, WS = "bf16 4096x2048", "bf16 2048x2048"


def rows_added(x, w, ws, rows):
    """A product, a loop, and a scatter of what the loop makes into the product."""
    large = jnp.tanh(x @ w)
    product = x.T @ large
    last = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), large @ w.T, ws)[0]
    return product.at[rows].add(last[:512, :1]), last


ROWS_ADDED = (X, "bf16[2048,32768]", "bf16[7,2048,2048]", "i32[512]")


def scattered(x, ws, rows):
    """A loop, and a scatter of what it makes into zeros."""
    last = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]
    return jnp.zeros((2**15, 2048), x.dtype).at[rows].add(last)


SCATTERED = (X, "bf16[7,2048,2048]", "i32[4096]")


def narrowed(x, ws):
    """A loop that reads the layers of a stack in a narrower type."""
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w.astype(h.dtype)), None), x, ws)[0]


NARROWED = (X, "f32[7,2048,2048]")


def grouped_attention(x, wq, wk, wv, wo):
    q = jnp.einsum("bsd,dhgk->bshgk", x, wq)
    k, v = jnp.einsum("bsd,dhk->bshk", x, wk), jnp.einsum("bsd,dhk->bshk", x, wv)
    scores = jnp.einsum("bqhgk,bshk->bhgqs", q, k).astype(jnp.float32) * 0.1
    place = jnp.arange(x.shape[1])
    scores = jnp.where(place[:, None] >= place[None, :], scores, -1e30)
    mixed = jnp.einsum("bhgqs,bshk->bqhgk", jax.nn.softmax(scores).astype(x.dtype), v)
    return total(jnp.einsum("bqhgk,hgkd->bqd", mixed, wo))


GROUPED = (
    "bf16[4,1024,1024]",
    "bf16[1024,8,1,128]",
    "bf16[1024,8,128]",
    "bf16[1024,8,128]",
    "bf16[8,1,128,1024]",
)


def gelu(x, w, v):
    return total(jax.nn.gelu(x @ w) @ v)


GELU = ("bf16[4096,512]", "bf16[512,8192]", "bf16[8192,512]")


EXPERIMENTS = [
    Experiment(
        "a product reads what is converted from memory",
        lambda x, w: x @ w.astype(jnp.bfloat16),
        (X, "f32[2048,2048]"),
        (XS, WS),
    ),
    Experiment(
        "a product reads what is transposed as it lies",
        lambda x, w: jnp.sin(x @ w.T) @ w,
        (X, W),
        (XS, XS, XS),
    ),
    Experiment(
        "a product makes its result transposed",
        lambda x, w: jnp.sin((x @ w).T) @ x,
        (X, W),
        (XS, XS, WS),
    ),
    Experiment(
        "a product adds a bias",
        lambda x, w, b: jnp.sin(x @ w + b) @ w,
        (X, W, "bf16[2048]"),
        (XS, XS, XS),
    ),
    Experiment(
        "a product adds an array",
        lambda x, w: (x @ w + x) @ w,
        (X, W),
        (XS, XS),
    ),
    Experiment(
        "what is done before a product is stored",
        lambda x, w: jnp.maximum(x * 2, 0) @ w,
        (X, W),
        (XS, XS),
    ),
    Experiment(
        "of a softmax between products, what goes in and what comes out",
        attention,
        ("bf16[16,1024,64]",) * 3,
        ("bf16 16x1024x1024",) * 2,
        devices=("h100", "a100_80gb", "h200", "b200"),
    ),
    Experiment(
        "and of its gradient as much again",
        gradients(lambda *args: total(attention(*args))),
        ("bf16[16,1024,64]",) * 3,
        ("bf16 16x1024x1024",) * 4,
    ),
    Experiment(
        "and an exponential, where reading one takes less than computing it again",
        gradients(lambda *args: total(attention(*args))),
        ("bf16[16,1024,64]",) * 3,
        ("f32 16x1024x1024", *["bf16 16x1024x1024"] * 4),
        devices=("b200", "h200"),
    ),
    Experiment(
        "a tanh is not computed twice",
        gradients(gelu),
        GELU,
        ("bf16 4096x8192",) * 5,
        devices=("h100",),  # others have no arithmetic in bf16, and store it in f32
    ),
    Experiment(
        "a logistic function is",
        gradients(lambda x, w, v: total(jax.nn.silu(x @ w) @ v)),
        ("bf16[4096,512]", "bf16[512,8192]", "bf16[8192,512]"),
        ("bf16 4096x8192",) * 4,
    ),
    Experiment(
        "logits are not stored in a wider form to be reduced",
        cross_entropy,
        ("bf16[4096,512]", "bf16[512,32768]", "i32[4096]"),
        ("bf16 4096x32768",),
    ),
    Experiment(
        "a scatter into zeros that is added to something changes that, in memory",
        gradients(cross_entropy),
        ("bf16[4096,512]", "bf16[512,32768]", "i32[4096]"),
        ("f32 4096x32768", "f32 4096x32768", "bf16 4096x32768", "bf16 4096x32768"),
    ),
]


def layered(dim):
    """A train step with a stack of four layers, whose weights are split along a dimension."""

    def step(ws, x):
        def loss(ws):
            layer = lambda h, w: (jnp.tanh(h @ w.astype(h.dtype)), None)  # noqa: E731
            return jnp.sum(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32))

        return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws))

    return pt.plan(
        step,
        jax.ShapeDtypeStruct((4, 1024, 1024), jnp.float32),
        jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16),
        mesh="data=2",
        hardware="h100",
        donate_argnums=0,
        tactics=[pt.ManualPartition({"x": 0}, "data"), pt.ManualPartition({"ws": dim}, "data")],
    )


def size(array):
    """Type and number of elements of `bf16 4096x2048`."""
    dtype, shape = array.split()
    return dtype, math.prod(map(int, shape.split("x")))


def bytes_of(dtype, elements):
    return elements * jnp.dtype({"bf16": "bfloat16", "f32": "float32"}[dtype]).itemsize


def large(found, experiment):
    """Those arrays, each a type and a number of elements, that are as large as the smallest that
    the experiment speaks of; the largest first."""
    least = min(bytes_of(*size(array)) for array in experiment.stored)
    known = [each for each in found if each[0] in ("bf16", "f32") and bytes_of(*each) >= least]
    return sorted(known, key=lambda each: (-bytes_of(*each), each))


def expected(experiment):
    return large([size(array) for array in experiment.stored], experiment)
