"""The table of what does not fit by its layouts: planned, and beside a schedule by hand."""

from __future__ import annotations

from tools.fits import HEAD, Problem, by_hand, row

import partita as pt

SMALL = Problem(
    "a small GPT", "gpt-tiny", 16, "data=2", "tpu_v5e", (pt.DataParallel("data"),), "4MiB"
)


def test_a_row_has_the_plan_and_the_schedule_by_hand():
    cells = dict(zip(HEAD, row(SMALL, budget=100), strict=True))
    assert cells["layouts alone"].endswith("of 4.0 MiB")
    assert cells["micro-batches"] == "Microbatch(4)"
    assert "with" in cells["by hand"]


def test_schedules_by_hand_are_those_that_fit():
    found = dict(by_hand(SMALL))
    assert found and 1 not in found
    assert all(plan.estimate.fits for plan in found.values())
