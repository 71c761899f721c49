"""Batches that an axis of the mesh does not divide, so that all its devices do the same work."""

from __future__ import annotations

import math
from collections.abc import Iterator

from partita.planning.schedule import Scheduled
from partita.tactics.parts import batch_arguments


def undivided(done: Scheduled) -> Iterator[str]:
    """Yields a sentence per idle axis that divides no batch: argument, sizes, and the remedy."""
    program = done.program
    batches = [
        (name, shape[0])
        for name, value in batch_arguments(program)
        if (shape := program.values[value].type.shape) and shape[0] > 1
    ]
    for axis in done.idle_axes:
        if not batches or any(rows % axis.size == 0 for _, rows in batches):
            continue
        name, rows = max(batches, key=lambda batch: batch[1])
        count = len(batches) - 1
        more = f" (and {count} more argument{'s' * (count > 1)})" if count else ""
        up, down = math.ceil(rows / axis.size) * axis.size, rows // axis.size * axis.size
        fewer = f" or cut it to {down}" if down else ""
        divisor = math.gcd(rows, axis.size)
        smaller = f", or use an axis of {divisor} devices" if divisor > 1 else ""
        yield (
            f"{name}{more} has {rows} examples, which {axis.name}={axis.size} does not divide: "
            f"the {axis.size} devices along {axis.name} all do the same work; pad the batch to "
            f"{up} examples{fewer}{smaller}"
        )
