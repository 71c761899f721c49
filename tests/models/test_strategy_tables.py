"""The strategies of the built-in models split what they say, and cost what arithmetic says."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

import partita as pt
from partita import models
from partita.models.strategies import schedule


@functools.cache
def plan(preset, name):
    model, wanted = models.build(preset, dtype="float32"), schedule(preset, name)
    return pt.plan(
        model.fn,
        *model.args,
        mesh=wanted.mesh,
        hardware="tpu_v5e",
        tactics=wanted.tactics,
        donate_argnums=model.donate_argnums,
    )


def counts(preset, name):
    return Counter((c.kind, c.axes) for c in plan(preset, name).collectives)


# Two sums for every pair of a column and a row matrix, one on the way forward and one backward.
@pytest.mark.parametrize(
    ("preset", "sums"),
    [
        # Two pairs, of which nothing lies before the first: its way back is not taken.
        ("mlp", 2 * 2 - 1),
        # Two layers of two pairs; looking up a split vocabulary, and back from it; its softmax
        # needs a maximum, a sum, and the logit of the target.
        ("gpt-tiny", 2 * 2 * 2 + 2 + 3),
        ("llama-tiny-unrolled", 2 * 2 * 2 + 2 + 3),
        ("vit-tiny", 2 * 2 * 2),
        # Two blocks, the middle one of three convolutions before the last.
        ("resnet-tiny", 2 * 2),
    ],
)
def test_tensor_parallelism_sums_twice_for_every_pair_of_matrices(preset, sums):
    found = counts(preset, "tensor-parallel")
    assert {kind for kind, _ in found} == {"all_reduce"}
    assert found["all_reduce", ("model",)] == sums


@pytest.mark.parametrize("preset", ["mlp", "llama-tiny-unrolled"])
def test_fsdp_splits_all_that_is_learned(preset):
    p = plan(preset, "fsdp")
    whole = [
        name
        for name, layout in zip(p.program.argument_names, p.spmd.argument_layouts, strict=True)
        if not any(layout) and not name.endswith(".count")
    ]
    assert whole == []
    parameters = sum("['params']" in name for name in p.program.argument_names)
    assert counts(preset, "fsdp")["reduce_scatter", ("data",)] == parameters


def test_experts_go_to_different_devices():
    p = plan("moe-tiny", "tensor-parallel")
    layouts = dict(zip(p.program.argument_names, p.spmd.argument_layouts, strict=True))
    for name, split in {
        "w_gate": 1,
        "w_up": 1,
        "w_down": 1,
        "shared_up": 2,
        "shared_down": 1,
        "wo": 1,
        "wk": 2,
    }.items():
        layout = layouts[f"state['params']['layers']['{name}']"]
        assert layout == tuple((1,) if dim == split else () for dim in range(len(layout))), name


def test_a_schedule_has_a_name():
    with pytest.raises(pt.ModelError, match="expected data-parallel, fsdp, "):
        schedule("mlp", "data parallel")
