"""Calls back to the host: kept where they give nothing back, else refused by their line."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.shard_alike import shard_alike

import partita as pt
from checks import assert_same, numbers

HERE = Path(__file__).name
X = numbers(16, 8)


def jit(fn, **more):
    return pt.jit(fn, mesh="data=4", hardware="cpu", tactics=pt.DataParallel(), **more)


def calls(fn, x):
    """What a planned function returns, and what its callbacks have heard."""
    heard = []
    made = jit(lambda x: fn(x, heard.append))(x)
    jax.effects_barrier()
    return made, heard


def debugged(x, hear):
    jax.debug.callback(hear, jnp.sum(x))
    return 2 * x


def in_order(x, hear):
    jax.debug.callback(hear, jnp.sum(x), ordered=True)
    jax.debug.callback(hear, jnp.max(x), ordered=True)
    return 2 * x


def written(x, hear):
    io_callback(hear, None, jnp.sum(x))
    return 2 * x


def nested(x, hear):
    return jax.jit(lambda x: debugged(x, hear))(x)


def differentiated(x, hear):
    def total(x):
        jax.debug.callback(hear, jnp.sum(x))
        return jnp.sum(x**2)

    return jax.grad(total)(x)


def sharded(x, hear):
    jax.debug.callback(hear, x)
    return 2 * x


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (debugged, [X.sum()]),
        (in_order, [X.sum(), X.max()]),
        (written, [X.sum()]),
        (nested, [X.sum()]),
        (differentiated, [X.sum()]),
        (sharded, [X]),
    ],
)
def test_a_callback_is_called_once_with_whole_arrays(fn, expected):
    made, heard = calls(fn, X)
    assert_same(made, jnp.asarray(2 * X))
    assert len(heard) == len(expected)
    for ours, wanted in zip(heard, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)


def test_prints_print(capsys):
    def fn(x):
        jax.debug.print("mean {:.3f}", jnp.mean(x))
        return jnp.sum(x)

    run = jit(fn)
    run(X), run(X)
    jax.effects_barrier()
    assert capsys.readouterr().out == f"mean {np.mean(X):.3f}\n" * 2
    (plan,) = run.plans.values()
    assert (plan.out_shardings, plan.jit().eval_shape(X).shape) == (jax.P(), ())
    assert_same(plan.core.run(X), jnp.sum(X))


def test_a_planned_function_with_callbacks_is_a_part_of_others():
    heard = []
    run = jit(lambda x: debugged(x, heard.append))
    assert_same(jax.jit(lambda x: run(x) + 1)(X), jnp.asarray(2 * X + 1))
    assert_same(jax.grad(lambda x: jnp.sum(run(x)))(jnp.asarray(X)), jnp.full_like(X, 2))
    jax.effects_barrier()
    assert len(heard) == 2


def in_a_loop(x):
    def body(i, x):
        jax.debug.print("i {}", i)
        return 2 * x

    return jax.lax.fori_loop(0, 2, body, x)


def in_a_branch(x):
    def printed(x):
        jax.debug.print("positive")
        return 2 * x

    return jax.lax.cond(jnp.sum(x) > 1e6, printed, lambda x: 4 * x, x)


def inspected(x):
    jax.debug.inspect_array_sharding(x, callback=print)
    return 4 * x


def alike(x):
    first, second = shard_alike(x, 3 * x)
    return first + second


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (in_a_loop, rf"jax.debug.print at .*{HERE}:\d+ is left out .*inside of a scan"),
        (in_a_branch, rf"jax.debug.print at .*{HERE}:\d+ is left out .*inside of a cond"),
        (inspected, rf"jax.debug.inspect_array_sharding at .*{HERE}:\d+ .*plan.explain"),
        (alike, rf"jax.experimental.shard_alike at .*{HERE}:\d+ .*partita.constrain"),
    ],
)
def test_what_is_left_out_is_a_warning_with_its_line(fn, message):
    with pytest.warns(pt.PartitaWarning, match=message):
        assert_same(jit(fn)(X), jnp.asarray(4 * X))


def calls_numpy(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def row_by_row(x):
    shape = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return jax.vmap(lambda x: jax.pure_callback(np.sin, shape, x, vmap_method="sequential"))(x)


def reads(x):
    return x + io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))


def checks(x):
    return eqx.error_if(x, jnp.any(x > 100), "too large")


@pytest.mark.parametrize(
    ("fn", "what", "remedy"),
    [
        (calls_numpy, "jax.pure_callback", "compute it with jax.numpy, or outside"),
        (row_by_row, "jax.pure_callback", "compute it with jax.numpy, or outside"),
        (reads, "jax.experimental.io_callback", "compute it with jax.numpy, or outside"),
        (checks, "equinox.error_if", "set EQX_ON_ERROR=nan"),
    ],
)
def test_a_callback_that_gives_something_back_is_refused_by_its_line(fn, what, remedy):
    line = fn.__code__.co_firstlineno
    with pytest.raises(
        pt.UnsupportedError, match=f"{re.escape(what)} at .*{HERE}:.*{remedy}"
    ) as error:
        jit(fn)(X)
    assert int(re.search(rf"{HERE}:(\d+)", str(error.value))[1]) in range(line, line + 3)


def test_the_remedy_for_checks_of_equinox_works():
    checked = jit(lambda x: eqx.error_if(x, jnp.any(x > 100), "too large", on_error="nan"))
    assert_same(checked(X), jnp.asarray(X))
