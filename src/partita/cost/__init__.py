"""Cost: an SPMD program and a device type -> time and memory of a step."""

from partita.cost.collectives import Interconnect, interconnect
from partita.cost.combine import Combined, Together, after_combining, combine
from partita.cost.estimate import Estimate, Traffic
from partita.cost.files import device_type_of, device_types, load
from partita.cost.hardware import Hardware
from partita.cost.model import Cost, CostModel

__all__ = [
    "Combined",
    "Cost",
    "CostModel",
    "Estimate",
    "Hardware",
    "Interconnect",
    "Together",
    "Traffic",
    "after_combining",
    "combine",
    "device_type_of",
    "device_types",
    "interconnect",
    "load",
]
