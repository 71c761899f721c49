"""Ctrl-C during a search: it ends with the best plan so far. A second time, the command ends."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from partita.decisions import Progress
from partita.search import EnoughError


class Interruptible:
    """A callback for the progress of searches, by which Ctrl-C ends them.

    Only from the first word of a search on: what comes before is interrupted as usual.
    """

    def __init__(self, progress: Progress) -> None:
        self.interrupted = False
        """Whether a search was ended."""
        self._progress = progress
        self._asked = False
        self._before: Any = None

    def __call__(self, done: int, total: int, text: str) -> None:
        """Passes on how far a search is; raises `EnoughError` if it should end."""
        if self._before is None:
            self._before = signal.signal(signal.SIGINT, self._ask)
        if self._asked:
            self.interrupted = True
            raise EnoughError
        self._progress(done, total, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
