"""partita: PARTItioning TActics for tensor programs.

`plan` decides how a JAX function is split over a mesh and what that costs; `Plan.jit` runs it that
way. `jit` does both in one line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from partita import startup as _startup  # noqa: F401  first: it acts while the others are imported
from partita.api import jit, plan
from partita.confirm import Confirmation, Confirmed, confirm
from partita.cost import Estimate, Hardware, Traffic
from partita.cost.compute.idle_axes import IdleAxis
from partita.cost.memory.footprint import Alive, Footprint
from partita.decisions import Action, Stage
from partita.errors import (
    ArgumentError,
    AxisError,
    FileError,
    HardwareError,
    LoweringError,
    MeshError,
    ModelError,
    OptionError,
    PartitaError,
    PartitaWarning,
    PlanChangedError,
    ProcessError,
    ReshardWarning,
    RuleError,
    SpecError,
    StrictError,
    TacticError,
    TraceError,
    UnknownNameError,
    UnsupportedError,
    VerifyError,
    renamed,
)
from partita.frontend.constrain import constrain
from partita.frontend.files import Module, read
from partita.frontend.microbatched import microbatched
from partita.mesh import Mesh
from partita.plan import Plan, load
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import TacticReport
from partita.program.ir import Constant
from partita.run.core import Core
from partita.simulate import simulate
from partita.spmd import Collective, ReplicatedUse
from partita.stablehlo.rules.registry import register_rule
from partita.stablehlo.versions import warn_if_untested
from partita.tactics import (
    AutomaticPartition,
    Blocked,
    DataParallel,
    ExpertParallel,
    FullyShardedDataParallel,
    LogicalAxes,
    ManualPartition,
    Megatron,
    Microbatch,
    Outcome,
    Refusal,
    SequenceParallel,
    Suggestion,
    Tactic,
    ZeRO,
    in_turn,
)
from partita.version import __version__ as __version__

if TYPE_CHECKING:
    from partita.explain import (
        Alternative,
        CollectiveExplanation,
        Explanation,
        ValueExplanation,
    )
    from partita.planning.diff import PlanDiff
    from partita.planning.strict import Problem
    from partita.saved import NotKept
    from partita.verify import Verification
    from partita.verify.number_check import NumberCheck

__all__ = [
    "Action",
    "Alive",
    "Alternative",
    "ArgumentError",
    "AutomaticPartition",
    "AxisError",
    "Blocked",
    "Collective",
    "CollectiveExplanation",
    "Confirmation",
    "Confirmed",
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
    "IdleAxis",
    "LogicalAxes",
    "LoweringError",
    "ManualPartition",
    "Megatron",
    "Mesh",
    "MeshCandidate",
    "MeshError",
    "Microbatch",
    "ModelError",
    "Module",
    "NotKept",
    "NumberCheck",
    "OptionError",
    "Outcome",
    "PartitaError",
    "PartitaWarning",
    "Plan",
    "PlanChangedError",
    "PlanDiff",
    "Problem",
    "ProcessError",
    "Refusal",
    "ReplicatedUse",
    "ReshardWarning",
    "RuleError",
    "SequenceParallel",
    "SpecError",
    "Stage",
    "StrictError",
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
    "confirm",
    "constrain",
    "in_turn",
    "jit",
    "load",
    "microbatched",
    "plan",
    "read",
    "register_rule",
    "simulate",
]

_ON_USE = {
    "Alternative": "partita.explain",
    "CollectiveExplanation": "partita.explain",
    "Explanation": "partita.explain",
    "NotKept": "partita.saved",
    "NumberCheck": "partita.verify.number_check",
    "PlanDiff": "partita.planning.diff",
    "Problem": "partita.planning.strict",
    "ValueExplanation": "partita.explain",
    "Verification": "partita.verify",
}
"""Names that are loaded when they are used, by their module: most programs never do."""

_DEPRECATED = {
    "WayOut": "Suggestion",
    "WholeUse": "ReplicatedUse",
}
"""Former names, which warn and work for one release."""


warn_if_untested()


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("partita.testing")
    if name in _DEPRECATED:
        now = _DEPRECATED[name]
        renamed(f"partita.{name}", f"partita.{now}")
        return globals()[now] if now in globals() else __getattr__(now)
    if name in _ON_USE:
        return getattr(importlib.import_module(_ON_USE[name]), name)
    raise AttributeError(f"module 'partita' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
