"""What cannot be split: the history says who requires replication, and what that costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import array, planner
from partita.stablehlo.rules import registry as custom
from partita.text import relative
from partita.verify import compare

HERE = relative(__file__)
ROWS = [pt.ManualPartition({"x": 0}, axis="a")]


plan = planner(mesh="a=4", hardware="cpu", tactics=ROWS)


@pytest.fixture(autouse=True)
def rule(monkeypatch):
    """Registers a rule for one test; those of others do not count."""
    monkeypatch.setattr(custom, "RULES", {})
    return pt.register_rule


NEEDING = {
    # function of x [32, 16], whose first dimension is sharded: the operation and its reason
    "cumulative": (lambda x: lax.cumlogsumexp(x, 0), "reduce_window", "reads windows"),
    "fft": (lambda x: jnp.fft.fft(x, axis=0), "fft", "requires replication of this dimension"),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 0))), "pad", "moves elements along"),
    "slice": (lambda x: x[1:8], "slice", "moves elements along"),
    "sort": (lambda x: jnp.sort(x, 0), "sort", "requires replication of this dimension"),
    "windows": (
        lambda x: jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 3))(jnp.arange(4)),
        "gather",
        "reads or writes windows along this dimension",
    ),
    "reshape": (lambda x: x.T.reshape(2, -1), "reshape", "inner factor of a dimension made of"),
    "qr": (
        jnp.linalg.qr,
        "custom_call lapack_sgeqrf_ffi",
        "_ffi requires replication of this dimension",
    ),
    "solve": (
        lambda x: jax.scipy.linalg.solve_triangular(jnp.eye(16), x.T),
        "custom_call lapack_strsm_ffi",
        "_ffi requires replication of this dimension",
    ),
}


@pytest.mark.parametrize("name", NEEDING)
def test_the_history_says_who_requires_replication_and_what_is_gathered(name):
    fn, operation, reason = NEEDING[name]
    p = plan(lambda x: fn(x), array(32, 16))
    (entry,) = p.history
    use = next(use for use in entry.replicated_uses if use.operation == operation)
    assert reason in use.reason
    assert use.source.startswith(f"{HERE}:")
    gathered = sum(c.bytes * c.count for c in p.collectives if c.kind == "all_gather")
    assert sum(use.bytes for use in entry.replicated_uses) == gathered > 0
    assert f"replicated {operation} at {use.source} requires replication of dim" in str(p)


def test_what_the_line_says():
    def ordered(x):
        return jnp.sort(jnp.tanh(x), 0)

    line = ordered.__code__.co_firstlineno + 1
    here = f"{HERE}:{line}"
    (use,) = plan(ordered, array(32, 16)).history[0].replicated_uses
    assert str(use) == (
        f"sort at {here} requires replication of dim 0 of tanh at {here}, gathers 2048 B: "
        "sort requires replication of this dimension"
    )


def test_what_is_gathered_once_is_counted_once():
    def twice(x):
        ordered = jnp.sort(x, 0)
        return ordered, jnp.argsort(x, 0)

    first, second = plan(twice, array(32, 16)).history[0].replicated_uses
    assert (first.bytes, second.bytes) == (32 * 16 * 4, 0)
    assert "already gathered" in str(second)


def test_lines_in_loops_count_as_often_as_they_run():
    def loop(x):
        return lax.fori_loop(0, 5, lambda i, h: jnp.sort(jnp.tanh(h), 0) + x, x)

    (use,) = plan(loop, array(32, 16)).history[0].replicated_uses
    assert use.bytes == 5 * 32 * 16 * 4


def test_a_result_that_is_made_replicated_and_cut():
    def made(x):
        return jnp.sort(x, 0)

    tactic = pt.ManualPartition({"result": 0}, axis="a")
    p = plan(made, array(32, 16), tactics=[tactic])
    (use,) = p.history[0].replicated_uses
    assert not p.collectives and use.made
    assert "makes dim 0 of result replicated on every device: sort requires" in str(use)


def test_each_tactic_has_its_own():
    columns = pt.ManualPartition({"x": 1}, axis="b")
    p = plan(lambda x: jnp.fft.fft2(x), array(32, 16), mesh="a=2,b=2", tactics=[*ROWS, columns])
    assert [[use.dim for use in entry.replicated_uses] for entry in p.history] == [[0], [1]]


# ------------------------------------------------------------------------------- custom calls

QR = "lapack_sgeqrf_ffi"


def qr(x):
    """LAPACK's QR decomposition of matrices; JAX's own says what its batch is, this does not."""
    return jax.ffi.ffi_call(
        QR,
        (x, jax.ShapeDtypeStruct(x.shape[:-1], x.dtype)),
        input_layouts=[(0, 2, 1)],
        output_layouts=[(0, 2, 1), (0, 1)],
    )(x)


@pytest.fixture
def matrices():
    return jax.random.normal(jax.random.key(0), (16, 8, 8))


def run_and_compare(p, fn, *args):
    placed = p.shard(*args)
    compiled = p.jit().lower(*placed).compile()
    assert compare(p.collectives, p.mesh, compiled.as_text()).equal
    for mine, their in zip(compiled(*placed), jax.jit(fn)(*args), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-5, atol=1e-5)


def test_an_unknown_custom_call_is_run_whole_priced_and_named(matrices):
    p = plan(qr, matrices)
    assert [c.kind for c in p.collectives] == ["all_gather"]
    (use,) = p.history[0].replicated_uses
    assert use.operation == f"custom_call {QR}"
    assert (use.bytes, use.reason) == (16 * 8 * 8 * 4, "no sharding rule is known")
    assert f"Replicated, for lack of a sharding rule:\n  custom_call {QR} at " in str(p)
    run_and_compare(p, qr, matrices)


def test_a_custom_call_with_a_rule_is_split(rule, matrices):
    rule(QR, "batch rows! columns! -> batch rows! columns!, batch .")
    p = plan(qr, matrices)
    assert not p.collectives and not p.history[0].replicated_uses
    assert p.out_shardings == (jax.sharding.PartitionSpec("a"),) * 2
    run_and_compare(p, qr, matrices)


def test_what_a_rule_marks_as_whole_is_gathered(rule, matrices):
    rule(QR, "batch rows! columns! -> batch rows! columns!, batch .")
    p = plan(qr, matrices, tactics=[pt.ManualPartition({"x": 1}, axis="a")])
    assert [c.kind for c in p.collectives] == ["all_gather"]
    assert p.history[0].replicated_uses[0].reason == f"{QR} requires replication of this dimension"
    run_and_compare(p, qr, matrices)


def test_sums_over_a_split_dimension_are_added(rule):
    rule("my_matmul", "m k+, k+ n -> m n")

    def product(x, w):
        return jax.ffi.ffi_call("my_matmul", array(32, 8))(x, w)

    features = pt.ManualPartition({"x": 1}, axis="a")
    p = plan(product, array(32, 16), array(16, 8), tactics=[features])
    assert p.in_shardings[1] == jax.sharding.PartitionSpec("a")
    assert [str(c).partition(":")[0] for c in p.collectives] == ["#0 all_reduce(a) 1024 B x1"]


def test_a_rule_that_does_not_fit_its_call(rule, matrices):
    rule(QR, "batch rows! -> batch rows!, batch")
    with pytest.raises(pt.RuleError, match=f"of {QR} has 2 dimensions for operand 0, which is f32"):
        plan(qr, matrices)
