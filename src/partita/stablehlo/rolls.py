"""Rolls: a dimension whose first elements come after its last, as one operation.

`passes.rolls` finds rolls in a program, and puts calls of functions in their place. A function does
what the operations did, so the program stays one that runs on a single device; read again, it is
inlined.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from partita.program.rule import Reach, Rule
from partita.stablehlo import attributes
from partita.stablehlo.building import cut, joined, shape_of
from partita.stablehlo.mlir import ir, top_of

_KEY = "partita.roll"

Functions = dict[tuple[Any, int, int], str]
"""The functions of a module that roll: type, dimension and first index -> name."""


def is_roll(operation: Any) -> bool:
    """Returns whether an operation stands for a roll."""
    return operation.name == "func.call" and bool(attributes.get(operation, _KEY))


def place(operation: Any) -> tuple[int, int]:
    """The dimension that is rolled, and which index comes first."""
    dim, start = attributes.get(operation, _KEY).split()
    return int(dim), int(start)


def rule(operation: Any, same: Rule) -> Rule:
    """The rule of a roll, from that of a result which is its operand."""
    dim, start = place(operation)
    halo: list[Reach | None] = [None] * len(same.factors)
    halo[dim] = Reach(same.factors[dim].size, start, wraps=True)
    return dataclasses.replace(same, halos=(tuple(halo),))


def forget(module: Any) -> None:
    """Erases the functions that roll of a module that is read again: they are inlined by now."""
    for view in list(module.body.operations):
        if view.operation.name == "func.func" and view.name.value.startswith(_KEY):
            view.operation.erase()


def roll(module: Any, functions: Functions, value: Any, dim: int, start: int) -> Any:
    """A call, at the insertion point, of a function that rolls values of a type so."""
    key = value.type, dim, start
    if key not in functions:
        functions[key] = _function(module.body, *key)
    call = ir.Operation.create(
        "func.call",
        results=[value.type],
        operands=[value],
        attributes={"callee": ir.FlatSymbolRefAttr.get(functions[key])},
    )
    attributes.put(call, _KEY, f"{dim} {start}")
    return call.results[0]


def write(value: Any, dim: int, start: int) -> Any:
    """Rolls a dimension, at the insertion point, so that the index `start` comes first."""
    return joined([cut(value, dim, start, shape_of(value)[dim]), cut(value, dim, 0, start)], dim)


def move(operation: Any, dim: int) -> None:
    """Makes a roll, whose operand and result have new types by now, roll this dimension."""
    start = place(operation)[1]
    body = top_of(operation).regions[0].blocks[0]
    name = _function(body, operation.results[0].type, dim, start)
    operation.attributes["callee"] = ir.FlatSymbolRefAttr.get(name)
    attributes.put(operation, _KEY, f"{dim} {start}")


def _function(body: Any, type_: Any, dim: int, start: int) -> str:
    """Writes a function of a module that rolls values of a type; its name."""
    functions = [view.name.value for view in body.operations if view.operation.name == "func.func"]
    name = f"{_KEY}.{sum(each.startswith(_KEY) for each in functions)}"
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get([type_], [type_])),
            "sym_visibility": ir.StringAttr.get("private"),
        },
        regions=1,
        ip=ir.InsertionPoint(body),
    )
    block = function.regions[0].blocks.append(type_)
    with ir.InsertionPoint(block):
        ir.Operation.create("func.return", operands=[write(block.arguments[0], dim, start)])
    return name
