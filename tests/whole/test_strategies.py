"""Searches rediscover the strategies that experts write by hand. Structure is asserted, for
several seeds."""

from __future__ import annotations

from collections import Counter

import pytest

import partita as pt
from partita import models

LAYERS = 4
SIZES = {
    "layers": LAYERS,
    "batch": 64,
    "sequence": 512,
    "embed": 1024,
    "kv_heads": 16,
    "head_dim": 64,
    "v_dim": 64,
    "ffn": 4096,
    "vocabulary": 1024,
}
SEEDS = (0, 1, 2)


def plan(mesh, tactics, memory=None, **sizes):
    model = models.build("gpt-small", **SIZES | sizes)
    return pt.plan(
        model.fn,
        *model.args,
        mesh=mesh,
        hardware="tpu_v5e",
        tactics=tactics,
        donate_argnums=0,
        memory=memory,
    )


def layouts(p, pattern):
    """The layouts of the arguments whose name contains a pattern."""
    names = p.program.argument_names
    return {
        tuple(p.mesh.axis_names(axes) for axes in layout)
        for name, layout in zip(names, p.spmd.argument_layouts, strict=True)
        if pattern in name
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_megatron_is_found_behind_data_parallelism(seed):
    # One sequence for each group of the data axis, so that no batch is left to split further.
    sizes = {"batch": 4, "embed": 2048, "head_dim": 128, "v_dim": 128, "ffn": 8192}
    p = plan(
        "data=4,model=4",
        [
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.AutomaticPartition(axes=["model"], seed=seed),
        ],
        **sizes,
    )
    # Heads and ffn are split, column then row; of the output projection the heads, or each of them.
    for weight, expected in {
        "['params']['layers'][0]['wq']": [((), ("model",), ())],
        "['params']['layers'][0]['wo']": [(("model",), (), ()), ((), ("model",), ())],
        "['params']['layers'][0]['w_in']": [((), ("model",))],
        "['params']['layers'][0]['w_out']": [(("model",), ())],
    }.items():
        (layout,) = layouts(p, weight)
        assert layout in expected, weight
    # Two sums of activations a layer for the ffn: an all_reduce each, or with sequence parallelism
    # a reduce_scatter and an all_gather. Attention does likewise, or exchanges positions for heads
    # where its weights can be gathered under the computation.
    activation = SIZES["sequence"] * sizes["embed"] * 2
    moved = Counter((c.kind, c.bytes) for c in p.collectives if c.axes == ("model",))
    sums = moved["all_reduce", activation] + moved["reduce_scatter", activation]
    assert 2 * LAYERS <= sums <= 4 * LAYERS
    ffn = sizes["embed"] * sizes["ffn"] * 2
    assert not any(size >= ffn for _, size in moved)
    assert p.estimate.step_time <= megatron(sizes).estimate.step_time


def megatron(sizes):
    """What an expert would write."""
    split = {"*['wq']": 1, "*['w_in']": 1}
    return plan(
        "data=4,model=4",
        [
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.ManualPartition(split, axis="model"),
            pt.ManualPartition({"batch*": 1}, axis="model", resolve=0),
        ],
        **sizes,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_state_is_sharded_when_memory_is_too_small_for_replicas(seed):
    replicated = plan("data=8", [pt.ManualPartition({"batch*": 0}, axis="data")])
    state = sum(replicated.program.values[v].type.bytes for v in replicated.program.arguments)
    memory = replicated.estimate.peak_memory - state // 2
    assert memory < replicated.estimate.peak_memory
    p = plan("data=8", [pt.AutomaticPartition(seed=seed)], memory=memory)
    assert p.estimate.fits
    # The state is split, gradients are scattered, weights gathered before use.
    assert p.estimate.argument_memory < state // 2
    kinds = Counter(c.kind for c in p.collectives)
    assert kinds["reduce_scatter"] >= 4 * LAYERS
    assert kinds["all_gather"] >= 4 * LAYERS
    assert layouts(p, "batch") == {(("data",), ())}


@pytest.mark.parametrize("seed", SEEDS)
def test_data_parallelism_is_found_with_plenty_of_memory_and_a_large_batch(seed):
    p = plan("x=8", [pt.AutomaticPartition(seed=seed)], memory="1TB")
    assert layouts(p, "batch") == {(("x",), ())}
    # Activations never travel: what is exchanged are parameters and gradients, and the loss.
    parameters = {
        p.program.values[v].type.elements
        for name, v in zip(p.program.argument_names, p.program.arguments, strict=True)
        if "params" in name
    }
    for c in p.collectives:
        elements = c.bytes // (2 if c.dtype == "bf16" else 4)
        assert elements in parameters | {1}, c


def test_equal_seeds_give_equal_plans():
    first, second = (
        plan("data=4,model=2", [pt.AutomaticPartition(seed=7, budget=200)]) for _ in range(2)
    )
    assert first.spmd.argument_layouts == second.spmd.argument_layouts
    assert first.estimate == second.estimate


def test_when_nothing_fits_the_smallest_plan_is_returned_and_says_so():
    p = plan("data=2", [pt.AutomaticPartition(budget=300)], memory="1MiB")
    assert not p.estimate.fits
    (refusal,) = p.history[0].refused
    assert refusal.what == "fitting into memory"
    assert "DOES NOT FIT" in str(p)
    bigger = plan("data=2", [pt.ManualPartition({"batch*": 0}, axis="data")], memory="1MiB")
    assert p.estimate.peak_memory < bigger.estimate.peak_memory
