"""partita: PARTItioning TActics for tensor programs.

`plan` decides how a JAX function is split over a mesh and what that costs; `Plan.jit` runs it that
way. `jit` does both in one line.
"""

from partita.api import jit, load, plan
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
    SpecError,
    TacticError,
    TraceError,
    UnknownNameError,
    UnsupportedError,
    VerifyError,
)
from partita.explain import (
    Alternative,
    CollectiveExplanation,
    Explanation,
    ValueExplanation,
)
from partita.frontend.constrain import constrain
from partita.frontend.files import Module, read
from partita.mesh import Mesh
from partita.plan import Plan
from partita.planning.diff import PlanDiff
from partita.planning.schedule import TacticReport
from partita.program.ir import Constant
from partita.run.core import Core
from partita.simulate import simulate
from partita.spmd import Collective, ReplicatedUse
from partita.stablehlo.rules.registry import register_rule
from partita.tactics import (
    Action,
    AutomaticPartition,
    Blocked,
    DataParallel,
    ExpertParallel,
    FullyShardedDataParallel,
    LogicalAxes,
    ManualPartition,
    Megatron,
    Outcome,
    Refusal,
    SequenceParallel,
    Stage,
    Suggestion,
    Tactic,
    ZeRO,
    in_turn,
)
from partita.verify import Verification
from partita.version import __version__ as __version__

__all__ = [
    "Action",
    "Alive",
    "Alternative",
    "AutomaticPartition",
    "AxisError",
    "Blocked",
    "Collective",
    "CollectiveExplanation",
    "Constant",
    "Core",
    "DataParallel",
    "Estimate",
    "ExpertParallel",
    "Explanation",
    "FileError",
    "Footprint",
    "FullyShardedDataParallel",
    "Hardware",
    "HardwareError",
    "LogicalAxes",
    "ManualPartition",
    "Megatron",
    "Mesh",
    "MeshError",
    "ModelError",
    "Module",
    "Outcome",
    "PartitaError",
    "Plan",
    "PlanDiff",
    "Refusal",
    "ReplicatedUse",
    "RuleError",
    "SequenceParallel",
    "SpecError",
    "Stage",
    "Suggestion",
    "Tactic",
    "TacticError",
    "TacticReport",
    "TraceError",
    "Traffic",
    "UnknownNameError",
    "UnsupportedError",
    "ValueExplanation",
    "Verification",
    "VerifyError",
    "ZeRO",
    "constrain",
    "in_turn",
    "jit",
    "load",
    "plan",
    "read",
    "register_rule",
    "simulate",
]
