"""Names of intermediate values: calls that stand for them become notes on what makes the values."""

from __future__ import annotations

from partita.stablehlo import custom_calls as calls
from partita.stablehlo import tags
from partita.stablehlo.passes.driver import Pattern

note_names = Pattern(
    lambda op: calls.target_of(op) == tags.CALL,
    lambda call: [tags.named(call.operands[0], [calls.said(call)])],
)
"""Puts the name of a value on the operation that makes it."""
