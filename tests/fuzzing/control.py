"""Operations that run blocks of others: loops, branches, maps, derivatives; nested in any way."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fuzzing import deciding, elements, indexing, shapes, sums
from fuzzing.blocks import (
    Run,
    block,
    captured,
    carried,
    handed_on,
    loosened,
    results_of,
    row_of,
    runs,
    squashed,
)
from fuzzing.pool import (
    BF16,
    COMPLEX,
    DEEPEST,
    FLOAT,
    INT,
    NUMBERS,
    REAL,
    WHOLE,
    Operation,
    Pool,
    Value,
    like,
    rank,
)

# ------------------------------------------------------------------------------ loops


def scan(pool: Pool) -> None:
    """Over one or several stacks, carrying values, giving stacks."""
    first = pool.value(rank(1), NUMBERS)
    if first is None:
        return
    length = first.shape[0]
    same = pool.suitable(lambda v: v.ndim >= 1 and v.shape[0] == length, NUMBERS)
    stacks = [first, *pool.some([v for v in same if v is not first], 0, 2)]
    carries, outside = carried(pool), captured(pool)
    inner = block(pool, [*map(loosened, carries), *map(row_of, stacks), *outside])
    nexts = [handed_on(inner, c) for c in inner.arguments[: len(carries)]]
    stacked = results_of(inner) if pool.chance(80) or not carries else []
    run = runs(inner, [*(v for v, _ in nexts), *stacked])
    reverse, unroll = pool.chance(30), pool.choice((1, 1, 1, 2, min(length, 4)))

    def fn(*values):
        start, rest = values[: len(carries)], values[len(carries) :]
        xs, fixed = rest[: len(stacks)], rest[len(stacks) :]

        def body(carry, rows):
            made = run(*carry, *rows, *fixed)
            following = zip(made, (squash for _, squash in nexts), strict=False)
            return [squashed(*pair) for pair in following], made[len(carries) :]

        return jax.lax.scan(body, list(start), xs, reverse=reverse, unroll=unroll)

    text = f"scan, {len(carries)} carried, {len(stacks)} stacks, back {reverse}, unroll {unroll}"
    pool.add(text, fn, *carries, *stacks, *outside, inner=(inner,))


def mapped(pool: Pool) -> None:
    """`lax.map`, one row or a batch of rows at a time."""
    a, outside = pool.value(rank(1), NUMBERS), captured(pool)
    if a is None:
        return
    inner = block(pool, [row_of(a), *outside])
    results = results_of(inner)
    if not results:
        return
    run, size = runs(inner, results), pool.choice((None, None, 2))
    pool.add(
        f"map, batches of {size}",
        lambda x, *fixed: jax.lax.map(lambda row: run(row, *fixed), x, batch_size=size),
        a,
        *outside,
        inner=(inner,),
    )


def counted(pool: Pool) -> None:
    """A loop that counts: from a constant to a constant, or to a number that is not known."""
    carries, outside = carried(pool, 3), captured(pool)
    if not carries:
        return
    counter = Value(jax.ShapeDtypeStruct((), INT))
    inner = block(pool, [counter, *map(loosened, carries), *outside])
    nexts = [handed_on(inner, c) for c in inner.arguments[1 : 1 + len(carries)]]
    run = runs(inner, [v for v, _ in nexts])
    start, rounds = pool.choice((0, 0, 1)), pool.choice((0, 1, 2, 3, 5))
    limit = pool.value(rank(0, 1), [INT]) if pool.chance(30) else None

    def fn(*values):
        fixed = values[len(carries) : len(carries) + len(outside)]

        def body(i, carry):
            made = run(jnp.asarray(i), *carry, *fixed)
            return [squashed(v, squash) for v, (_, squash) in zip(made, nexts, strict=True)]

        stop = start + rounds if limit is None else jnp.max(values[-1]) % 5
        return jax.lax.fori_loop(start, stop, body, list(values[: len(carries)]))

    known = "" if limit is None else " of unknown length"
    inputs = [*carries, *outside, *([] if limit is None else [limit])]
    pool.add(f"loop {start} + {rounds}{known}", fn, *inputs, inner=(inner,))


def accumulated(pool: Pool) -> None:
    """A loop that starts from zeros and goes on adding sums over a dimension: gradients, say."""
    a = pool.value(rank(2), [FLOAT])
    if a is None:
        return
    narrow, also = pool.chance(30), pool.choice(("nothing", "nothing", "reads", "gives", "ones"))
    decay, negated, twice = pool.choice((1.0, 1.0, 0.5)), pool.chance(30), pool.chance(30)

    def fn(x):
        def body(total, row):
            row = row.astype(BF16) if narrow else row
            part = jnp.tensordot(jnp.tanh(row), row, (0, 0)) / row.size
            part = part.astype(FLOAT)
            if also == "reads":
                part = part + jnp.tanh(total) * 0.1
            following = decay * total - part if negated else decay * total + part
            return following + part if twice else following, total if also == "gives" else None

        shape = x.shape[2:] * 2
        start = jnp.ones(shape) if also == "ones" else jnp.zeros(shape)
        made = jax.lax.scan(body, start, x)
        return jax.tree.map(lambda v: v.astype(BF16) if narrow else v, made)

    text = f"accumulated, narrow {narrow}, {also}, decay {decay}, {negated}, {twice}"
    pool.add(text, fn, a)


def layers(pool: Pool) -> None:
    """A stack of layers, applied one after the other in a loop."""
    w = pool.value(lambda v: v.ndim == 3 and v.shape[1] == v.shape[2], [FLOAT])
    x = pool.value(lambda v: w is not None and v.ndim == 2 and v.shape[1] == w.shape[1], [FLOAT])
    again = pool.chance(40)

    def layer(h, weights):
        return jnp.tanh(h @ weights) + h

    def fn(x, w):
        step = jax.checkpoint(layer) if again else layer
        return jax.lax.scan(lambda h, weights: (step(h, weights), None), x, w)[0]

    pool.add(f"layers in a scan, checkpoint {again}", fn, x, w)


def cache(pool: Pool) -> None:
    """A loop that writes a row of a carried cache in each round, and reads what is there."""
    kept = pool.value(rank(2, 3), [FLOAT])
    if kept is None:
        return
    dim = pool.integer(0, kept.ndim - 1)
    shape = (*kept.shape[:dim], *kept.shape[dim + 1 :])
    row = pool.value(lambda v: v.shape == shape, [FLOAT])
    i = pool.value(rank(0, 1), [INT])
    rounds = pool.choice((2, 3, kept.shape[dim]))

    def fn(kept, row, at):
        def body(carry, position):
            kept, row = carry
            kept = jax.lax.dynamic_update_index_in_dim(kept, row, position, dim)
            seen = jnp.arange(kept.shape[dim]) <= position
            seen = seen.reshape(-1, *(1,) * (kept.ndim - 1 - dim))
            row = jnp.tanh(row + jnp.sum(jnp.where(seen, kept, 0), dim) / kept.shape[dim])
            return (kept, row), jnp.sum(row)

        positions = at.reshape(-1)[0] % 3 + jnp.arange(rounds)
        return jax.lax.scan(body, (kept, row), positions)

    pool.add(f"cache along {dim}, {rounds} rounds", fn, kept, row, i)


def associative(pool: Pool) -> None:
    a = pool.value(rank(1), [FLOAT])
    if a is None:
        return
    dim, reverse = pool.integer(0, a.ndim - 1), pool.chance(30)
    if pool.chance(50):

        def combine(left, right):
            return left[0] * right[0], right[0] * left[1] + right[1]

        b = pool.value(like(a), [FLOAT])
        pool.add(
            f"linear recurrence along {dim}",
            lambda x, y: jax.lax.associative_scan(
                combine, (jnp.tanh(x), y), reverse=reverse, axis=dim
            ),
            a,
            b,
        )
    else:
        combine = pool.choice((jnp.maximum, lambda x, y: jnp.tanh(x) + y))
        pool.add(
            f"associative scan along {dim}",
            lambda x: jax.lax.associative_scan(combine, x, reverse=reverse, axis=dim),
            a,
        )


# ------------------------------------------------------------------------------ branches


def branches(pool: Pool) -> None:
    """Two to four blocks of which one runs, by a number or by a condition."""
    number, operands = pool.value(rank(0, 2), [INT]), pool.some(pool.suitable(dtypes=NUMBERS), 1, 3)
    if number is None or not operands:
        return
    count = pool.choice((2, 2, 3, 4))
    inner = tuple(block(pool, operands) for _ in range(count))
    wanted = results_of(inner[0], 2) or [inner[0].arguments[0]]
    given = [[_chosen(b, v) for v in wanted] for b in inner[1:]]

    def branch(b: Pool, values: Sequence[Value | None]) -> Run:
        def fn(*args):
            made = iter(b.run(args, [v for v in values if v is not None]))
            return [
                jnp.full(want.shape, 0.5, want.dtype)
                if v is None and not jnp.issubdtype(want.dtype, jax.dtypes.prng_key)
                else jax.random.split(jax.random.key(5), want.shape)
                if v is None
                else next(made)
                for v, want in zip(values, wanted, strict=True)
            ]

        return fn

    functions = [branch(b, v) for b, v in zip(inner, [wanted, *given], strict=True)]

    def fn(n, *args):
        which = jnp.sum(n)
        if count == 2:
            return jax.lax.cond(which > 4, *functions, *args)
        return jax.lax.switch(which % (count + 1) - 1, functions, *args)

    pool.add(f"{count} branches", fn, number, *operands, inner=inner)


def _chosen(inner: Pool, wanted: Value) -> Value | None:
    found = [v for v in inner.values if v.type == wanted.type]
    return inner.choice(found) if found else None


# ------------------------------------------------------------------------------ maps


def batched(pool: Pool) -> None:
    """`vmap` of a block, over any dimension of one or several values."""
    first = pool.value(rank(1), NUMBERS)
    if first is None:
        return
    dim = pool.integer(0, first.ndim - 1)
    size = first.shape[dim]
    same = pool.suitable(lambda v: v is not first and size in v.shape, NUMBERS)
    others = pool.some(same, 0, 1)
    dims = [dim, *(pool.choice(d for d, s in enumerate(v.shape) if s == size) for v in others)]
    outside = captured(pool)
    given = [_without(v, d) for v, d in zip([first, *others], dims, strict=True)]
    inner = block(pool, [*given, *outside])
    results = results_of(inner)
    if not results:
        return
    run = runs(inner, results)
    axes = (*dims, *(None for _ in outside))
    out = [pool.integer(0, v.ndim) for v in results]
    # What depends on no mapped value is repeated.
    pool.add(
        f"vmap {axes} to {out}",
        lambda *args: jax.vmap(run, in_axes=axes, out_axes=out)(*args),
        first,
        *others,
        *outside,
        inner=(inner,),
    )


def _without(value: Value, dim: int) -> Value:
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    return Value(jax.ShapeDtypeStruct(shape, value.dtype), value.error)


# ------------------------------------------------------------------------------ functions


def function(pool: Pool) -> None:
    """A block under `jit`, called twice, or under `checkpoint` with some policy."""
    operands = pool.some(pool.suitable(dtypes=NUMBERS), 1, 3)
    if not operands:
        return
    inner = block(pool, operands)
    results = results_of(inner)
    if not results:
        return
    run = runs(inner, results)
    policies = jax.checkpoint_policies
    kind, wrapped = pool.choice(
        {
            "jit": jax.jit(run),
            "checkpoint": jax.checkpoint(run),
            "checkpoint of dots": jax.checkpoint(run, policy=policies.dots_saveable),
            "checkpoint of all": jax.checkpoint(run, policy=policies.everything_saveable),
        }.items()
    )
    pool.add(kind, wrapped, *operands, inner=(inner,))
    if kind == "jit":
        pool.add("jit, again", wrapped, *(pool.value(like(v), [v.dtype]) for v in operands))


def derivative(pool: Pool) -> None:
    """The gradient, or the tangent, of a block, with or without a rule of its own."""
    operands = pool.some(pool.suitable(dtypes=[FLOAT]), 1, 2)
    others = pool.some(pool.suitable(dtypes=WHOLE), 0, 1)
    if not operands:
        return
    inner = block(pool, [*map(loosened, operands), *others])
    results = results_of(inner, 2, {FLOAT, COMPLEX})
    if not results:
        return
    run, count = runs(inner, results), len(operands)
    rule = pool.choice((None, None, "vjp", "jvp"))

    def loss(floats, fixed):
        return total(_with_rule(rule, lambda *x: run(*x, *fixed))(*floats))

    def gradient(*args):
        return jax.value_and_grad(loss)(args[:count], args[count:])

    def tangent(*args):
        def bound(*x):
            return _with_rule(rule, lambda *y: run(*y, *args[count:]))(*x)

        return jax.jvp(bound, args[:count], tuple(jnp.cos(x) for x in args[:count]))

    kinds = {"gradient": gradient}
    if rule != "vjp":
        kinds["tangent"] = tangent
    kind, fn = pool.choice(kinds.items())
    # JAX has no derivative of some things: of a loop of unknown length, say.
    with contextlib.suppress(ValueError, NotImplementedError):
        pool.add(f"{kind}, rule {rule}", fn, *operands, *others, inner=(inner,))


def _with_rule(kind: str | None, fn: Run) -> Run:
    """A function with its own derivative, given by a custom rule."""
    if kind is None:
        return fn
    if kind == "jvp":
        with_jvp = jax.custom_jvp(fn)
        with_jvp.defjvp(lambda primals, tangents: jax.jvp(fn, primals, tangents))
        return with_jvp
    with_vjp = jax.custom_vjp(fn)
    with_vjp.defvjp(
        lambda *args: (fn(*args), args),
        lambda args, given: jax.vjp(fn, *args)[1](given),
    )
    return with_vjp


def total(values: Any) -> Any:
    """One number of all that can be differentiated."""
    arrays = map(jnp.asarray, jax.tree.leaves(values))  # some are Python scalars
    found = [v for v in arrays if v.dtype in {*REAL, COMPLEX}]
    return sum((jnp.sum(jnp.tanh(jnp.real(v).astype(FLOAT))) for v in found), jnp.float32(0))


OPERATIONS: tuple[Operation, ...] = (
    *(scan, scan, scan, mapped, counted, counted, layers, layers, layers, cache, cache),
    *(
        accumulated,
        accumulated,
        associative,
        branches,
        branches,
        batched,
        batched,
        function,
        derivative,
        derivative,
    ),
)

SIMPLE = (elements.OPERATIONS, shapes.OPERATIONS, sums.OPERATIONS, indexing.OPERATIONS)
CONTROL = (OPERATIONS, OPERATIONS, OPERATIONS, deciding.OPERATIONS)
KINDS = (*[(*SIMPLE, *SIMPLE, *CONTROL)] * DEEPEST, SIMPLE)
"""By depth, every operation, by module; those that run blocks do not fit everywhere and are drawn
more."""
