"""Source lines and scopes of operations, as their locations say them."""

from __future__ import annotations

import functools
from typing import Any

from partita.text import relative


class Sources:
    """Reads locations. They nest and are shared, so each is read once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[str, str]] = {}
        self._file = functools.cache(relative)  # programs have many lines of few files

    def of(self, location: Any) -> tuple[str, str]:
        """File and line, and scope; each empty if the location does not say it."""
        known = self._known.get(location)
        if known is None:
            known = self._known[location] = self._read(location)
        return known

    def _read(self, location: Any) -> tuple[str, str]:
        waiting, first = [(location, "")], ""
        while waiting:
            inner, scope = waiting.pop()
            if hasattr(inner, "callee"):
                waiting.append((inner.callee, scope))
            elif hasattr(inner, "child_loc"):
                scope = scope or inner.name_str
                first = first or scope
                waiting.append((inner.child_loc, scope))
            elif hasattr(inner, "locations"):
                waiting += [(each, scope) for each in reversed(inner.locations)]
            elif file := getattr(inner, "filename", ""):
                return f"{self._file(file)}:{inner.start_line}", scope
        return "", first
