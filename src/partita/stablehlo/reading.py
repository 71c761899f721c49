"""Errors for modules that MLIR rejects, and reading of modules in a separate process.

Damaged bytecode can crash the process that reads it, or loop for ever, and its bytes do not show
it. Malformed groups of devices can do so, too, even in text. So another process reads these, within
limits of time and memory. That takes some 0.15 s.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from partita.errors import UnsupportedError
from partita.program.refused import QUANTIZED
from partita.stablehlo import decoder

_PATIENCE = 8
"""Limit of elapsed time as a multiple of the limit of processor time, for a busy machine."""

_FOREIGN = re.compile(r"[Dd]ialect [`']?([\w.]*)'? not found|unregistered dialect")


class UnreadableError(UnsupportedError):
    """A module that is malformed."""


def unreadable(message: str, location: str) -> UnsupportedError:
    """MLIR's own error as one of ours; `location` is in its own words, too."""
    found = re.search(r'"-":([1-9]\d*)', location)
    where = f" (line {found[1]})" if found else ""
    if "quant" in message:  # a dialect of its own, which JAX does not load
        return UnsupportedError(f"the program contains {QUANTIZED.what}{where}; {QUANTIZED.advice}")
    if foreign := _FOREIGN.search(message):
        name = f"the dialect {foreign[1]!r}" if foreign[1] else "another dialect"
        return UnsupportedError(
            f"the program contains an operation, a type or an attribute of {name}{where}; expected "
            "StableHLO, the dialects 'stablehlo' and 'chlo'"
        )
    return UnreadableError(f"this is not a readable StableHLO module: {message}{where}")


def decode(data: bytes) -> str:
    """The text of a module, with locations.

    Args:
      data: the module as bytecode, as a portable artifact, or as text.

    Raises:
      UnsupportedError: it cannot be read.
    """
    seconds = decoder.SECONDS + len(data) // 2**22
    command = [sys.executable, "-I", str(Path(decoder.__file__)), json.dumps(sys.path)]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=_PATIENCE * seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise _too_long(seconds) from None
    except OSError as error:
        raise UnsupportedError(
            f"reading it takes a process of its own, which cannot be started: {error.strerror}"
        ) from None
    if done.returncode == 0:
        return done.stdout.decode()
    if done.returncode == decoder.REFUSED:
        message, location = json.loads(done.stdout)
        raise unreadable(message, location)
    if -done.returncode in (signal.SIGKILL, getattr(signal, "SIGXCPU", None)):
        raise _too_long(seconds)
    if done.returncode < 0:
        raise UnreadableError(
            "MLIR fails over it, as over a file that is damaged; write it anew "
            f"({signal.Signals(-done.returncode).name})"
        )
    said = done.stderr.decode(errors="replace").strip().splitlines() or [""]
    raise UnsupportedError(f"the process that reads it fails: {said[-1]}")


def _too_long(seconds: int) -> UnsupportedError:
    return UnsupportedError(f"MLIR takes more than {seconds} s to read it, the most for its size")
