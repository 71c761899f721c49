"""Ctrl-C where the command `partita` cannot handle it: it ends the process without a traceback.

Importing JAX takes seconds, before a line of the command runs; and Python has work left to do after
the last one. A library must leave signals alone, so all this is for the command only.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

NAMES = ("partita", "partita.cli")
"""Modules that `python -m` runs as the command."""

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended, as shells report it."""

_SHOW_CURSOR = b"\x1b[?25h"


def runs_command(program: str, words: Sequence[str]) -> bool:
    """Returns whether this process is the command: as a script, or by `python -m`.

    Args:
      program: `sys.argv[0]`; `-m` while Python looks for the module that it is to run.
      words: `sys.orig_argv`.
    """
    if program == "-m":
        after = iter(words)
        option = next((word for word in after if word.startswith("-m")), "")
        return (option[len("-m") :] or next(after, "")) in NAMES
    return PurePath(program).stem == "partita" and PurePath(program).suffix in ("", ".exe")


IS_COMMAND = runs_command(sys.argv[0] if sys.argv else "", sys.orig_argv)
"""True if this process is the command; this module is imported before all others."""


def leave_to_system() -> None:
    """Makes Ctrl-C end the process at once from here on, unless its parent set it to be ignored."""
    if IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def leave_to_python() -> None:
    """Makes Ctrl-C raise `KeyboardInterrupt` from here on; it is heard wherever it strikes."""
    if IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _unraisable


def _unraisable(problem: Any) -> None:
    """Ends the process where Python would print a traceback and go on.

    JAX has a callback in Python's garbage collector, from which nothing can be raised.
    """
    if not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)
        return
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a progress bar hides it
    os._exit(INTERRUPTED)


leave_to_system()
