"""Small programs of kinds that models rarely have: loops and branches in each other, values that
nothing reads, no elements, no operations, narrow types, `shard_map` in different places.

Every one may be planned over any mesh; those with a `shard_map` are made for a mesh. They take
arguments of order one, so that loops which wait for a sum end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from checks import array
from partita.mesh import Mesh


class Unusual(NamedTuple):
    """A function, and the types of its arguments."""

    fn: Callable[..., Any]
    types: tuple[Any, ...]

    def arguments(self) -> tuple[Any, ...]:
        """Numbers between 0 and 1, or whole ones from 0 to 3."""
        rng = np.random.default_rng(0)

        def draw(type_: Any) -> Any:
            if jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
                return jax.random.split(jax.random.key(0), type_.shape)
            if jnp.issubdtype(type_.dtype, jnp.inexact):
                numbers = rng.uniform(0.1, 0.9, type_.shape)
                numbers = numbers * (1 + 0.5j) if type_.dtype == jnp.complex64 else numbers
            else:
                numbers = rng.integers(0, 4, type_.shape)
            return jnp.asarray(numbers).astype(type_.dtype)

        return jax.tree.map(draw, self.types)


X, W = array(16, 8), array(8, 8)
NUMBER, WHOLE = array(), array(dtype=jnp.int32)
KEYS = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))


def count(y):
    return lax.while_loop(lambda y: y < 10, lambda y: y + 1, y)


def solved(a, b):
    return jax.scipy.sparse.linalg.cg(lambda v: a @ v + 8 * v, b, maxiter=4)[0]


def loop_in_branch(row):
    def until(row):
        return lax.while_loop(lambda c: c.sum() < 10, lambda c: c + 1, row)

    return lax.cond(row[0] > 0.5, until, lambda row: -row, row)


def branch_in_loop_in_scan(xs, w):
    def grown(c):
        return lax.cond(c[0, 0] > 1, lambda c: c * 2, lambda c: c + jnp.abs(c @ w) + 1, c)

    def body(c, x):
        c = lax.while_loop(lambda c: jnp.max(c) < 3, grown, c)
        return jnp.tanh(c + x @ w), c.sum()

    return lax.scan(body, jnp.zeros((16, 8)), xs)


def scan_in_branch_in_scan(x):
    def inner(c):
        return lax.scan(lambda a, b: (a + b, None), c, x)[0]

    def body(c, row):
        return lax.cond(row[0] > 0.5, inner, lambda c: c, c), row

    return lax.scan(body, jnp.zeros(8), x)


def loop_in_loop(x):
    def body(c):
        halved = lax.while_loop(lambda d: jnp.sum(d) > 100, lambda d: d * 0.5, c[0] * 3)
        return halved, c[1] + 1

    return lax.while_loop(lambda c: c[1] < 3, body, (x, 0))[0]


def weights_in_a_branch(p, left, x, i):
    g = jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(p)
    left = 0.9 * left + g @ g.T
    return p - 0.1 * lax.cond(i % 10 == 0, lambda: left @ left, lambda: left) @ g, left


def average_now_and_then(p, mean, x, i):
    p = p - 0.1 * jax.grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(p)
    return p, lax.cond(i % 10 == 0, lambda: 0.9 * mean + 0.1 * p, lambda: mean)


def own_gradient(x, w):
    @jax.custom_vjp
    def f(x, w):
        return jnp.tanh(x @ w)

    f.defvjp(lambda x, w: (f(x, w), (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))
    return jax.value_and_grad(lambda w: (f(x, w) ** 2).mean())(w)


def training_in_a_scan(w, x):
    def loss(w):
        return (lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, w)[0] ** 2).mean()

    return lax.scan(lambda w, _: (w - 0.1 * jax.grad(loss)(w), loss(w)), w, None, length=2)


def sum_that_nothing_reads(x):
    def body(c):
        return c[0] + x.sum(), c[1] * 2, c[2] + 1

    return lax.while_loop(lambda c: c[2] < 3, body, (0.0, x, 0))[1]


def predicate_is_a_carried_sum(x):
    def body(c):
        return c[0] * 2, jnp.sum(c[0]) + 50

    return lax.while_loop(lambda c: c[1] < 1000.0, body, (x, 0.0))


def tied(table, i):
    def loss(table):
        return jax.nn.log_softmax(table[i] @ table.T)[:, :, 0].sum()

    return jax.grad(loss)(table)


PROGRAMS: dict[str, Unusual] = {
    name: Unusual(fn, types)
    for name, (fn, *types) in {
        # loops and branches
        "a loop per example": (jax.vmap(count), array(16)),
        "a solver per example": (jax.vmap(solved), array(16, 4, 4), array(16, 4)),
        "a loop in a branch per example": (jax.vmap(loop_in_branch), X),
        "a branch in a loop in a scan": (branch_in_loop_in_scan, array(4, 16, 8), W),
        "a scan in a branch in a scan": (scan_in_branch_in_scan, X),
        "a loop in a loop": (loop_in_loop, X),
        "a branch": (lambda x: lax.cond(x[0, 0] > 0.5, lambda x: x, lambda x: -x, x), X),
        "a branch of three": (
            lambda x, i: lax.switch(jnp.sum(i) % 3, [jnp.sin, jnp.cos, lambda y: y @ y.T @ y], x),
            *(X, array(16, dtype=jnp.int32)),
        ),
        "a branch of three per example": (
            jax.vmap(lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, lambda y: y * 2], x)),
            *(X, array(16, dtype=jnp.int32)),
        ),
        "a branch of numbers": (lambda x: lax.cond(x[0, 0] > 0, lambda: 1.0, lambda: 2.0), X),
        "a branch with a boolean argument": (
            lambda p, x: lax.cond(p, lambda: x.sum(0), lambda: x.max(0)),
            *(array(dtype=jnp.bool_), X),
        ),
        "a branch that nothing reads": (
            lambda x: lax.cond(x.sum() > 0, lambda: (x.sum(0), x * 2), lambda: (x.max(0), x))[1],
            X,
        ),
        "weights chosen by a branch": (
            lambda a, b, x, i: x @ lax.switch(i, [lambda: a, lambda: b]),
            *(W, W, X, WHOLE),
        ),
        "weights changed in a branch": (weights_in_a_branch, W, W, X, WHOLE),
        "weights averaged in a branch": (average_now_and_then, W, W, X, WHOLE),
        "training in a scan": (training_in_a_scan, array(3, 8, 8), X),
        "a sum that nothing reads": (sum_that_nothing_reads, X),
        "a predicate that is carried": (predicate_is_a_carried_sum, X),
        "a loop of no iterations": (lambda x: lax.fori_loop(0, 0, lambda i, c: c @ c, x), W),
        "a scan over nothing": (
            lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(8), x),
            array(0, 8),
        ),
        "a loop of unknown length": (
            lambda n, x: lax.fori_loop(0, n, lambda i, x: x * i, x),
            WHOLE,
            X,
        ),
        # gradients
        "a gradient of its own": (own_gradient, X, W),
        "a tied table": (tied, array(16, 8), array(4, 8, dtype=jnp.int32)),
        "rematerialised": (
            jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())(x)),
            X,
        ),
        # order, places and windows
        "sorted": (
            lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(x, 3), jnp.argmax(x)),
            X,
        ),
        "looked up": (
            lambda t, i: (t[i], t.at[i].add(1.0), t.at[i[:, 0]].max(0.5)),
            *(X, array(4, 2, dtype=jnp.int32)),
        ),
        "a convolution and its gradient": (
            jax.grad(lambda w, x: jnp.tanh(lax.conv(x, w, (1, 1), "SAME")).sum()),
            *(array(8, 4, 3, 3), array(2, 4, 8, 8)),
        ),
        "padded, cut and rolled": (
            lambda x: (jnp.pad(x, ((0, 1), (1, 2)))[3:, ::2], jnp.roll(x, 3, 0), x[::-1]),
            X,
        ),
        "a slice somewhere": (
            lambda x, i: (lax.dynamic_slice(x, (i, 0), (4, 8)), x.at[i].set(0)),
            *(X, WHOLE),
        ),
        "running": (lambda x: (jnp.cumsum(x, 0), lax.associative_scan(jnp.maximum, x)), X),
        # types
        "complex": (
            lambda x: (jnp.fft.fft(x), x @ x.T, jnp.abs(x).sum(0)),
            array(16, 8, dtype=jnp.complex64),
        ),
        "narrow floats": (
            lambda a, b: (lax.dot(a, b, preferred_element_type=jnp.float32), a.max(0)),
            *(array(16, 8, dtype=jnp.float8_e4m3fn), array(8, 8, dtype=jnp.float8_e4m3fn)),
        ),
        "bytes": (
            lambda a, b: (lax.dot(a, b, preferred_element_type=jnp.int32), a.sum(), (a > 0).any(0)),
            *(array(16, 8, dtype=jnp.int8), array(8, 8, dtype=jnp.int8)),
        ),
        "booleans": (
            lambda x: (x.all(), ~x, x.sum(0), jnp.where(x, 1, 2)),
            array(16, 8, dtype=jnp.bool_),
        ),
        "random keys": (jax.vmap(lambda k: jax.random.uniform(k, (8,))), KEYS),
        # shapes
        "no elements": (
            lambda x, y: (x.sum(1) + 1, jnp.concatenate([x, x]), y * 2),
            *(array(8, 0), array(8)),
        ),
        "one element each": (lambda x, y: (x * y, x @ x.T, y[0, 0]), array(1, 8), array(1, 1)),
        "no dimension divides": (lambda x: (x @ x.T, x.sum()), array(7, 11)),
        "many dimensions": (lambda x: x.sum((0, 3)) * 2, array(2, 2, 2, 2, 2, 2)),
        "single numbers": (lambda x, n: (jnp.sin(x) * x, n > 1), NUMBER, WHOLE),
        # hardly any program
        "an argument as it is": (lambda x: x, X),
        "an argument twice": (lambda x: (x, x), X),
        "an argument that nothing reads": (lambda x, y: x * 2, X, X),
        "of no arguments": (lambda: jnp.eye(8) @ jnp.ones((8, 4)),),
        "of no results": (lambda x: None, X),
        "of nothing": (lambda: (),),
    }.items()
}


def manual(mesh: str) -> dict[str, Unusual]:
    """Programs with a `shard_map` over a mesh, along its first axis."""
    sizes = dict(Mesh.of(mesh))
    devices = jax.make_mesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * len(sizes))
    (a, n), *others = sizes.items()
    rows = array(2 * n, 8)

    def over(specs: Any, out: Any, **keywords: Any) -> Callable[..., Any]:
        return lambda fn: jax.shard_map(fn, mesh=devices, in_specs=specs, out_specs=out, **keywords)

    @over(P(a), P(a))
    def ring(x):
        return lax.ppermute(x, a, [(i, (i + 1) % n) for i in range(n)])

    @over((P(a),), P())
    def total(x):
        return lax.psum(jnp.sum(x**2), a)

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.mean(ring(jnp.tanh(x @ w)) ** 2))(w)

    found = {
        "nothing exchanged": (over(P(a), P(a))(lambda x: 2 * x), rows),
        "nothing sharded": (over(P(), P())(lambda x: 2 * x), rows),
        "a ring": (ring, rows),
        "a gradient through a sum": (jax.grad(total), rows),
        "a train step with a ring": (step, W, rows),
        "a ring in a scan": (
            lambda w, x: lax.scan(lambda c, w: (ring(jnp.tanh(c @ w)), c.sum()), x, w),
            *(array(3, 8, 8), rows),
        ),
        "a ring in a branch": (lambda x: lax.cond(x[0, 0] > 0.5, ring, lambda x: x, x), rows),
        "of what is made from nothing": (
            lambda x: over(P(a), P(a))(jnp.sin)(jnp.arange(2.0 * n)) + x,
            array(2 * n),
        ),
        "two results": (
            over((P(a), P(None, a)), (P(a), P()))(lambda x, y: (2 * x, lax.psum(y.sum(), a))),
            *(rows, array(4, 2 * n)),
        ),
    }
    if others:
        b, m = others[0]
        found |= {
            "one dimension along two axes": (
                over(P((a, b)), P(a, b))(lambda x: x[:m].sum() + jnp.ones((n, m))),
                array(2 * n * m, 8),
            ),
            "turned around": (over(P(a, b), P(b, a))(lambda x: x.T), array(2 * n, 2 * m)),
            "manual over one axis": (
                over(P(a), P(a), axis_names={a})(lambda x: jnp.tanh(x @ x.T) @ x),
                array(4 * n, 8 * m),
            ),
            "a loop, manual over one axis": (
                over(P(a), P(a), axis_names={a})(
                    lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x)
                ),
                array(4 * n, 8 * m),
            ),
        }
    return {name: Unusual(fn, tuple(types)) for name, (fn, *types) in found.items()}
