"""Cost: an SPMD program and a device type -> time and memory of a step.

`model` prices lowerings, by plans of value classes (`plan_costs`) and forms of operation classes.
It stands on, low to high:

- `compilers`: what compilers do, as rules with their experiments.
- `devices`: what devices and networks can do, as data from files, and how to measure that.
- `kernels`: what a compiler makes of a program, whatever the tiling: what is stored, and when.
- `compute`, `network`, `memory`: the time of kernels and of collectives, and the peak.
- `schedule`: which work of a loop hides its collectives.

`timeline` divides a price among the instructions of a program.
"""

from partita.cost.devices.files import device_type_of, device_types, load
from partita.cost.devices.hardware import Hardware
from partita.cost.estimate import Estimate, Together, Traffic
from partita.cost.model import CostModel
from partita.cost.network.collectives import Interconnect, interconnect
from partita.cost.plan_costs import Cost

__all__ = [
    "Cost",
    "CostModel",
    "Estimate",
    "Hardware",
    "Interconnect",
    "Together",
    "Traffic",
    "device_type_of",
    "device_types",
    "interconnect",
    "load",
]
