"""Cost: an SPMD program and a device type -> time and memory of a step."""

from partita.cost.collectives import Interconnect, interconnect
from partita.cost.estimate import Estimate, Together, Traffic
from partita.cost.files import device_type_of, device_types, load
from partita.cost.hardware import Hardware
from partita.cost.model import Cost, CostModel

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
