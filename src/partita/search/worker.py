"""What runs in a worker process: one search, which hears between rounds what the others have found.

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
"""How often searches hear of each other, if they spend their whole budget."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a search has come to, at the end of a round or of all."""

    rank: Rank
    moves: tuple[Move, ...]
    evaluations: int
    least: float
    """Seconds that no plan takes less than, as far as the search has found out."""
    ended: bool = False
    """Whether the search is over."""

    @classmethod
    def of(cls, problem: Problem, ended: bool = False) -> Report:
        """That of the best state so far."""
        best = problem.best
        return cls(problem.rank(best), best.moves, problem.evaluations, problem.least, ended)


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker searches."""

    algorithm: SearchAlgorithm
    budget: int
    seed: int
    share: int
    """See `Problem.share`."""


class Rounds:
    """Cuts a search into rounds of as many evaluations, whatever time they take."""

    def __init__(self, problem: Problem, budget: int, end: Callable[[], None]) -> None:
        """Takes the problem, the budget of its search, and what to do after each round."""
        self._problem, self._end = problem, end
        self._length = max(1, math.ceil(budget / ROUNDS))
        self._next = problem.evaluations + self._length

    def __call__(self, done: int, best: SearchState) -> None:
        """To be called as the progress of the search."""
        while self._problem.evaluations >= self._next:
            self._next += self._length
            self._end()


def main() -> None:
    """Searches what comes by standard input."""
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
