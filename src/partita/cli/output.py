"""What commands print: reports on standard output, errors on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import typer
from rich.console import RenderableType

from partita.errors import PartitaError
from partita.escape import printable
from partita.startup import INTERRUPTED
from partita.text import console, lines, plain

_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]
"""`ClickException`, what typer raises of a command line that it cannot read; it exports only this
kind of it."""


def width() -> int | None:
    """Columns of the terminal that standard output is, if it is one."""
    to = console()
    return to.width if to.is_terminal else None


def show(*reports: RenderableType) -> None:
    """Prints reports. Only on a terminal are tables fitted to it; no other line is ever wrapped."""
    to = console()
    for number, report in enumerate(reports):
        if number:
            print()
        if to.is_terminal and not isinstance(report, str):
            to.print(report, soft_wrap=True)
        else:
            print(printable(report) if isinstance(report, str) else plain(report))


def show_json(data: Any) -> None:
    """Prints data as JSON."""
    print(json.dumps(data, indent=2))


def error(message: object) -> None:
    """Prints a message on standard error, as all errors are printed."""
    console(stderr=True).print(lines(f"error: {message}", "red"), soft_wrap=True)


def note(message: object) -> None:
    """Prints a message on standard error that is no error."""
    console(stderr=True).print(lines(str(message), "yellow"), soft_wrap=True)


def run(app: typer.Typer) -> None:
    """Runs a command; what the user can mend is one message, and exit code 2."""
    message = None
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, where it can still be told that there is no room
    except PartitaError as problem:
        message = str(problem)
    except _USAGE_ERROR as problem:
        message = _usage(problem)
    except BrokenPipeError:  # whoever reads has seen enough
        _close_output()
        sys.exit(1)  # as rich does
    except OSError as problem:
        _close_output()
        message = _file_problem(problem)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if message is None:
        if code == INTERRUPTED:  # also what typer makes of Ctrl-C
            note("interrupted")
        sys.exit(code or 0)
    error(message)
    sys.exit(2)


def _close_output() -> None:
    """Sends the rest of the output nowhere: Python would fail over it once more when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(problem: Any) -> str:
    """A command line that cannot be read, told as our own errors are."""
    message: str = problem.format_message().rstrip(".").replace(". Did", "; did")
    if not message:  # no command at all: its help has been printed
        sys.exit(2)
    context = getattr(problem, "ctx", None)
    where = f"; see {context.command_path} --help" if context is not None else ""
    return message[0].lower() + message[1:] + where


def _file_problem(problem: OSError) -> str:
    """A file that cannot be read or written."""
    reason = problem.strerror or str(problem)
    return f"{reason}: {problem.filename!r}" if problem.filename is not None else reason
