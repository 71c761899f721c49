"""A search is never worse than the strategies that experts write, and starts from them."""

from __future__ import annotations

import pytest

import partita as pt
from partita import models
from partita.errors import PartitaError
from partita.models.strategies import BATCH, tensor_parallel
from partita.planning.schedule import run_schedule

TINY = [
    "mlp",
    "gpt-tiny",
    "llama-tiny",
    "gemma-tiny",
    "moe-tiny",
    "vit-tiny",
    "unet-tiny",
    "gns-tiny",
    "decode-tiny",
    "resnet-tiny",
    "ssm-tiny",
    "t5-tiny",
    "gemma2-tiny",
    "qwen3-tiny",
    "gpt-oss-tiny",
    "deepseek-tiny",
    "whisper-test",
    "vit-22b-tiny",
    "dit-tiny",
]
"""A model of every family but the largest, and the one that decodes."""

DATA, STATE = pt.DataParallel("data", BATCH), pt.ZeRO(3, "data")


def strategies(preset):
    """What experts write on two axes: by name, tactics."""
    widths = tensor_parallel(preset)
    both = (pt.DataParallel("data", BATCH), pt.DataParallel("model", BATCH))
    return {
        "data parallel": both,
        "FSDP over both axes": (*both, STATE, pt.ZeRO(3, "model")),
        "FSDP over one": (*both, STATE),
        "tensor parallel": (DATA, *widths),
        "tensor parallel and FSDP": (DATA, *widths, STATE),
        "tensor parallel and FSDP over both axes": (DATA, *widths, STATE, pt.ZeRO(3, "model")),
        "sequence parallel and FSDP": (DATA, pt.SequenceParallel("model"), STATE),
    }


def planned(preset, hardware):
    """A plan without tactics, whose program others can be made for."""
    model = models.build(preset)
    return pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        hardware=hardware,
        tactics=[],
        donate_argnums=model.donate_argnums,
    )


def step_time(done, tactics):
    """What a search counts on; None where tactics find nothing to shard, or it does not fit."""
    try:
        estimate = run_schedule(done.stage.context, tactics).estimate
    except PartitaError:
        return None
    share = done.stage.context.hardware.hidden_share.value
    return estimate.expected_time(share) if estimate.fits else None


@pytest.mark.parametrize(
    ("preset", "hardware"),
    [(preset, ("tpu_v5e", "h100")[number % 2]) for number, preset in enumerate(TINY)],
)
def test_no_ready_made_strategy_is_better_than_a_search(preset, hardware):
    done = planned(preset, hardware).done
    times = {name: step_time(done, tactics) for name, tactics in strategies(preset).items()}
    found = step_time(done, (pt.AutomaticPartition(budget=600),))
    assert {name: t for name, t in times.items() if t is not None and t < found} == {}


@pytest.mark.parametrize("preset", ["gpt-tiny", "llama-tiny", "moe-tiny", "decode-tiny"])
def test_what_experts_write_for_transformers_is_among_the_starts(preset):
    done = planned(preset, "tpu_v5e").done
    problem = pt.AutomaticPartition()._problem(done.stage)
    times = [problem.time(problem.replay(moves)) for moves in problem.starts]
    for name, tactics in strategies(preset).items():
        expected = step_time(done, tactics)
        assert any(time == pytest.approx(expected, rel=1e-9) for time in times), name
