"""Constraints of the user's: what JAX lowers them to becomes operations that stand for them."""

from __future__ import annotations

import functools
from typing import Any

from partita.stablehlo import constraints
from partita.stablehlo import custom_calls as calls
from partita.stablehlo.mlir import ir
from partita.stablehlo.passes.driver import Pattern
from partita.stablehlo.shardings import meshes_of, says_nothing, with_mesh

_KIND = "sdy.sharding_constraint"


def note_constraints(module: Any) -> None:
    """Replaces constraints by operations that stand for them; drops those that say nothing."""
    Pattern(_matches, functools.partial(_rewrite, meshes_of(module)))(module)


def _matches(op: Any) -> bool:
    return op.name == _KIND or calls.target_of(op) == constraints.CALL


def _rewrite(meshes: dict[str, Any], op: Any) -> list[Any]:
    (value,) = op.operands
    said = op.attributes["sharding"] if op.name == _KIND else ir.Attribute.parse(calls.said(op))
    if says_nothing(said, meshes):
        return [value]
    return [constraints.constrained(value, with_mesh(said, meshes))]
