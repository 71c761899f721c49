"""Names of intermediate values: calls that stand for them become notes on what makes the values."""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo import custom_calls as calls
from partita.stablehlo import tags
from partita.stablehlo.mlir import hlo, maker
from partita.stablehlo.passes.driver import Pattern


def _rewrite(call: Any) -> list[Any]:
    (value,) = call.operands
    made = maker(value)
    if made is None or len(made.results) > 1 or traits(made.name).treatment == "structure":
        # Nothing else makes this value alone: a reshape to the shape that it has does.
        value = hlo.reshape(value.type, value)
        made = value.owner
    tags.add(made, [calls.said(call)])
    return [value]


note_names = Pattern(lambda op: calls.is_one(op, tags.CALL), _rewrite)
"""Has the operation that makes a named value say the name."""
