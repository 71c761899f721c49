"""Text of users, safe to print: names and messages are data, whatever they contain.

A name may hold an escape sequence that recolours or clears a terminal, a mark that turns the
direction of what follows, or a newline that forges a line of a report. All of these are written as
in a Python string literal: `w\\x1b[31m`, `\\u202e`. Text that is printable already stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def printable(text: object, keep: str = "\n\t") -> str:
    """Text with characters that do not print as themselves written as in a string literal.

    Args:
      text: a string, or anything that has one.
      keep: characters that stay although they do not print: the layout of several lines.
    """
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii")
        for c in whole
    )


def one_line(text: object) -> str:
    """Text as `printable` writes it, on one line."""
    return printable(text, keep="")


def printed(shown: Callable[[_T], str]) -> Callable[[_T], str]:
    """Decorator of `__str__` and `__repr__` of what has names of users in it."""

    @functools.wraps(shown)
    def safe(self: _T) -> str:
        return printable(shown(self))

    return safe
