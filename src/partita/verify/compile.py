"""Compiling, whatever the compiler: a program with the memory that it takes, or a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from partita.errors import OptionError, VerifyError
from partita.verify.memory import Memory

Options = dict[str, str | bool]
"""Options of a compiler."""


def compiler_options(given: Sequence[str]) -> Options:
    """Options as a command line has them, `NAME=VALUE` each; `true` and `false` are booleans.

    Raises:
      OptionError: one is not of this form.
    """
    options: Options = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise OptionError(f"a compiler option is NAME=VALUE, got {each!r}")
        options[name] = {"true": True, "false": False}.get(value, value)
    return options


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Result of compiling a plan."""

    text: str
    """The compiled program, as HLO."""
    memory: Memory
    seconds: float
    """Compile time in seconds."""


class OutOfMemoryError(VerifyError):
    """The compiler found no way to fit the program into the memory of a device.

    `used` and `capacity` are bytes, as the compiler rounds them; None where it does not say. What
    is used may be temporaries alone.
    """

    def __init__(self, message: str, used: int | None, capacity: int | None) -> None:
        super().__init__(message)
        self.used = used
        self.capacity = capacity


def failure(
    error: Exception, target: str, used: int | None = None, capacity: int | None = None
) -> VerifyError:
    """A compiler's error as one of ours, in one line.

    Args:
      error: as the compiler raised it.
      target: what was compiled for.
      used: bytes that the program needs, if the error says it.
      capacity: bytes that a device has, if the error says it.
    """
    message = str(error)
    if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
        return OutOfMemoryError(
            f"compiling for {target} runs out of memory: {first_line(error)}", used, capacity
        )
    return VerifyError(f"compiling for {target} fails: {first_line(error)}")


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Keeps JAX's persistent compilation cache out of it, if there is one.

    It cannot read back what was compiled for devices that are not there, and warns at each try.
    """
    config: Any = jax.config
    enabled = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether it is enabled is asked only once
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keeps a compiler's native output to standard error away from the terminal.

    The compiler logs failures that it recovers from, with stack traces. Python's own output still
    comes through; that of other native code in this process does not.
    """
    mine, shown = sys.stderr, os.dup(2)
    mine.flush()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        if _descriptor(mine) == 2:
            with os.fdopen(os.dup(shown), "w", buffering=1, encoding=mine.encoding) as stream:
                sys.stderr = stream
                yield
        else:
            yield
    finally:
        sys.stderr = mine
        os.dup2(shown, 2)
        os.close(shown)
        os.close(silent)


def _descriptor(stream: Any) -> int | None:
    try:
        number: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message; the name of its type if there is no message."""
    message = str(error).strip()
    return message.splitlines()[0] if message else type(error).__name__
