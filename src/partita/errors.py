"""Exceptions that partita raises for its users, and what it warns with.

Every one derives from `PartitaError`. A message names the thing by the user's own name for it,
says what was expected, and what to do.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partita.escape import printable


class PartitaError(Exception):
    """Base class of every error raised on purpose by partita; its message is printable."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class MeshError(PartitaError, ValueError):
    """A mesh that cannot be read, or that does not fit the devices or the program."""


class AxisError(PartitaError, ValueError):
    """An axis that the mesh does not have."""


class HardwareError(PartitaError, ValueError):
    """An unknown device type, or a hardware file that cannot be read."""


class UnknownNameError(PartitaError, KeyError):
    """A pattern that matches no argument, result or tagged value of the program."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0])


class TacticError(PartitaError, ValueError):
    """A tactic that is malformed: a dimension out of range, a resolution that does not exist."""


class ArgumentError(PartitaError, TypeError):
    """Arguments of a call that are not what a plan is for: number, nesting, shapes, types."""


class SpecError(PartitaError, ValueError):
    """A `PartitionSpec` that does not fit the value it is for."""


class RuleError(PartitaError, ValueError):
    """A sharding rule that cannot be read, or that does not fit the call it is for."""


class OptionError(PartitaError, ValueError):
    """An option of another type than expected, or out of range."""


class TraceError(PartitaError):
    """A function that JAX cannot trace; JAX's own error is the cause."""


class FileError(PartitaError, ValueError):
    """A program or plan file that cannot be read or written: missing, corrupt, of another format.

    Or a plan file that is for another program.
    """


class UnsupportedError(PartitaError):
    """A program that cannot be partitioned: effects, host callbacks, dynamic shapes."""


class ModelError(PartitaError, ValueError):
    """A model named on the command line that cannot be found or loaded."""


class VerifyError(PartitaError):
    """A compiled program that cannot be had or read: no compiler for it, an unknown topology."""


class LoweringError(PartitaError):
    """A lowered program that cannot be proven to compute what the original does.

    A fault of partita's own, found before anything runs.
    """


class StrictError(PartitaError, ValueError):
    """A plan with something that `strict=` forbids; the message names each."""


class ProcessError(PartitaError):
    """Processes that plan together, and one of which cannot or has another program; all raise it.

    The message names the process, and what is otherwise there.
    """


class PlanChangedError(PartitaError, AssertionError):
    """A plan that is not as its file says any more; the message is the difference."""


class PartitaWarning(UserWarning):
    """Something that partita does for its user in a way that they may not expect."""


class ReshardWarning(PartitaWarning):
    """Arguments that are sharded differently from their plan, and are moved in every call."""


_PACKAGE = f"{Path(__file__).parent}{os.sep}"


def warn(message: str, category: type[Warning]) -> None:
    """Warns whoever calls the package, at the line that does."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), category, stacklevel=level)


def renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Warns that something has another name now; the old one goes with the next release.

    Args:
      old: the name that was used.
      new: the one to use.
      stacklevel: of the caller's caller, counted as `warnings.warn` does in the caller.
    """
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


class FormerName:
    """Former name of an attribute or a method of a class; whoever uses it is warned."""

    def __init__(self, now: str) -> None:
        self._now = now
        self.__doc__ = f"Former name of `{now}`."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        renamed(f"{owner.__name__}.{self._name}", f"{owner.__name__}.{self._now}")
        return getattr(instance, self._now)


def closest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A hint `; did you mean 'a' or 'b'?`, or an empty string when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=count, cutoff=0.4)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""
