"""Searches in worker processes: never worse than one alone, and the same whatever the timing."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita.errors import TacticError
from partita.search import EnoughError, algorithm, team
from partita.search.worker import ROUNDS, Report, Rounds
from searching import mlp, run

BUDGET, SEED = 300, 3


def together(problem, workers, progress=lambda done, best: None, warn=lambda message: None):
    """The best state of as many searches."""
    return team.search(algorithm("iterated"), problem, BUDGET, SEED, progress, workers, warn)


@pytest.fixture(scope="module")
def found():
    """A problem and the best state of two searches of it."""
    problem = mlp("large weights")
    return problem, together(problem, 2)


# ---------------------------------------------------------------------------------- what is found


def test_several_searches_are_never_worse_than_one_alone(found):
    problem, best = found
    alone = mlp("large weights")
    assert not problem.better(run(algorithm("iterated"), alone, BUDGET, SEED), best)
    assert problem.evaluations > alone.evaluations


def test_equal_seeds_and_as_many_workers_find_the_same_whatever_the_timing(found):
    def slow(done, best):
        time.sleep(0.001)

    again = mlp("large weights")
    best = together(again, 2, slow)
    assert (best.moves, again.evaluations) == (found[1].moves, found[0].evaluations)


def test_a_plan_costs_in_a_worker_what_it_costs_here(monkeypatch):
    """Whatever else has been planned in this process."""
    costs = []

    def compared(self):
        problem = self._problem
        for worker in self._workers:
            costs.append((worker.report.rank, problem.rank(problem.replay(worker.report.moves))))

    run(algorithm("iterated"), mlp("wide batch"), 50)
    monkeypatch.setattr(team.Team, "_take", compared)
    together(mlp("even", share=0.6), 2)
    assert len(costs) == 1
    for there, here in costs:
        assert there == here


def test_with_one_worker_no_process_is_started(monkeypatch):
    monkeypatch.setattr(team, "_started", None)
    alone = run(algorithm("iterated"), mlp(), BUDGET, SEED)
    assert together(mlp(), 1).moves == alone.moves


def test_a_problem_is_pickled_without_what_was_evaluated():
    problem = mlp(share=0.6)
    run(algorithm("iterated"), problem, BUDGET, SEED)
    again = pickle.loads(pickle.dumps(problem))
    assert again.evaluations == 0
    assert run(algorithm("iterated"), again, BUDGET, SEED).moves == problem.best.moves


def test_a_search_has_as_many_rounds_whatever_it_evaluates_in_one_go():
    problem, ends = mlp(), []
    rounds = Rounds(problem, BUDGET, lambda: ends.append(problem.evaluations))
    for problem.evaluations in range(0, BUDGET + 1, 50):
        rounds(problem.evaluations, problem.best)
    assert len(ends) == ROUNDS


# --------------------------------------------------------------------------------- processes end


def test_whoever_has_had_enough_gets_the_best_so_far_and_no_process_is_left(monkeypatch):
    processes, started = [], team._started

    def noted():
        processes.append(started())
        return processes[-1]

    def enough(done, best):
        if done > 100:
            raise EnoughError

    monkeypatch.setattr(team, "_started", noted)
    problem = mlp()
    with pytest.raises(EnoughError):
        together(problem, 2, enough)
    assert problem.better(problem.best, problem.start)
    assert [process.poll() is not None for process in processes] == [True]


def test_a_worker_that_cannot_start_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TacticError, match=r"cannot be started.*workers=1"):
        together(mlp(), 2)


def test_a_worker_that_ends_by_itself_leaves_the_best_plan_of_the_others(monkeypatch):
    monkeypatch.setattr(team, "STARTED", "import sys; sys.exit(7)")
    problem, warnings = mlp(), []
    best = together(problem, 2, warn=warnings.append)
    assert best.moves == run(algorithm("iterated"), mlp(), BUDGET, SEED).moves
    assert len(warnings) == 1 and "ended by itself, with exit code 7" in warnings[0]


def test_a_plan_says_that_a_worker_ended(monkeypatch):
    monkeypatch.setattr(team, "STARTED", "import sys; sys.exit(7)")
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    automatic = pt.AutomaticPartition(budget=20, workers=2)
    with pytest.warns(pt.PartitaWarning, match="exit code 7"):
        plan = pt.plan(jnp.sin, x, mesh="a=2", hardware="tpu_v5e", tactics=automatic)
    (warning,) = plan.history[0].warnings
    assert "exit code 7" in warning


def test_what_a_worker_had_found_counts_when_it_is_killed(monkeypatch):
    processes, started, listen = [], team._started, team._Worker.listen

    def noted():
        processes.append(started())
        return processes[-1]

    def killed(self, waiting):
        heard = listen(self, waiting)
        processes[0].kill()
        return heard

    monkeypatch.setattr(team, "_started", noted)
    monkeypatch.setattr(team._Worker, "listen", killed)
    problem, warnings, reports = mlp("large weights"), [], []
    take = team.Team._take
    monkeypatch.setattr(
        team.Team,
        "_take",
        lambda self: reports.extend(w.report for w in self._workers) or take(self),
    )
    best = together(problem, 3, warn=warnings.append)
    assert len(warnings) == 1 and "ended by the signal SIGKILL" in warnings[0]
    assert not reports[0].ended and reports[1].ended
    assert problem.rank(best) <= min(report.rank for report in reports)


def test_a_search_that_the_running_script_defines_is_refused():
    def search(problem, budget, seed, progress):
        return problem.start

    search.__module__ = "__main__"
    with pytest.raises(TacticError, match="define it in a module"):
        team.search(search, mlp(), BUDGET, SEED, lambda done, best: None, 2)


SCRIPT = """
import jax, jax.numpy as jnp, partita as pt
print("once")
x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 16)))
automatic = pt.AutomaticPartition(budget=40, workers=2)
print(pt.plan(lambda x, w: x @ w, x, w, mesh="a=2,b=2", hardware="tpu_v5e", tactics=automatic))
"""


def test_a_script_is_not_run_again_by_its_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.count("once") == 1


def test_a_report_is_of_the_best_so_far():
    problem = mlp()
    report = Report.of(problem)
    assert (report.rank, report.moves, report.ended) == (problem.rank(problem.best), (), False)
