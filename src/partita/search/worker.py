"""Worker process: runs one search, and receives the best plan of all searches between rounds.

The process is a fresh interpreter that imports partita and nothing of the user's script. It reads
pickles from its standard input and writes them to its standard output; whatever else is printed
goes to standard error.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from partita.garbage import paused
from partita.search.problem import Move, Problem, Rank, SearchState
from partita.search.protocol import SearchAlgorithm

ROUNDS = 10
"""Number of rounds in a whole budget; searches exchange their best plans after each."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of a search so far, at the end of a round or of the search."""

    rank: Rank
    moves: tuple[Move, ...]
    evaluations: int
    least: float
    """Lower bound in seconds on all step times, as far as the search has found one; else 0."""
    ended: bool = False
    """True if the search is over."""

    @classmethod
    def of(cls, problem: Problem, ended: bool = False) -> Report:
        """Returns the report with the best state so far."""
        best = problem.best
        return cls(problem.rank(best), best.moves, problem.evaluations, problem.least, ended)


@dataclasses.dataclass(frozen=True)
class Task:
    """Task of a worker: algorithm, budget, seed and share."""

    algorithm: SearchAlgorithm
    budget: int
    seed: int
    share: int
    """See `Problem.share`."""


class Rounds:
    """Splits a search into rounds of equally many evaluations, whatever time they take."""

    def __init__(self, problem: Problem, budget: int, end: Callable[[], None]) -> None:
        """Takes the problem, the budget of its search, and a function to call after each round."""
        self._problem, self._end = problem, end
        self._length = max(1, math.ceil(budget / ROUNDS))
        self._next = problem.evaluations + self._length

    def __call__(self, done: int, best: SearchState) -> None:
        """Counts evaluations; serves as the progress function of the search."""
        while self._problem.evaluations >= self._next:
            self._next += self._length
            self._end()


def main() -> None:
    """Runs the task that standard input contains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started it ends it
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        search(source, answers)
    except (EOFError, BrokenPipeError):  # nobody waits for it any more
        os._exit(1)


def search(source: BinaryIO, answers: BinaryIO) -> None:
    """Reads a task and its problem, and writes a report after every round and at the end.

    After each round it reads the moves of the best state that any search has found.
    """

    def report(ended: bool = False) -> None:
        send(answers, Report.of(problem, ended))

    def exchange() -> None:
        report()
        problem.replay(pickle.load(source))

    with paused():
        task: Task = pickle.load(source)
        problem: Problem = pickle.load(source)
        problem.share = task.share
        task.algorithm(problem, task.budget, task.seed, Rounds(problem, task.budget, exchange))
        report(ended=True)


def send(stream: BinaryIO, what: object) -> None:
    """Writes a pickle."""
    stream.write(pickle.dumps(what, pickle.HIGHEST_PROTOCOL))
    stream.flush()
