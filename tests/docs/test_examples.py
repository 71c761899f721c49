"""The examples, beside the same steps unpartitioned."""

import runpy
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINING = [
    "equinox_mlp.py",
    "flax_linen.py",
    "flax_nnx.py",
    "haiku_mlp.py",
    "orbax_checkpoint.py",
]


def load(name):
    """The names that a script defines."""
    return runpy.run_path(str(EXAMPLES / name))


def numbers(leaf):
    """A leaf as numbers; typed random keys as their data."""
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_example_does_what_its_step_does_unpartitioned(name, capsys):
    example = load(name)
    state, losses = example["main"]()
    assert capsys.readouterr().out.endswith(f"losses {losses[0]} {losses[1]} {losses[2]}\n")

    step, expected = jax.jit(example["train_step"]), jax.jit(example["init"])(jax.random.key(0))
    for number, loss in enumerate(losses):
        expected, expected_loss = step(expected, example["make_batch"](number))
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    pairs = list(zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True))
    for ours, theirs in pairs:
        # Adam makes steps of 1e-2 whatever the gradient's size, and so magnifies its rounding.
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-4, atol=1e-4)
    # The state stays in pieces from beginning to end, and most of it is split.
    split = [ours for ours, _ in pairs if not ours.is_fully_replicated]
    assert sum(leaf.size for leaf in split) > 0.5 * sum(ours.size for ours, _ in pairs)


def test_a_checkpoint_is_restored_in_the_pieces_of_the_plan(tmp_path):
    example = load("orbax_checkpoint.py")
    init, make_plan = example["init"], example["make_plan"]
    saved = init(jax.random.key(1))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", saved)
        checkpointer.wait_until_finished()
        plan = make_plan("data=2,model=4")
        restored = checkpointer.restore(tmp_path / "state", plan.abstract()[0])
    (wanted,) = plan.shard(saved)
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
        assert ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours, theirs)
    assert restored[0]["up"].addressable_shards[0].data.shape == (32, 32)
