"""PyTorch: a module of torch in, placements of DTensor out.

`plan` decides how a module and its training are split over a mesh; `TorchPlan` has the placements
of its parameters by name, and `parallelize` applies them. `import partita` does not import this.
"""

from __future__ import annotations

try:
    import torch as _torch
except ModuleNotFoundError as error:  # pragma: no cover
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "partita.torch needs PyTorch, which is not installed; install it with: "
        "pip install 'partita[torch]'",
        name="torch",
    ) from error

from partita.torch.api import load, plan, read
from partita.torch.distribution import Distribution, ModulePlacements
from partita.torch.operations import operation
from partita.torch.parallelize import running
from partita.torch.plan import TorchPlan
from partita.torch.tools import Tools

__all__ = [
    "Distribution",
    "ModulePlacements",
    "Tools",
    "TorchPlan",
    "load",
    "operation",
    "plan",
    "read",
    "running",
]

del _torch
