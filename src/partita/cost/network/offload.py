"""Moves between a device and the memory of its host: over a link of their own, at its bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

from partita.analysis import ClassGraph
from partita.cost.devices.hardware import Hardware
from partita.cost.estimate import Traffic
from partita.cost.kernels.timing import Timing
from partita.mesh import Mesh
from partita.spmd.reshard import shards
from partita.tiling import OpForm


class OffloadModel:
    """Moves of a program to the memory of the host and back."""

    def __init__(self, graph: ClassGraph, mesh: Mesh, hardware: Hardware, timing: Timing) -> None:
        self._mesh = mesh
        self._bandwidth = hardware.host_bandwidth.value
        values = graph.program.values
        self._moves: dict[int, tuple[int, int, float]] = {}
        """Bytes of one move, moves per step, and the hidden share, by operation class."""
        for op in graph.ops:
            members = [m for m in op.members if m in timing.moves_to_host]
            if members:
                times = sum(graph.program.operations[m].times for m in members)
                hidden = sum(timing.moves_to_host[m] for m in members) / len(members)
                self._moves[op.index] = values[op.op.results[0]].type.bytes, times, hidden

    def seconds(self, forms: Sequence[OpForm]) -> tuple[float, float] | None:
        """Returns the seconds that compute waits for moves, and those that overlap with other work.

        None if nothing moves.
        """
        if not self._moves:
            return None
        exposed = overlapped = 0.0
        for index, (size, times, hidden) in self._moves.items():
            seconds = times * self._shard(size, forms[index]) / self._bandwidth
            exposed += (1 - hidden) * seconds
            overlapped += hidden * seconds
        return exposed, overlapped

    def of_class(self, index: int, form: OpForm) -> tuple[float, float]:
        """Seconds of one move of a class of operations, and the hidden share; 0 of others."""
        if index not in self._moves:
            return 0.0, 0.0
        size, _, hidden = self._moves[index]
        return self._shard(size, form) / self._bandwidth, hidden

    def traffic(self, forms: Sequence[OpForm]) -> Traffic:
        """Returns all moves of a step."""
        rows = [(t, t * self._shard(size, forms[i])) for i, (size, t, _) in self._moves.items()]
        moved = sum(bytes_ for _, bytes_ in rows)
        return Traffic(sum(times for times, _ in rows), round(moved), moved / self._bandwidth)

    def _shard(self, size: int, form: OpForm) -> float:
        return size / shards(form.makes[0], self._mesh)
