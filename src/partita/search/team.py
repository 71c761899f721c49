"""Several searches of one problem at once: one in this process, the others in worker processes.

The search in this process is the same as without workers. Each worker has a seed of its own, and
begins with other starts. After every round, a fixed number of evaluations, it receives the best
plan that any search has found. The result does not depend on timing: equal seeds and equally many
workers give equal plans. It is never worse than without workers.

A worker is a fresh interpreter (see `partita.search.worker`), not a fork: JAX has threads, which a
fork would leave in an undefined state. Unlike the processes of `multiprocessing`, it does not run
the user's script again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO, Self

from partita.errors import TacticError
from partita.search.problem import Problem, SearchState
from partita.search.protocol import SearchAlgorithm, SearchProgress
from partita.search.worker import Report, Rounds, Task

STARTED = "import sys; sys.path[:] = {path!r}; from partita.search.worker import main; main()"
"""Python code that a worker runs."""

POLL = 0.1
"""Seconds between calls of the progress function while waiting; it may end the search."""


def search(
    algorithm: SearchAlgorithm,
    problem: Problem,
    budget: int,
    seed: int,
    progress: SearchProgress,
    workers: int,
    warn: Callable[[str], None] = lambda message: None,
) -> SearchState:
    """Returns the best state that `workers` searches find, this process included.

    Each has the whole budget. A worker that ends too early is reported to `warn`; the plans that it
    found until then count.

    Raises:
      TacticError: a worker cannot be started.
    """
    if workers == 1 or not problem.moves:
        return algorithm(problem, budget, seed, progress)
    with Team(algorithm, problem, budget, seed, workers - 1, progress, warn) as team:
        best = team.search()
    return min(best, problem.best, key=problem.rank)


class Team:
    """A search with its workers, which end with it."""

    def __init__(
        self,
        algorithm: SearchAlgorithm,
        problem: Problem,
        budget: int,
        seed: int,
        workers: int,
        progress: SearchProgress,
        warn: Callable[[str], None],
    ) -> None:
        self._algorithm, self._problem, self._warn = algorithm, problem, warn
        self._budget, self._seed, self._progress = budget, seed, progress
        seeds = random.Random(seed)
        tasks = [
            Task(algorithm, budget, seeds.getrandbits(31), number + 1) for number in range(workers)
        ]
        if algorithm.__module__ == "__main__":
            raise TacticError(
                "workers= do not run the script that is running, in which the search is defined; "
                "define it in a module that is imported"
            )
        whole = _packed(problem)
        self._workers: list[_Worker] = []
        try:
            self._workers += (_Worker(_packed(task) + whole) for task in tasks)
        except BaseException:
            self._end()
            raise

    def search(self) -> SearchState:
        """Searches in this process, waits for all workers, and returns its own best state."""
        problem = self._problem
        rounds = Rounds(problem, self._budget, self._exchange)

        def told(done: int, best: SearchState) -> None:
            self._progress(done, best)
            rounds(done, best)

        best = self._algorithm(problem, self._budget, self._seed, told)
        while any(worker.runs for worker in self._workers):
            self._exchange()
        return best

    def _exchange(self) -> None:
        """Receives a report from each worker, and sends them the best plan."""
        here = Report.of(self._problem)
        for worker in self._workers:
            if worker.runs and not worker.listen(self._wait):
                self._warn(
                    f"a worker process of the search {worker.ending}; this is the best plan of the "
                    "others, and of that one until then"
                )
        reports = [here, *(w.report for w in self._workers if w.report is not None)]
        best = min(reports, key=lambda report: report.rank)  # of equal ones, the first
        for worker in self._workers:
            if worker.runs:
                worker.tell(best)

    def _wait(self) -> None:
        self._progress(self._problem.evaluations, self._problem.best)

    def _take(self) -> None:
        """Adds the last reports of the workers to the problem."""
        problem = self._problem
        for report in (w.report for w in self._workers):
            if report is not None:
                problem.replay(report.moves)
                problem.evaluations += report.evaluations
                problem.least = max(problem.least, report.least)

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._take()


class _Worker:
    """A worker process, and its last report."""

    def __init__(self, given: bytes) -> None:
        """Starts the process, and sends it a task and its problem, as pickles."""
        self.report: Report | None = None
        self.lost = False
        """True if the process ended before its search."""
        self._process = _started()
        self._said: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        source, answers = self._process.stdin, self._process.stdout
        assert source is not None and answers is not None
        self._source = source
        # Its input is longer than a pipe holds while it still imports; so are its reports.
        threading.Thread(target=self._write, args=(given,), daemon=True).start()
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    @property
    def runs(self) -> bool:
        """True if its search is still running."""
        return not self.lost and (self.report is None or not self.report.ended)

    @property
    def ending(self) -> str:
        """Signal or exit code with which the process ended, in words."""
        code = self._process.wait()
        if code < 0:
            return f"was ended by the signal {signal.Signals(-code).name}"
        return f"ended by itself, with exit code {code}; what it wrote stands above"

    def listen(self, waiting: Callable[[], None]) -> bool:
        """Waits for its next report; returns whether there is one.

        Args:
          waiting: called while there is none.
        """
        while True:
            try:
                report = self._said.get(timeout=POLL)
                break
            except queue.Empty:
                waiting()
        if report is None:
            self.lost = True
        else:
            self.report = report
        return not self.lost

    def tell(self, best: Report) -> None:
        """Sends it the moves of the best plan."""
        self._write(_packed(best.moves))

    def end(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                _closed(stream)

    def _write(self, what: bytes) -> None:
        try:
            self._source.write(what)
            self._source.flush()
        except (OSError, ValueError):  # it has ended, as whoever listens to it finds out
            pass

    def _read(self, answers: IO[bytes]) -> None:
        try:
            while True:
                self._said.put(pickle.load(answers))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            self._said.put(None)


def _started() -> subprocess.Popen[bytes]:
    """Starts a worker process, which waits for its task."""
    try:
        return subprocess.Popen(
            [sys.executable, "-c", STARTED.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},  # it takes no accelerator away
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
        )
    except (OSError, ValueError) as problem:
        raise TacticError(
            f"a worker process of the search cannot be started ({problem}); workers=1 searches in "
            "this process alone"
        ) from problem


def _packed(what: object) -> bytes:
    return pickle.dumps(what, pickle.HIGHEST_PROTOCOL)


def _closed(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what it had not taken any more
        stream.close()
