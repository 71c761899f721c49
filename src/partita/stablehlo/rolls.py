"""Rolls: a dimension whose first elements come after its last, read as one operation.

`jnp.roll`, the halves of a rotary embedding that change places, and their gradients are written as
two slices that are put together in the other order. Such slices are not as long as each other, so
they cannot be sharded alike, while of the roll itself each device needs no more than a shard.

`note` puts a call of a function in place of the two slices and what joins them. The function does
what they did, so the program stays one that runs on a single device; read again, it is inlined.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from partita.program.op_traits import traits
from partita.program.rule import Reach, Rule
from partita.stablehlo import attributes, mlir, tags
from partita.stablehlo.building import cut, joined, within
from partita.stablehlo.manual_regions import is_manual
from partita.stablehlo.mlir import find, hlo, ir
from partita.stablehlo.rules.moves import padding

_KEY = "partita.roll"
_SPELT = ("stablehlo.concatenate", "stablehlo.add")
"""How a roll is written: the halves put together, or added after zeros."""


def note(module: Any, main: Any) -> None:
    """Puts a call in place of everything that rolls a dimension."""
    found = find(main.operation, lambda op: op.name in _SPELT and not is_manual(op))
    for view in list(module.body.operations):  # of a module that is read again: inlined by now
        if view.operation.name == "func.func" and view.name.value.startswith(_KEY):
            view.operation.erase()
    functions: dict[tuple[Any, int, int], str] = {}
    for op in found:
        halves = _halves(op)
        if halves is None:
            continue
        first, second = halves
        with ir.InsertionPoint(op), op.location:
            rolled = _call(module, functions, first)
            made = _applied(first, rolled)
            if first.done or second.done:
                made = _either(first, made, _applied(second, rolled))
        tags.add(made.owner, tags.of(op))
        op.results[0].replace_all_uses_with(made)
        op.erase()


def is_roll(operation: Any) -> bool:
    """Whether an operation stands for a roll."""
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


def write(value: Any, dim: int, start: int) -> Any:
    """Rolls a dimension, at the insertion point, so that the index `start` comes first."""
    size = ir.RankedTensorType(value.type).shape[dim]
    return joined([cut(value, dim, start, size), cut(value, dim, 0, start)], dim)


@dataclasses.dataclass(frozen=True)
class _Half:
    """A slice, from the index `start` to `stop` of a dimension, with what is done to it."""

    source: Any
    dim: int
    start: int
    stop: int
    done: tuple[Any, ...]
    """Elementwise operations of one operand, first one first."""


def _halves(op: Any) -> tuple[_Half, _Half] | None:
    """The two halves that an operation joins in the other order, that which comes first first."""
    if len(op.operands) != 2:
        return None
    if op.name == "stablehlo.concatenate":
        dim = op.attributes["dimension"].value
        pair: list[_Half | None] = [_half(value, dim) for value in op.operands]
    else:
        found = [each for each in map(_padded, op.operands) if each is not None]
        if len(found) != 2:
            return None
        (low, before), (place, after) = sorted(found, key=lambda each: each[0])
        if low or place != before.stop - before.start:
            return None
        pair = [before, after]
    first, second = pair
    if first is None or second is None or (first.source, first.dim) != (second.source, second.dim):
        return None
    size = ir.RankedTensorType(first.source.type).shape[first.dim]
    rolls = second.start == 0 and second.stop == first.start and first.stop == size
    return (first, second) if rolls and op.results[0].type == first.source.type else None


def _padded(value: Any) -> tuple[int, _Half] | None:
    """A half with zeros around it, as gradients of slices are; where it lies in these."""
    op = value.owner if isinstance(value, ir.OpResult) else None
    if op is None or op.name != "stablehlo.pad":
        return None
    fill = op.operands[1]
    constant = fill.owner if isinstance(fill, ir.OpResult) else None
    known = constant is not None and traits(constant.name).constant
    zero = getattr(mlir.splat(constant), "value", None) if known else None
    rank = ir.RankedTensorType(value.type).rank
    widths = {dim: padding(op, dim) for dim in range(rank)}
    moved = [dim for dim, each in widths.items() if any(each)]
    if zero != 0 or len(moved) != 1 or min(widths[moved[0]]) < 0 or widths[moved[0]][2]:
        return None
    half = _half(op.operands[0], moved[0])
    return None if half is None else (widths[moved[0]][0], half)


def _half(value: Any, dim: int) -> _Half | None:
    done: list[Any] = []
    while isinstance(value, ir.OpResult):
        op: Any = value.owner
        if op.name == "stablehlo.slice":
            whole = list(ir.RankedTensorType(op.operands[0].type).shape)
            names = ("start_indices", "limit_indices", "strides")
            starts, limits, strides = (list(op.attributes[name]) for name in names)
            rest = [d for d in range(len(whole)) if (starts[d], limits[d]) != (0, whole[d])]
            if rest != [dim] or set(strides) != {1}:
                return None
            return _Half(op.operands[0], dim, starts[dim], limits[dim], tuple(reversed(done)))
        alike = traits(op.name).elementwise and len(op.operands) == 1 == len(op.results)
        if not alike or op.operands[0].type != op.results[0].type or op.regions:
            return None
        done.append(op)
        value = op.operands[0]
    return None


def _applied(half: _Half, value: Any) -> Any:
    """What is done to a half, done to all of a value."""
    for op in half.done:
        copy = op.clone()
        copy.operands[0] = value
        copy.results[0].set_type(value.type)
        value = copy.results[0]
    return value


def _either(first: _Half, a: Any, b: Any) -> Any:
    """Of a value where the first half comes, of another one where the second does."""
    first_half = within(a.type, first.dim, 0, first.stop - first.start)
    return hlo.select(first_half, a, b)


def move(operation: Any, dim: int) -> None:
    """Has a roll, whose operand and result have other types by now, roll this dimension."""
    top = operation
    while top.parent is not None:
        top = top.parent.operation
    start = place(operation)[1]
    name = _function(top.regions[0].blocks[0], operation.results[0].type, dim, start)
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


def _call(module: Any, functions: dict[tuple[Any, int, int], str], first: _Half) -> Any:
    """A call of the function that rolls values of this type so."""
    type_, key = first.source.type, (first.source.type, first.dim, first.start)
    if key not in functions:
        functions[key] = _function(module.body, type_, first.dim, first.start)
    call = ir.Operation.create(
        "func.call",
        results=[type_],
        operands=[first.source],
        attributes={"callee": ir.FlatSymbolRefAttr.get(functions[key])},
    )
    attributes.put(call, _KEY, f"{first.dim} {first.start}")
    return call.results[0]
