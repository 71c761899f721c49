"""Constraints: values that the user's function says how to split.

`jax.lax.with_sharding_constraint` lowers to `sdy.sharding_constraint`, and `constrain`, while
partita traces, to a custom call. `passes.constraints` turns each of them into a reshape to the
shape that the value has, with a note of what the constraint says: so the program stays one that
runs on a single device, and each reading of it sees the constraint in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.program.ir import Given
from partita.program.rule import Factor, Rule
from partita.stablehlo import attributes
from partita.stablehlo.mlir import hlo, ir, main_function
from partita.stablehlo.shardings import Said, read_sharding

CALL = "partita.constrain"
"""Target of the custom calls that stand for constraints over the mesh of the plan."""

_KEY = "partita.constraint"


def constrain_results(module: Any, shardings: Mapping[int, str]) -> bool:
    """Puts a constraint before each of these results of a program, given by their numbers.

    A result may be an argument, or one value several times: now each is a value of its own.
    """
    (*_, end) = [view.operation for view in main_function(module).entry_block.operations]
    with ir.InsertionPoint(end), ir.Location.unknown():
        for number, sharding in shardings.items():
            end.operands[number] = constrained(end.operands[number], sharding)
    return bool(shardings)


def constrained(value: Any, sharding: Any) -> Any:
    """A value with a sharding, made at the insertion point."""
    made = hlo.reshape(value.type, value)
    attributes.put(made.owner, _KEY, str(sharding))
    return made


def is_constraint(operation: Any) -> bool:
    """Returns whether an operation stands for a constraint."""
    return operation.name == "stablehlo.reshape" and bool(attributes.get(operation, _KEY))


def said_by(operation: Any, name: str) -> Said:
    """Returns the sharding that a constraint gives.

    Raises:
      UnsupportedError: no `PartitionSpec` can express it.
    """
    return read_sharding(ir.Attribute.parse(attributes.get(operation, _KEY)), {}, name)


def facts(said: Said, same: Rule) -> tuple[Rule, Given]:
    """The rule of a constraint and what is given, from that of a result which is its operand."""
    factors = tuple(
        factor if is_open else Factor(factor.size, "given")
        for factor, is_open in zip(same.factors, said.open, strict=True)
    )
    return Rule(factors, same.operands, same.results), Given(said.axes, said.mesh)
