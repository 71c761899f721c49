"""Every family of models: the tiny preset runs split, equals the original, and exchanges what was
predicted.

Float32, and the tolerance of `tests/plan/test_equivalence.py` and its reasons. Discontinuous
models (routing, max pooling) are compared after one step: later, a near-tie may fall to the other
side because a sum was taken in another order.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

import partita as pt
from partita import models
from partita.verify import compare

TOLERANCE = 1e-5

BATCH = pt.ManualPartition({"batch*": 0}, axis="data")

PRESETS = {
    # preset: steps to run
    "gpt-tiny": 2,
    "mlp": 2,
    "llama-tiny": 2,
    "gemma-tiny": 2,
    "moe-tiny": 1,
    "vit-tiny": 2,
    "unet-tiny": 1,
    "gns-tiny": 2,
    "decode-tiny": 1,
    "decode-mq-tiny": 1,
    "resnet-tiny": 1,
    "ssm-tiny": 2,
    "t5-tiny": 2,
}

SCHEDULES = {
    "data parallel": [BATCH],
    "automatic": [pt.AutomaticPartition(budget=60)],
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_model_runs_split_as_it_runs_whole(preset, schedule):
    if schedule == "automatic" and preset == "unet-tiny":
        pytest.skip("compiling it once is enough")
    model = models.build(preset, dtype="float32")
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        # Little memory, so that a search has to split something.
        hardware="tpu_v5e",
        memory="100kB",
        tactics=SCHEDULES[schedule],
        donate_argnums=model.donate_argnums,
    )
    state, batch = model.example(0)
    ours, our_batch = plan.shard(*model.example(0))
    compiled = plan.jit().lower(ours, our_batch).compile()

    comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
    assert comparison.equal, f"\n{comparison}"

    original = jax.jit(model.fn)
    for _ in range(PRESETS[preset]):
        state, out = original(state, batch)
        ours, our_out = compiled(ours, our_batch)
    pairs = zip(jax.tree.leaves((state, out)), jax.tree.leaves((ours, our_out)), strict=True)
    for expected, got in pairs:
        expected, got = np.asarray(expected, np.float64), np.asarray(got, np.float64)
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_every_family_is_covered():
    families = {model.rpartition("-")[0] or model for model in PRESETS}
    assert len(models.FAMILIES) == 12
    for name in models.names():
        models.build(name)
    assert {"gpt", "llama", "gemma", "moe", "vit", "unet", "gns", "decode", "ssm", "t5"} <= families
