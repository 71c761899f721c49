"""Constraints: values that the user's function says how to split.

`jax.lax.with_sharding_constraint` lowers to `sdy.sharding_constraint`, and `constrain`, while
partita traces, to a custom call. `note` turns each of them into a reshape to the shape that the
value has, with an attribute that says what the constraint says: so the program stays one that runs
on a single device, and each reading of it sees the constraint in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.program.ir import Given
from partita.program.rule import Factor, Rule
from partita.stablehlo import attributes
from partita.stablehlo import custom_calls as calls
from partita.stablehlo.mlir import find, hlo, ir
from partita.stablehlo.shardings import Said, meshes_of, read_sharding, says_nothing, with_mesh

CALL = "partita.constrain"
"""Target of the custom calls that stand for constraints over the mesh of the plan."""

_KIND = "sdy.sharding_constraint"
_KEY = "partita.constraint"


def note(module: Any, main: Any) -> None:
    """Replaces constraints by operations that stand for them; drops those that say nothing."""
    meshes = meshes_of(module)
    found = find(main.operation, lambda op: op.name == _KIND or calls.is_one(op, CALL))
    for op in found:
        value = op.operands[0]
        if op.name == _KIND:
            sharding = op.attributes["sharding"]
        else:
            sharding = ir.Attribute.parse(calls.said(op))
        if not says_nothing(sharding, meshes):
            with op.location:
                value = _identity(op, value, with_mesh(sharding, meshes))
        op.results[0].replace_all_uses_with(value)
        op.erase()


def of_results(main: Any, shardings: Mapping[int, str]) -> None:
    """Puts a constraint before each of these results of a function, given by their numbers.

    A result may be an argument, or one value several times: now each is a value of its own.
    """
    (returned,) = [op for op in main.entry_block.operations if op.operation.name == "func.return"]
    for number, sharding in shardings.items():
        with ir.Location.unknown():
            value = _identity(returned, returned.operands[number], sharding)
        returned.operation.operands[number] = value


def _identity(before: Any, value: Any, sharding: Any) -> Any:
    """An operation before another one that gives a value a sharding; the value it makes."""
    with ir.InsertionPoint(before):
        made = hlo.reshape(value.type, value)
    attributes.put(made.owner, _KEY, str(sharding))
    return made


def is_constraint(operation: Any) -> bool:
    """Whether an operation stands for a constraint."""
    return operation.name == "stablehlo.reshape" and bool(attributes.get(operation, _KEY))


def said_by(operation: Any, name: str) -> Said:
    """What a constraint says.

    Raises:
      UnsupportedError: what no `PartitionSpec` can say.
    """
    return read_sharding(ir.Attribute.parse(attributes.get(operation, _KEY)), {}, name)


def facts(said: Said, same: Rule) -> tuple[Rule, Given]:
    """The rule of a constraint and what is given, from that of a result which is its operand."""
    factors = tuple(
        factor if is_open else Factor(factor.size, "given")
        for factor, is_open in zip(same.factors, said.open, strict=True)
    )
    return Rule(factors, same.operands, same.results), Given(said.axes, said.mesh)
