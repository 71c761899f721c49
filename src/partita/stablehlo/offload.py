"""Values that a program keeps in the memory of the host, as JAX says it in a module."""

from __future__ import annotations

from typing import Any

from partita.program.memories import HOST
from partita.stablehlo import attributes
from partita.stablehlo.custom_calls import target_of
from partita.stablehlo.mlir import attributes_of
from partita.stablehlo.rules.calls import PLACEMENT

_PLACEMENT = "_xla_buffer_placement"
_KIND = "mhlo.memory_kind"


def memory_of(op: Any) -> str:
    """The memory that an operation moves its operand to; empty for any other operation."""
    return attributes.get(op, _PLACEMENT) if target_of(op) == PLACEMENT else ""


def hosted(main: Any, which: str, count: int) -> dict[int, str]:
    """The arguments (`arg_attrs`) or results (`res_attrs`) in host memory, by number.

    Each with its kind of memory.
    """
    infos = attributes_of(main, which, count)
    kinds = {n: info[_KIND].value for n, info in enumerate(infos) if _KIND in info}
    return {number: kind for number, kind in kinds.items() if kind in HOST}
