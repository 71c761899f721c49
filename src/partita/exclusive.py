"""A lock that data can hold: copies and pickles of the data get one of their own."""

from __future__ import annotations

import threading
from types import TracebackType


class Exclusive:
    """Lets one thread in at a time, again and again if it is in already; used by `with`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Exclusive], tuple[()]]:
        return Exclusive, ()
