"""A tactic that makes the step slower, or divides no compute, says so, and where its axis ends."""

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner

plan = planner(mesh="data=4")
PARAMS = {"w": array(512, 2048), "v": array(2048, 8)}
BATCH = (array(1024, 512), array(1024, 8))
DATA = pt.DataParallel(axis="data")


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def shuffled(params, x, y, permutation):
    x, y = x[permutation], y[permutation]
    return loss(params, x, y)


def shuffled_by_key(params, x, y, key):
    return shuffled(params, x, y, jax.random.permutation(key, x.shape[0]))


LINE = shuffled.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("fn", "last"),
    [(shuffled, array(1024, dtype=jnp.int32)), (shuffled_by_key, array(2, dtype=jnp.uint32))],
)
def test_examples_that_are_shuffled_on_the_device_leave_the_step_slower(fn, last):
    (told,) = plan(fn, PARAMS, *BATCH, last, tactics=[DATA]).history[0].warnings
    assert told.startswith("the step is slower: compute ")
    assert told.endswith(f"data ends at gather at tests/plan/test_effect.py:{LINE}")


def test_the_report_shows_it():
    p = plan(shuffled, PARAMS, *BATCH, array(1024, dtype=jnp.int32), tactics=[DATA])
    assert "warning the step is slower" in str(p)


def test_a_tactic_that_is_worth_it_says_nothing():
    assert plan(loss, PARAMS, *BATCH, tactics=[DATA]).history[0].warnings == ()


def test_sharded_data_that_nothing_is_computed_from_divides_no_compute():
    tactics = [pt.ManualPartition({"y": 0}, axis="data")]
    p = plan(lambda x, y: (jnp.tanh(x), y[:1]), array(4096, 512), array(8), tactics=tactics)
    (told,) = p.history[0].warnings
    assert told.startswith("the step is slower: ") or told.startswith("divides no compute")


def test_memory_that_is_saved_for_time_is_told():
    def step(params, x):
        gradient = jax.grad(lambda p: jnp.mean((x @ p) ** 2))(params)
        return params - 0.1 * gradient

    tactics = [DATA, pt.FullyShardedDataParallel(axis="data")]
    p = plan(step, array(4096, 4096), array(64, 4096), tactics=tactics, donate_argnums=0)
    slower = p.history[1].estimate.step_time > 1.001 * p.history[1].before.step_time
    assert [("saves memory" in told) for told in p.history[1].warnings] == [True] * slower


def test_a_tactic_that_shards_nothing_says_only_that():
    tactics = [pt.ManualPartition({"x": 0}, axis="data")]
    p = plan(lambda x: jnp.tanh(x), array(6), tactics=tactics)
    assert p.history[0].warnings == () and p.history[0].refused
