"""Every family of models: the tiny preset runs split, equals the original, and exchanges what was
predicted. `make coverage-models` does the same for every schedule.

What counts as equal is said in `tools.coverage`.
"""

from __future__ import annotations

import functools

import pytest
from tools.coverage import Subject

from partita import models
from partita.models import strategies
from tools import coverage, largest, sizes

# Presets beside each other, so that the original of each runs once. All of them take minutes:
# here are FSDP and tensor parallelism of a few, and a search for all but the largest. The small GPT
# is in `tests/whole/test_equivalence.py`, under more schedules and meshes.
EXPERT = {"mlp", "moe-tiny", "decode-tiny", "deepseek-tiny", "whisper-test"}
LARGE = {"unet-tiny", "sdxl-tiny"}
CASES = [
    (preset, schedule)
    for preset in coverage.PRESETS
    if preset != "gpt-tiny"
    for schedule in strategies.SCHEDULES
    if {
        "data-parallel": True,
        "fsdp": preset in EXPERT,
        "tensor-parallel": preset in EXPERT,
        "automatic": preset not in LARGE,
    }[schedule]
]

TINY = ("gpt-tiny", "gns-tiny", "decode-tiny", "resnet-tiny", "deepseek-tiny", "dit-tiny")
"""Presets whose sizes are measured again; of all, parameters are: `tests/models/test_zoo.py`."""

subject = functools.cache(Subject)


@pytest.mark.parametrize(
    ("preset", "schedule"),
    [pytest.param(*case, marks=pytest.mark.xdist_group(case[0])) for case in CASES],
)
def test_a_model_runs_split_as_it_runs_whole(preset, schedule):
    cell = subject(preset).check(schedule, budget=60)
    assert cell.passed, f"{cell.failed}: {cell.reason}"
    assert list(cell.seconds) == list(coverage.STEPS)
    assert cell.difference <= 1
    assert cell.collectives or preset.startswith("decode")  # which shares nothing between examples


@pytest.mark.parametrize(
    "preset", [pytest.param(preset, marks=pytest.mark.xdist_group(preset)) for preset in TINY]
)
def test_the_list_of_sizes_is_what_is_measured(preset):
    assert models.sizes.load()[preset] == sizes.measured(preset)


@pytest.mark.parametrize("presets", [coverage.PRESETS, largest.LARGEST])
def test_every_family_is_covered(presets):
    assert set(map(models.family, presets)) == set(models.FAMILIES)
