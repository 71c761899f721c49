"""The time of a compiled step from its schedule, where a compiler estimates no cycles.

The instructions of a compiled program are followed in their order, as a device runs them. Kernels
run one after the other; collectives that have been started run at the same time, on each link.
Where a collective ends, the device waits for it. Kernel times come from `partita.verify.kernels`,
collective times from the cost model. So this shows the effect of a schedule at the same rates, not
how fast a device is.
"""

from __future__ import annotations

import dataclasses

from partita.cost import Hardware
from partita.cost.estimate import StepTime
from partita.cost.network.collectives import interconnect
from partita.mesh import Mesh
from partita.verify.collectives import Reader
from partita.verify.cycles import collective_seconds
from partita.verify.hlo import Computation, HloInstruction, HloModule
from partita.verify.kernels import Kernels
from partita.verify.loops import Executions, trip_count

_SYNCHRONOUS = '"is_sync":true'


def scheduled_time(module: HloModule, runs: Executions, mesh: Mesh, hardware: Hardware) -> StepTime:
    """The time of a step of a compiled program.

    Args:
      module: the program, its instructions in the order in which they run.
      runs: how often its computations run.
      mesh: the mesh of the plan.
      hardware: the device type.
    """
    entry = module.computations[module.entry]
    return _Device(module, runs, mesh, hardware).run(entry).time


@dataclasses.dataclass
class _Clock:
    """A device's work so far, in seconds."""

    now: float = 0.0
    computed: float = 0.0
    waited: float = 0.0
    moved: float = 0.0
    """Seconds of collectives that can overlap with other work, on all links."""

    @property
    def time(self) -> StepTime:
        """Time of a step: waiting is exposed, other transfers are hidden, up to compute time."""
        hidden = min(max(self.moved - self.waited, 0.0), self.computed)
        return StepTime(self.computed, self.waited, (hidden,))

    def add(self, other: _Clock, times: int) -> None:
        """Adds another clock's work, `times` over."""
        self.now += times * other.now
        self.computed += times * other.computed
        self.waited += times * other.waited
        self.moved += times * other.moved


class _Device:
    """Runs computations; a computation that runs again takes as long as before."""

    def __init__(self, module: HloModule, runs: Executions, mesh: Mesh, hardware: Hardware) -> None:
        self._module = module
        self._kernels = Kernels(module, hardware)
        self._reader = Reader(module, runs)
        self._networks = interconnect(mesh, hardware)
        self._hardware = hardware
        self._done: dict[str, _Clock] = {}

    def run(self, computation: Computation) -> _Clock:
        """Returns the time of running a computation once; at its end, nothing is in flight."""
        if computation.name in self._done:
            return self._done[computation.name]
        clock = _Clock()
        free: dict[int, float] = {}
        ends: dict[str, float] = {}
        for instruction in computation:
            moves = self._moves(computation, instruction)
            if moves:
                end = clock.now
                for link, seconds in moves:
                    end = free[link] = max(end, free.get(link, 0.0)) + seconds
                    clock.moved += seconds
                ends[instruction.name] = end
                if _waits(instruction):
                    self._wait(clock, end)
            elif instruction.opcode.endswith(("-done", "-update")):
                for name in instruction.operands:
                    ends[instruction.name] = ends.get(name, 0.0)
                    if instruction.opcode.endswith("-done"):
                        self._wait(clock, ends[instruction.name])
            else:
                self._compute(clock, computation, instruction)
        self._wait(clock, max(ends.values(), default=0.0))
        self._done[computation.name] = clock
        return clock

    def _wait(self, clock: _Clock, until: float) -> None:
        clock.waited += max(until - clock.now, 0.0)
        clock.now = max(until, clock.now)

    def _compute(self, clock: _Clock, around: Computation, instruction: HloInstruction) -> None:
        called = [
            self._module.computations[name]
            for role, name in instruction.called
            if role not in ("condition", "to_apply") or instruction.opcode == "call"
        ]
        if instruction.opcode == "while":
            trips = trip_count(self._module, around, instruction)
            for body in called:
                clock.add(self.run(body), 1 if trips is None else trips)
        elif instruction.opcode in ("call", "conditional", "async-start"):
            for each in called[:1]:
                clock.add(self.run(each), 1)
        else:
            seconds = self._kernels.seconds(around, instruction)
            clock.now += seconds
            clock.computed += seconds

    def _moves(
        self, computation: Computation, instruction: HloInstruction
    ) -> list[tuple[int, float]]:
        """Returns the links that an instruction uses, each with its seconds; empty unless a
        collective.

        Combined collectives are timed as one transfer.
        """
        found = self._reader.collectives(computation, instruction)
        if not found:
            return []
        whole = dataclasses.replace(found[0], bytes=sum(each.bytes for each in found))
        return collective_seconds(whole, self._networks, self._hardware)


def _waits(instruction: HloInstruction) -> bool:
    """Returns whether no other work overlaps with a collective."""
    return not instruction.opcode.endswith("-start") or _SYNCHRONOUS in instruction.attributes
