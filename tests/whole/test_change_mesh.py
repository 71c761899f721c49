"""A training run that goes on over other meshes and in other numbers of processes, by Orbax.

Two processes write checkpoints over 4x2 devices, four go on over 2x4, two are killed while they
write, and one of four devices goes on from what is complete.
"""

import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from processes import all_succeed, run_together

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "change_mesh.py"
KILLED = -9


class Run:
    """A folder with checkpoints, and processes that go on from them."""

    def __init__(self, folder):
        self.folder = folder

    def go_on(self, processes, devices, mesh, steps, dies=-1):
        """Exit codes, what each process wrote at its end, and what it printed."""
        results = [self.folder / f"{number}.pickle" for number in range(processes)]
        worker = TESTS / "change_mesh_worker.py"
        options = ["--folder", self.folder / "run", "--mesh", mesh, "--steps", steps]
        commands = [[sys.executable, worker, EXAMPLE, each, dies, *options] for each in results]
        codes, logs = run_together(commands, devices, self.folder)
        if dies >= 0:
            return codes, logs
        all_succeed(codes, logs)
        return [pickle.loads(result.read_bytes()) for result in results]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The losses of a run of seven steps in one process, over 4x2 devices."""
    train = runpy.run_path(str(EXAMPLE))["train"]
    _, losses = train("data=4,model=2", tmp_path_factory.mktemp("whole") / "run", 7)
    return losses


def close(losses, uninterrupted, steps):
    assert list(losses) == list(steps)
    wanted = [uninterrupted[step] for step in steps]
    np.testing.assert_allclose(list(losses.values()), wanted, rtol=1e-5)


def shards_are_read_by_who_needs_them(outcomes):
    """No process reads what is not on its devices; what it reads beside is metadata."""
    for outcome in outcomes:
        assert sum(outcome["here"]) < 0.6 * outcome["bytes"]
        assert outcome["read"] < 0.6 * outcome["bytes"]


def the_state_is_the_same_wherever_it_lies(outcomes):
    for leaf in zip(*(outcome["state"] for outcome in outcomes), strict=True):
        known = {}
        for index, piece in (shard for shards in leaf for shard in shards):
            np.testing.assert_array_equal(known.setdefault(str(index), piece), piece)


@pytest.mark.filterwarnings("default")  # those of Orbax and TensorStore are not ours
def test_a_run_goes_on_over_other_meshes_and_processes(uninterrupted, tmp_path):
    run = Run(tmp_path)
    for outcome in run.go_on(2, 4, "data=4,model=2", 3):
        assert outcome["first"] == 0
        close(outcome["losses"], uninterrupted, range(3))

    four = run.go_on(4, 2, "data=2,model=4", 5)
    for outcome in four:
        assert outcome["first"] == 3
        assert "P('model',)" in outcome["shardings"]
        close(outcome["losses"], uninterrupted, range(3, 5))
    shards_are_read_by_who_needs_them(four)
    the_state_is_the_same_wherever_it_lies(four)

    codes, logs = run.go_on(2, 4, "data=4,model=2", 7, dies=6)
    assert codes[0] == KILLED and codes[1] not in (0, KILLED), logs
    assert "another task died" in logs[1]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert "5" in names and "6" not in names  # begun, and not complete
    assert any(name.startswith("6.") for name in names)

    (one,) = run.go_on(1, 4, "data=2,model=2", 7)
    assert one["first"] == 6
    close(one["losses"], uninterrupted, [6])
