"""Purpose of each value of a program: parameters, optimizer state, gradients, activations, ...

Purposes are read off the program's structure, not off names. A train step passes its state on: a
*state* argument has a result of its type that takes its place. The *update* is all that leads to
such results by elementwise operations alone. State that only the update reads is the optimizer's;
the rest are parameters. Values that enter the update from other operations, transposed or not, are
gradients. Everything else that is computed is an activation. State that is not updated this way (a
cache that is written into) counts as an input.
"""

from __future__ import annotations

import re
from typing import Literal

from partita.program.ir import Operation, Program

Purpose = Literal[
    "parameters", "optimizer state", "inputs", "constants", "activations", "gradients", "updates"
]


def purposes(program: Program, uses: list[list[tuple[int, int]]]) -> list[Purpose]:
    """Returns the purpose of every value.

    Args:
      program: to look at.
      uses: for every value, the (operation, operand number) pairs that read it.
    """
    state = _state(program)
    update = _update(program, {program.results[r] for r in state.values()})
    found: list[Purpose] = ["activations"] * len(program.values)
    for value in sorted(update):
        producer = program.values[value].producer
        if producer is not None:
            op = program.operations[producer]
            same = op.traits.rearranges and found[op.operands[0]] == "gradients"
            found[value] = "gradients" if same or not _updates(op) else "updates"
    for constant in program.constants:
        for value in constant.values:
            found[value] = "constants"
    for number, value in enumerate(program.arguments):
        if number not in state or value not in update:
            found[value] = "inputs"
        elif all(set(program.operations[op].results) <= update for op, _ in uses[value]):
            found[value] = "optimizer state"
        else:
            found[value] = "parameters"
    return found


def _state(program: Program) -> dict[int, int]:
    """Arguments that are passed on, and the results that take their place.

    Those are the donated ones; without any, those that a result has the path and the type of.
    """
    if program.aliases:
        return dict(program.aliases)
    found, taken = {}, set()
    results = {_path(name): number for number, name in enumerate(program.result_names)}
    for number, name in enumerate(program.argument_names):
        result = results.get(_path(name))
        if result is None or result in taken:
            continue
        types = (program.arguments[number], program.results[result])
        before, after = (program.values[v].type for v in types)
        if before == after and _path(name):
            found[number] = result
            taken.add(result)
    return found


def _path(name: str) -> str:
    """Returns a pytree path without its root: `['params']['w']` of `state['params']['w']`.

    JAX numbers results if there are several; their paths lose that number, too.
    """
    path = re.sub(r"^[^\[.]*", "", name)
    return re.sub(r"^\[\d+\](?=[\[.])", "", path) if name.startswith("result") else path


def _updates(op: Operation) -> bool:
    """Returns whether an update can consist of such an operation."""
    return op.traits.elementwise or op.traits.read_through


def _update(program: Program, results: set[int]) -> set[int]:
    """Returns the values that elementwise operations alone make into these results, and inputs."""
    found, waiting = set(results), list(results)
    while waiting:
        producer = program.values[waiting.pop()].producer
        if producer is None or not _updates(program.operations[producer]):
            continue
        for operand in program.operations[producer].operands:
            if operand not in found:
                found.add(operand)
                waiting.append(operand)
    return found
