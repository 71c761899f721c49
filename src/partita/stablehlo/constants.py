"""Closed-over constants: arrays of a function that are part of its program.

They are replicated while the program runs. Hoisted, they are arguments, which can be sharded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from partita.program.ir import Constant, Program
from partita.program.op_traits import traits
from partita.stablehlo import mlir
from partita.stablehlo.artifact import artifact
from partita.stablehlo.inlining import inline
from partita.stablehlo.mlir import ir
from partita.stablehlo.passes.expansions import expand
from partita.stablehlo.refusals import tensor_type

NAME = "constants"
"""Prefix of the names of constants."""


def content(op: Any) -> Any | None:
    """Returns the content of a constant, comparable; None if all its elements are equal."""
    try:
        value = op.attributes["value"]
    except TypeError:  # jaxlib's bindings have no attribute class for complex elements
        text = str(op).partition("dense<")[2]
        return None if text.startswith("(") else text
    return None if value.is_splat else value


def hoist(text: str, least: int) -> tuple[str, tuple[np.ndarray, ...]]:
    """Makes large closed-over constants arguments of the function, after those that it has.

    Args:
      text: the module.
      least: how many bytes make a constant large.

    Returns:
      The module, and the arrays that go with the arguments added, the largest first.
    """
    with mlir.context():
        module = mlir.parse(text)
        expand(module)  # a composite that stands for an operation is not to be inlined
        inline(module)
        main = mlir.main_function(module)
        block = main.entry_block
        found = [group for group in _groups(main) if _size(group[0]) >= least]
        arrays = tuple(_array(group[0]) for group in found)
        for number, group in enumerate(found):
            location = ir.Location.name(f"{NAME}[{number}]")
            argument = block.add_argument(group[0].results[0].type, location)
            for op in group:
                op.results[0].replace_all_uses_with(argument)
                op.erase()
        mlir.update_signature(main)
        return module.operation.get_asm(enable_debug_info=True), arrays


def describe(
    program: Program, contents: Iterable[tuple[Any, int]], hoisted: int
) -> tuple[Constant, ...]:
    """The constants of a program, hoisted ones first, then the largest.

    Args:
      program: so far.
      contents: what each constant of it holds, and the value that it makes.
      hoisted: how many of its last arguments are closed-over constants.
    """
    groups: dict[Any, list[int]] = {}
    for held, value in contents:
        groups.setdefault(held, []).append(value)
    arguments = program.arguments[len(program.arguments) - hoisted :]
    if not groups and not hoisted:
        return ()
    by_size = sorted(groups.values(), key=lambda values: -program.values[values[0]].type.bytes)
    uses = program.uses()

    def constant(number: int, values: list[int], is_hoisted: bool) -> Constant:
        users = [program.operations[op] for value in values for op, _ in uses[value]]
        used = [f"{op.short} at {op.source}" if op.source else op.short for op in users]
        source = next((op.source for op in users if op.source), "")
        name, type_ = f"{NAME}[{number}]", program.values[values[0]].type
        return Constant(name, type_, tuple(dict.fromkeys(used)), source, is_hoisted, tuple(values))

    every = [([v], True) for v in arguments] + [(values, False) for values in by_size]
    return tuple(constant(number, *each) for number, each in enumerate(every))


def _groups(main: Any) -> list[list[Any]]:
    """The constants in a function, those that are equal together, the largest first."""
    groups: dict[Any, list[Any]] = {}
    for op in mlir.find(main.operation, lambda op: traits(op.name).constant):
        if (held := content(op)) is not None:
            groups.setdefault(held, []).append(op)
    return sorted(groups.values(), key=lambda group: -_size(group[0]))


def _size(op: Any) -> int:
    return tensor_type(op.results[0].type).bytes


def _array(op: Any) -> np.ndarray:
    """The array that a constant holds."""
    try:
        return np.array(op.attributes["value"])
    except TypeError:  # an element type that the bindings cannot hand over: have XLA do it
        type_ = op.results[0].type
        body = str(op).partition("=")[2]
        module = mlir.parse(
            f"module {{ func.func @main() -> {type_} {{ %0 = {body} return %0 : {type_} }} }}"
        )
        shape = mlir.shape_of(tensor_type(type_))
        exported = artifact(mlir.serialize(module), NAME, ((), {}), shape)
        return np.asarray(exported.call())
