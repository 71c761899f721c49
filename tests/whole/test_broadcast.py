"""Processes that plan together: one plan, one message for all, and an end for all if one dies."""

import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from processes import run_together

WORKER = Path(__file__).parents[1] / "broadcast_worker.py"
KILLED = -9

pytestmark = pytest.mark.xdist_group("broadcast")  # so that the processes run once


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What two processes found, their exit codes, and what they printed."""
    folder = tmp_path_factory.mktemp("broadcast")
    results = [folder / f"{number}.pickle" for number in range(2)]
    commands = [[sys.executable, WORKER, result] for result in results]
    codes, logs = run_together(commands, 2, folder)
    assert all(result.exists() for result in results), "\n".join(logs)
    return [pickle.loads(result.read_bytes()) for result in results], codes, logs


@pytest.fixture(scope="module")
def found(ended):
    return ended[0]


def test_all_have_the_plan_that_the_first_one_made(found):
    assert found[0]["plan"] == found[1]["plan"]
    assert [each["applied"] for each in found] == [1, 0]
    x = np.linspace(0, 1, 64 * 16, dtype=np.float32).reshape(64, 16)
    wanted = np.mean(np.tanh(x @ np.ones((16, 8), np.float32)) ** 2)
    np.testing.assert_allclose([each["loss"] for each in found], wanted, rtol=1e-5)


def test_the_seed_of_the_others_does_not_matter(found):
    assert found[0]["searched"] == found[1]["searched"]


def test_the_mesh_may_be_chosen_by_the_first(found):
    assert found[0]["chosen"] == found[1]["chosen"]
    assert found[0]["chosen"].startswith("loss on x=4 ")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "shape",
            r"process 1 cannot take part in the plan of all: ProcessError: its loss is another "
            r"program than that of process 0 \(was: there, now: here\):\n"
            r"  argument x was f32\[64,16\], now f32\[72,16\]\nkeep what differs",
        ),
        (
            "operation",
            r"process 1 .* its other_loss is another program .*\n"
            r"  line \d+ of its StableHLO is the first that differs\n"
            r"    was % = stablehlo.tanh .*\n(.*\n)*    now % = stablehlo.sine .*"
            r"\(\S*broadcast_worker.py:\d+\)\n",
        ),
        ("tactic", r"process 0 .*: TacticError: there is nothing to shard$"),
        ("mesh", r"process 1 .*: MeshError: .*mesh data=4, the mesh given is data=2,model=2"),
    ],
)
def test_what_is_otherwise_in_one_is_told_by_all(what, message, found):
    assert found[0][what] == found[1][what]
    assert re.match(message, found[0][what]), found[0][what]


def test_a_process_that_dies_while_the_first_waits_ends_it_within_the_time_out(ended):
    _, codes, logs = ended
    assert codes[1] == KILLED
    assert codes[0] not in (0, KILLED), logs[0]
    assert "another task died" in logs[0]
