"""Every schedule on every mesh: the partitioned step is the original step, and its collectives
are those predicted.

Tolerance: everything runs in float32, where sums taken in another order differ in the last bits,
about 1e-6 of a loss near 6. Adam divides by the root of the second moment, which turns noise of
relative size 1e-7 in a small gradient into steps that differ by a small part of the learning rate
(1e-3); after three steps that is below 1e-5 for every parameter. A wrong collective shows up as
1e-3 and more.
"""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest

import partita as pt
from checks import compiled
from partita import models
from partita.verify import compare

LOSS_TOLERANCE = 1e-5
STATE_TOLERANCE = 1e-5
STEPS = 3

BATCH = {"batch*": 0}
MEGATRON = {"*['wq']": 1, "*['wk']": 1, "*['wv']": 1, "*['w_in']": 1}
SEQUENCE = {"batch*": 1}
# The embed dimension of every parameter; optimizer state and gradients follow.
EMBED = {
    "*['params']['embed']": 1,
    "*['params']*['ln*']": 0,
    "*['params']*['wq']": 0,
    "*['params']*['wk']": 0,
    "*['params']*['wv']": 0,
    "*['params']*['wo']": 2,
    "*['params']*['w_in']": 0,
    "*['params']*['w_out']": 1,
}


def manual(patterns, *axes):
    return [pt.ManualPartition(patterns, axis=axis) for axis in axes]


# For each mesh, the axes of data parallelism and that of tensor parallelism.
MESHES = {
    "data=8": (("data",), None),
    "model=8": ((), "model"),
    "data=4,model=2": (("data",), "model"),
    "replica=2,data=2,model=2": (("replica", "data"), "model"),
}

SCHEDULES = {
    "data parallel": lambda data, model: manual(BATCH, *data),
    "megatron": lambda data, model: manual(BATCH, *data) + manual(MEGATRON, model),
    "megatron + sequence": lambda data, model: (
        manual(BATCH, *data) + manual(MEGATRON, model) + manual(SEQUENCE, model)
    ),
    "fsdp": lambda data, model: manual(BATCH, *data) + manual(EMBED, *data),
    "fsdp + megatron": lambda data, model: (
        manual(BATCH, *data) + manual(MEGATRON, model) + manual(EMBED, *data)
    ),
    "automatic": lambda data, model: [pt.AutomaticPartition(budget=300)],
}

CASES = [
    (schedule, mesh)
    for schedule in SCHEDULES
    for mesh, (data, model) in MESHES.items()
    if not ("megatron" in schedule and model is None)
    and not (schedule in ("data parallel", "fsdp") and not data)
    and not (schedule == "fsdp + megatron" and not data)
]


@functools.cache
def original():
    """Losses and final state of the unpartitioned step."""
    model = models.build("gpt-tiny", dtype="float32")
    state, batch = model.example(0)
    step, losses = compiled(jax.jit(model.fn), state, batch), []
    for _ in range(STEPS):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return model, losses, jax.device_get(state)


def test_fsdp_gathers_and_scatters_every_parameter_once():
    model, _, _ = original()
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=8",
        hardware="tpu_v5e",
        tactics=SCHEDULES["fsdp"](("data",), None),
        donate_argnums=0,
    )
    parameters = len(jax.tree.leaves(model.args[0]["params"]))
    assert plan.spmd.counts() == {
        "all_gather": parameters,
        "reduce_scatter": parameters,
        "all_reduce": 1,
    }


@pytest.mark.parametrize(("schedule", "mesh"), CASES)
def test_partitioned_step_equals_original_and_collectives_are_as_predicted(schedule, mesh):
    model, losses, state = original()
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh=mesh,
        hardware="tpu_v5e",
        tactics=SCHEDULES[schedule](*MESHES[mesh]),
        donate_argnums=0,
    )
    ours, batch = plan.shard(*model.example(0))
    program = compiled(plan.jit(), ours, batch)

    comparison = compare(plan.collectives, plan.mesh, program.as_text())
    assert comparison.equal, f"\n{comparison}"

    our_losses = []
    for _ in range(STEPS):
        ours, loss = program(ours, batch)
        our_losses.append(float(loss))
    np.testing.assert_allclose(our_losses, losses, rtol=0, atol=LOSS_TOLERANCE)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        mine = functools.reduce(lambda tree, key: _child(tree, key), path, ours)
        np.testing.assert_allclose(
            np.asarray(mine), leaf, rtol=0, atol=STATE_TOLERANCE, err_msg=str(path)
        )


def _child(tree, key):
    if isinstance(key, jax.tree_util.GetAttrKey):
        return getattr(tree, key.name)
    return tree[key.key if isinstance(key, jax.tree_util.DictKey) else key.idx]


def test_every_donated_buffer_is_aliased():
    model, _, _ = original()
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        tactics=SCHEDULES["fsdp + megatron"](("data",), "model"),
        donate_argnums=0,
    )
    text = compiled(plan.jit(), *model.args).as_text()
    header = re.search(r"input_output_alias=\{(.*?)\}, entry", text)[1]
    assert header.count("-alias") == len(jax.tree.leaves(model.args[0]))


def test_shardings_serve_plain_jax_jit():
    model, losses, _ = original()
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        tactics=SCHEDULES["megatron"](("data",), "model"),
    )
    mesh = plan.device_mesh()
    with jax.set_mesh(mesh):
        step = jax.jit(model.fn, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
        _, loss = step(*plan.shard(*model.example(0)))
    np.testing.assert_allclose(float(loss), losses[0], rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_that_are_reduced_after_their_transpose_equal_the_originals(dtype):
    def update(w, x, y):
        dimensions = (((0,), (0,)), ((1,), (1,)))  # sums over rows, for each of a batch
        return w - jax.lax.dot_general(y, x, dimensions).transpose(0, 2, 1)

    shapes = (3, 16, 8), (32, 3, 16), (32, 3, 8)
    keys = jax.random.split(jax.random.key(0), 3)
    args = [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)]
    tactics = [pt.ManualPartition({"x": 0, "y": 0}, "data"), pt.ManualPartition({"w": 1}, "data")]
    plan = pt.plan(update, *args, mesh="data=4", hardware="tpu_v5e", tactics=tactics)
    assert [c.kind for c in plan.collectives] == ["reduce_scatter"]
    assert plan.collectives[0].value.startswith("transpose")
    found, expected = (f(*args).astype(float) for f in (plan.jit(), update))
    np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == "float32" else 0.5)
