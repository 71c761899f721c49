"""partita: PARTItioning TActics for tensor programs.

`plan` decides how a JAX function is split over a mesh and what that costs; `Plan.jit` runs it that
way. `jit` does both in one line.
"""

from partita.api import jit, plan
from partita.core import Core
from partita.cost import Estimate, Hardware, Traffic
from partita.cost.footprint import Alive, Footprint
from partita.errors import (
    AxisError,
    FileError,
    HardwareError,
    MeshError,
    ModelError,
    PartitaError,
    RuleError,
    TacticError,
    TraceError,
    UnknownNameError,
    UnsupportedError,
)
from partita.mesh import Mesh
from partita.plan import Plan
from partita.program.custom import register_rule
from partita.program.files import Module, read
from partita.program.ir import Constant
from partita.schedule import TacticReport
from partita.spmd import Collective, WholeUse
from partita.tactics import (
    Action,
    AutomaticPartition,
    Blocked,
    LogicalAxes,
    ManualPartition,
    Outcome,
    Refusal,
    Stage,
    Tactic,
    in_turn,
)

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Alive",
    "AutomaticPartition",
    "AxisError",
    "Blocked",
    "Collective",
    "Constant",
    "Core",
    "Estimate",
    "FileError",
    "Footprint",
    "Hardware",
    "HardwareError",
    "LogicalAxes",
    "ManualPartition",
    "Mesh",
    "MeshError",
    "ModelError",
    "Module",
    "Outcome",
    "PartitaError",
    "Plan",
    "Refusal",
    "RuleError",
    "Stage",
    "Tactic",
    "TacticError",
    "TacticReport",
    "TraceError",
    "Traffic",
    "UnknownNameError",
    "UnsupportedError",
    "WholeUse",
    "in_turn",
    "jit",
    "plan",
    "read",
    "register_rule",
]
