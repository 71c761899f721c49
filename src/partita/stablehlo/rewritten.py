"""Programs whose modules are rewritten, and read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from partita.program.ir import Program
from partita.stablehlo import mlir, passes
from partita.stablehlo.importer import import_stablehlo


def for_devices(program: Program, devices: int) -> Program:
    """The same program with what so many devices can do in parts written so."""
    due = [
        each.rewrite
        for each in passes.FOR_DEVICES
        if any(each.concerns(program, op, devices) for op in program.operations)
    ]
    if devices == 1 or not due:
        return program
    return rewritten(program, lambda module: any([rewrite(devices, module) for rewrite in due]))


def rewritten(program: Program, rewrite: Callable[[Any], object]) -> Program:
    """The same program after a change of its module.

    Args:
      program: as it was read.
      rewrite: changes the module in place, and returns whether it has; arguments and results stay
        those of the program.
    """
    with mlir.context():
        module = mlir.parse(program.module)
        if not rewrite(module):
            return program
        text = module.operation.get_asm(enable_debug_info=True)
    return _read_again(text, program)


def _read_again(text: str, original: Program) -> Program:
    """Reads a changed module of a program; keeps what is known beyond the module's text."""
    hoisted = sum(constant.hoisted for constant in original.constants)
    program = import_stablehlo(text, original.name, hoisted)
    old, new = ((*p.arguments, *p.results) for p in (original, program))
    place = dict(zip(old, new, strict=True))
    return dataclasses.replace(
        program,
        argument_names=original.argument_names,
        result_names=original.result_names,
        roles=original.roles and original.roles.renumbered(place),
        aliases=original.aliases,
        keys=frozenset(place[value] for value in original.keys),
        given=tuple(dataclasses.replace(g, value=place[g.value]) for g in original.given),
        partitioned=original.partitioned,
        platform=original.platform,
        specs=original.specs,
    )
