"""The ablation of the search: each part is left out, and what that costs is shown."""

from __future__ import annotations

import pytest
from tools.methods.ablation import Found, command, iterated, measured, parts, slower
from tools.methods.cases import Case, Problems


def test_every_phase_is_left_out_once():
    known = parts()
    for phase in iterated.PHASES:
        ((_, _, rest),) = known[f"phase {phase.__name__}"]
        assert len(rest) == len(iterated.PHASES) - 1 and phase not in rest


def test_what_is_left_out_is_back_afterwards():
    before = iterated.PHASES
    problems = Problems()
    case = Case("mlp", "2x2", "tpu_v5e", "tight")
    names = [f"phase {before[0].__name__}"]
    found = measured(lambda: problems.of(case), 60, 1, names)
    assert set(found) == {"all", *names}
    assert found["all"][0].step_time > 0
    assert iterated.PHASES is before


def test_equal_seeds_are_compared():
    whole, less = [Found(1.0, 0.1), Found(2.0, 0.1)], [Found(1.1, 0.1), Found(2.0, 0.1)]
    assert slower(whole, less) == pytest.approx(0.05)


def test_the_command_prints_a_row_for_each_part(capsys):
    command(["history"], budget=30, seeds=1, cases=1)
    printed = capsys.readouterr().out
    assert "history" in printed and "%" in printed and "nothing" in printed
