"""Cost: an SPMD program and a kind of hardware -> time and memory of a step."""

from partita.cost.collectives import Interconnect, interconnect
from partita.cost.combine import Combined, Together, after_combining, combine
from partita.cost.estimate import Estimate, Traffic
from partita.cost.hardware import Hardware, kind_of, kinds, load
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
    "interconnect",
    "kind_of",
    "kinds",
    "load",
]
