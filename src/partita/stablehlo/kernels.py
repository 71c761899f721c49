"""Kernels that a program calls: what they are called, and what they say that they cost."""

from __future__ import annotations

import json
from typing import Any

from partita.program.ir import Kernel
from partita.stablehlo.custom_calls import target_of

_NAME = "kernel_name"
_CONFIG = "backend_config"


def kernel_of(op: Any) -> Kernel | None:
    """The kernel of a custom call; None for other operations and calls.

    Pallas writes the name for TPUs, and what the user gives as `cost_estimate`.
    """
    if not target_of(op) or _NAME not in op.attributes:
        return None
    said = _estimate(op)
    return Kernel(
        str(op.attributes[_NAME].value),
        float(said.get("flops", 0)),
        float(said.get("bytes_accessed", 0)),
    )


def _estimate(op: Any) -> dict[str, Any]:
    try:
        config = json.loads(op.attributes[_CONFIG].value)["custom_call_config"]
    except (KeyError, TypeError, ValueError, AttributeError):  # as another compiler has it
        return {}
    found = config.get("cost_estimate")
    return found if isinstance(found, dict) else {}
