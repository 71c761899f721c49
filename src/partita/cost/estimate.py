"""Estimated cost of a plan: the numbers that a report shows and a search compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.escape import printed
from partita.text import seconds, size


@dataclasses.dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over the same axes."""

    count: int
    """Number of runs per step."""
    bytes: int
    """Payload in bytes per device, summed."""
    seconds: float
    """Time in seconds, summed."""


@dataclasses.dataclass(frozen=True)
class Together:
    """All collectives of one kind over the same axes, after a compiler has combined some."""

    count: int
    """Number of runs per step."""
    seconds: float
    """Time in seconds, summed."""


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Time of one step, in seconds."""

    compute_time: float
    exposed_time: float
    """Seconds of collectives that compute waits for."""
    link_times: tuple[float, ...]
    """Seconds of collectives that overlap with other work, on each link of the mesh. The last entry
    is that of moves to or from the host, if there are any."""

    @property
    def hidden_time(self) -> float:
        """Seconds of collectives that overlap with other work, on all links together."""
        return sum(self.link_times)

    @property
    def serial_time(self) -> float:
        """Time if nothing overlaps."""
        return self.compute_time + self.exposed_time + self.hidden_time

    @property
    def step_time(self) -> float:
        """Time with compute and every link working at the same time."""
        return self.exposed_time + max(self.compute_time, *self.link_times)

    def expected_time(self, hidden_share: float) -> float:
        """Returns the time with this share of hidden time hidden: `step_time` to `serial_time`."""
        step = self.step_time
        return step + (1 - hidden_share) * (self.serial_time - step)


@dataclasses.dataclass(frozen=True)
class Estimate(StepTime):
    """Predicted cost of one step of a plan. Times in seconds, sizes in bytes per device.

    `step_time` lets those collectives overlap with compute that have other work to overlap with
    (weights that are prefetched, gradients whose sums are not needed yet), on different links at
    the same time; `serial_time` lets none.
    """

    peak_memory: int
    argument_memory: int
    """Arguments, alive during the whole step; donated ones double as results."""
    constant_memory: int
    """Arrays that the function closes over, alive during the whole step on every device."""
    capacity: int
    """Memory that a plan may use."""
    regather: bool
    """True if gathered values are re-gathered for another use, instead of being kept in between."""
    traffic: Mapping[tuple[str, tuple[str, ...]], Traffic]
    """Collectives by kind and axes."""
    host_memory: int = 0
    """Peak bytes in the memory of the host, which are not in that of the device."""
    offloaded: Traffic = Traffic(0, 0, 0.0)
    """Moves to the memory of the host and back."""

    @property
    def fits(self) -> bool:
        """True if the peak is within the capacity."""
        return self.peak_memory <= self.capacity

    @printed
    def __str__(self) -> str:
        fits = "fits" if self.fits else "DOES NOT FIT"
        return (
            f"step {seconds(self.step_time)} (compute {seconds(self.compute_time)}, collectives "
            f"{seconds(self.exposed_time)} exposed + {seconds(self.hidden_time)} hidden), "
            f"peak memory {size(self.peak_memory)} of {size(self.capacity)}: {fits}"
        )
