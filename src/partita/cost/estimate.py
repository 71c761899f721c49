"""What a plan costs: the numbers that a report shows and a search compares."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from partita.errors import HardwareError


@dataclasses.dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over the same axes."""

    count: int
    """How many run per step."""
    bytes: int
    """Their payload per device, summed."""
    seconds: float
    """Their time, summed."""


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Time of one step, in seconds."""

    compute_time: float
    exposed_time: float
    """Collectives that compute has to wait for."""
    link_times: tuple[float, ...]
    """Collectives that can run while something else is computed, on each link of the mesh."""

    @property
    def hidden_time(self) -> float:
        """Collectives that can run while something else is computed, on all links together."""
        return sum(self.link_times)

    @property
    def serial_time(self) -> float:
        """Time if nothing overlaps."""
        return self.compute_time + self.exposed_time + self.hidden_time

    @property
    def step_time(self) -> float:
        """Time with compute and every link working at the same time."""
        return self.exposed_time + max(self.compute_time, *self.link_times)


@dataclasses.dataclass(frozen=True)
class Estimate(StepTime):
    """Predicted cost of one step of a plan. Times in seconds, sizes in bytes per device.

    `step_time` lets those collectives run under compute that have something to run under
    (weights gathered ahead, gradients reduced behind), on different links at the same time;
    `serial_time` lets none.
    """

    peak_memory: int
    argument_memory: int
    """Arguments, alive during the whole step; donated ones double as results."""
    constant_memory: int
    """Arrays that the function closes over, alive during the whole step on every device."""
    capacity: int
    """Memory that a plan may use."""
    regather: bool
    """Whether what is gathered for uses far apart is gathered again, not kept in between."""
    traffic: Mapping[tuple[str, tuple[str, ...]], Traffic]
    """By kind and axes."""

    @property
    def fits(self) -> bool:
        """Whether the peak is within the capacity."""
        return self.peak_memory <= self.capacity

    def __str__(self) -> str:
        fits = "fits" if self.fits else "DOES NOT FIT"
        return (
            f"step {seconds(self.step_time)} (compute {seconds(self.compute_time)}, collectives "
            f"{seconds(self.exposed_time)} exposed + {seconds(self.hidden_time)} hidden), "
            f"peak memory {size(self.peak_memory)} of {size(self.capacity)}: {fits}"
        )


def seconds(value: float) -> str:
    """A time for people: `1.23 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return (
                f"{value / scale:.3g} {unit}"
                if value < 1000 * scale
                else f"{value / scale:.0f} {unit}"
            )
    return f"{value / 1e-9:.3g} ns"


def size(value: float) -> str:
    """A size for people: `15.8 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def parse_size(text: float | str, what: str) -> int:
    """Bytes, of a number or a string such as `"12GiB"`.

    Args:
      text: the number or the string.
      what: the argument that it was given for, for the message.

    Raises:
      HardwareError: it cannot be read.
    """
    if not isinstance(text, str):
        return int(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?\s*", text)
    if not match:
        raise HardwareError(f'cannot read {what}="{text}"; expected bytes or e.g. "12GiB"')
    power = " KMGT".index((match[2] or " ")[0].upper())
    base = 1024 if (match[2] or "").endswith("i") else 1000
    return int(float(match[1]) * base**power)
