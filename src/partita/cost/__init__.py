"""Cost: an SPMD program and a kind of hardware -> time and memory of a step."""

from partita.cost.collectives import Topology, topology
from partita.cost.combine import Combined, Together, after_combining, combine
from partita.cost.estimate import Estimate, Traffic
from partita.cost.hardware import Hardware, kind_of, kinds, load
from partita.cost.model import CostModel, Price

__all__ = [
    "Combined",
    "CostModel",
    "Estimate",
    "Hardware",
    "Price",
    "Together",
    "Topology",
    "Traffic",
    "after_combining",
    "combine",
    "kind_of",
    "kinds",
    "load",
    "topology",
]
