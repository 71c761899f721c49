"""Every family of models: the tiny preset runs split, equals the original, and exchanges what was
predicted.

Float32. Moments of the optimizer (which are sums of gradients), losses and outputs may differ by
5e-4 of the largest element, and by 1e-6 where all cancel: sums are taken in another order. A step
of Adam divides by the root of the second moment, so where a gradient is zero but for rounding a
parameter moves by any part of the learning rate, 1e-3: single parameters may differ by half of
that, which the moments do not hide. One step is compared: later, a near-tie in routing or max
pooling may fall to the other side.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import partita as pt
from partita import models
from partita.verify import compare

RELATIVE = 5e-4
PARAMETER = 5e-4
ROUNDING = 1e-6

BATCH = pt.ManualPartition({"batch*": 0}, axis="data")

PRESETS = [
    "gpt-tiny",
    "mlp",
    "llama-tiny",
    "gemma-tiny",
    "moe-tiny",
    "vit-tiny",
    "unet-tiny",
    "gns-tiny",
    "decode-tiny",
    "decode-mq-tiny",
    "resnet-tiny",
    "ssm-tiny",
    "t5-tiny",
]

SCHEDULES = {
    "data parallel": [BATCH],
    "automatic": [pt.AutomaticPartition(budget=60)],
}

# Presets beside each other, so that the original of each runs once; the largest once in all.
CASES = [
    (preset, schedule)
    for preset in PRESETS
    for schedule in SCHEDULES
    if (preset, schedule) != ("unet-tiny", "automatic")
]


def random_state(state):
    """A train state of random parameters, moments zero; quicker than compiling `init`."""
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        moment = any(getattr(key, "name", "") in ("mu", "nu") for key in path)
        if moment or not np.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, state)


@functools.cache
def original(preset):
    """The model, its arguments, and what the unpartitioned step makes of them."""
    model = models.build(preset, dtype="float32")
    start = random_state(model.args[0])
    batch = model.example_batch(0)
    return model, start, batch, jax.device_get(jax.jit(model.fn)(start, batch))


@pytest.mark.parametrize(("preset", "schedule"), CASES)
def test_a_model_runs_split_as_it_runs_whole(preset, schedule):
    model, start, batch, expected = original(preset)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        memory="100kB",  # so little that a search has to split what it can
        tactics=SCHEDULES[schedule],
        donate_argnums=model.donate_argnums,
    )
    state, our_batch = plan.shard(start, batch)
    compiled = plan.jit().lower(state, our_batch).compile()

    comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
    assert comparison.equal, f"\n{comparison}"

    got = dict(jax.tree_util.tree_leaves_with_path(compiled(state, our_batch)))
    for path, wanted in jax.tree_util.tree_leaves_with_path(expected):
        wanted = np.asarray(wanted, np.float64)
        is_parameter = getattr(path[1] if len(path) > 1 else None, "key", "") == "params"
        largest = np.max(np.abs(wanted), initial=0.0)
        tolerance = PARAMETER if is_parameter else RELATIVE * largest + ROUNDING
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(got[path]), wanted, 0, tolerance, err_msg=name)


def test_every_family_is_covered():
    covered = {model.fn.args[0].__class__ for model in map(models.build, PRESETS)}
    every = {models.build(name).fn.args[0].__class__ for name in models.names()}
    assert covered == every
    assert len(every) == len(models.FAMILIES)
