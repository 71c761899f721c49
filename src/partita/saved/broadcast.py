"""One plan for all processes of a program: the first one plans, the others get what it would save.

Every process traces its own function and compares it with what the first one has planned. What one
process finds wrong, all are told, so that all end with the same message and none waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from partita.errors import PartitaError, ProcessError
from partita.planning.prepare import Prepared
from partita.planning.schedule import Scheduled
from partita.saved.restore import Saved, saved_as

FIRST = Path("process 0")
"""Name of the first process's plan in messages."""

_Plan = TypeVar("_Plan")


def together(
    make: Callable[[], _Plan],
    contents: Callable[[_Plan], bytes],
    take_up: Callable[[Saved], _Plan],
) -> _Plan:
    """The plan of the first process, in every process.

    All have to call this, at the same time as they call whatever runs on the devices of all.

    Args:
      make: plans; called in the first process only.
      contents: what the first one sends: its plan as a file.
      take_up: makes a plan of what was sent, in the others.

    Raises:
      ProcessError: a process cannot plan, or has another program than the first.
    """
    if jax.process_count() == 1:
        return make()
    made, problem = None, ""
    if jax.process_index() == 0:
        try:
            made = make()
            sent = contents(made)
        except PartitaError as error:
            cause, problem, sent = error, f"{type(error).__name__}: {error}", b""
        received = _from_first(sent)
    else:
        received = _from_first(b"")
        try:
            made = take_up(saved_as(received, FIRST)) if received else None
        except PartitaError as error:
            cause, problem = error, f"{type(error).__name__}: {error}"
    problems = _of_all(problem)
    if any(problems):
        number = next(n for n, text in enumerate(problems) if text)
        raise ProcessError(
            f"process {number} cannot take part in the plan of all: {problems[number]}"
        ) from (cause if problem else None)
    assert made is not None
    return made


def same_program(saved: Saved, prepared: Prepared) -> Scheduled:
    """The plan of the first process for what this one has traced.

    Raises:
      ProcessError: that is another program; with what differs.
    """
    found = saved.differences(prepared.program, prepared.traced)
    if found:
        raise ProcessError(
            "\n".join(
                [
                    f"its {prepared.program.name} is another program than that of process 0 (was: "
                    "there, now: here):",
                    *found,
                    "keep what differs between processes out of the function and its shapes",
                ]
            )
        )
    return saved.restore(prepared.context())


def _from_first(data: bytes) -> bytes:
    """Returns the bytes that the first process sends, in every process."""
    length = multihost_utils.broadcast_one_to_all(np.int32(len(data)))
    held = np.frombuffer(data, np.uint8) if data else np.zeros(int(length), np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(held)).tobytes() if length else b""


def _of_all(text: str) -> list[str]:
    """Returns the texts of all processes."""
    data = text.encode()
    lengths = multihost_utils.process_allgather(np.int32(len(data))).tolist()
    most = max(lengths)
    if not most:
        return [""] * len(lengths)
    padded = np.zeros(most, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:n].tobytes().decode() for row, n in zip(rows, lengths, strict=True)]
