"""Plans on devices of another platform than they are for, such as those for TPUs on a host.

A function is planned as JAX lowers it for the platform of the hardware. Nearly all of that runs
anywhere. What does not are calls of code that only that platform has: then the function is lowered
again for the devices at hand, and split there as the plan splits its arguments and results.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import TraceError, UnsupportedError
from partita.frontend.calling import Marked, Static
from partita.frontend.files import Module
from partita.frontend.trace import trace
from partita.planning.fixed_layouts import fixed
from partita.planning.prepare import Prepared, rewritten
from partita.planning.schedule import Scheduled
from partita.program.ir import Operation, Program
from partita.program.refused import COMPILED_CALLS
from partita.spmd import SpmdProgram
from partita.stablehlo.passes.adapt import LACKING


def elsewhere(
    done: Scheduled,
    fn: Any,
    marked: Marked,
    static: Static,
    closed_over: Sequence[np.ndarray],
    platform: str,
) -> SpmdProgram:
    """Returns what runs on devices of a platform: the program of a plan if it can, or a substitute.

    Args:
      done: the plan.
      fn: what it is a plan of.
      marked: what is static and donated.
      static: the static arguments of the plan.
      closed_over: the constants that it takes as arguments.
      platform: as JAX names it.

    Raises:
      UnsupportedError: the program calls code of another platform, and there is no other.
    """
    program, context = done.spmd.program, done.stage.context
    calls = {t: op for t, op in _calls(program).items() if t not in LACKING.get(platform, {})}
    if program.platform == platform or not calls:
        return done.spmd
    if isinstance(fn, Module):
        compiled = [op for op in calls.values() if any(c in op.target for c in COMPILED_CALLS)]
        if compiled and program.platform:
            raise _refusal(program, compiled[0], platform)
        return done.spmd
    args, kwargs = static.among(*context.arguments)
    hoist_from = min((constant.nbytes for constant in closed_over), default=None)
    try:
        traced = trace(fn, args, kwargs, marked, hoist_from, context.mesh, platform)
    except TraceError as error:
        raise _refusal(program, next(iter(calls.values())), platform) from error
    if calls.keys() <= _calls(traced.program).keys():
        return done.spmd
    mesh = context.mesh
    arguments, results = (
        {n: tuple(map(mesh.axis_names, layout)) for n, layout in enumerate(layouts)}
        for layouts in (done.spmd.argument_layouts, done.spmd.result_layouts)
    )
    here = fixed(rewritten(traced.program, mesh), arguments, results, mesh)
    prepared = Prepared(fn, traced, here, mesh, context.hardware, done.estimate.capacity)
    return prepared.schedule([], decides=True).spmd


def _calls(program: Program) -> dict[str, Operation]:
    """Returns the targets of a program's custom calls, each with one call."""
    inside = (op.work.operations for op in program.operations if op.work)
    operations = itertools.chain(program.operations, *inside)
    return {op.target: op for op in operations if op.target}


def _refusal(program: Program, call: Operation, platform: str) -> UnsupportedError:
    where = f" at {call.source}" if call.source else ""
    return UnsupportedError(
        f"{program.name} is planned for {program.platform} and calls {call.target}{where}, which "
        f"{platform} devices do not have; run the plan on {program.platform} devices, or plan a "
        f"function that runs on both, for example with pallas_call(interpret=True)"
    )
