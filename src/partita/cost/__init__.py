"""Cost: an SPMD program and a kind of hardware -> time and memory of a step."""

from partita.cost.collectives import Topology, topology
from partita.cost.estimate import Estimate, Traffic
from partita.cost.hardware import Hardware, kind_of, kinds, load
from partita.cost.model import CostModel, Price

__all__ = [
    "CostModel",
    "Estimate",
    "Hardware",
    "Price",
    "Topology",
    "Traffic",
    "kind_of",
    "kinds",
    "load",
    "topology",
]
