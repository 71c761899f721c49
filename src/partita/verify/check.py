"""Checking a plan: compiled with a real XLA, and compared with what was predicted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping

from partita import cost
from partita.errors import HardwareError
from partita.program.collectives import ALL_REDUCE, REDUCE_SCATTER
from partita.program.ir import bits
from partita.run.executable import Form
from partita.spmd import Collective
from partita.verify.backends import Backend, backend_for
from partita.verify.collectives import Found, found_collectives
from partita.verify.comparison import Comparison, side_by_side
from partita.verify.compile import Compiled, OutOfMemoryError, silenced
from partita.verify.hlo import HloModule, parse
from partita.verify.kernels import NOTHING
from partita.verify.loops import Executions, executions
from partita.verify.memory import predicted_memory
from partita.verify.predicted import Predicted
from partita.verify.verification import Verification


def verify(
    plan: Predicted,
    topology: str | None = None,
    form: Form = "partitioned",
    *,
    windowed_einsum: bool = False,
    combine: bool = True,
    verbose: bool = False,
    compiler_options: Mapping[str, str | bool] | None = None,
) -> Verification:
    """Compiles a plan and compares it with its prediction; `Plan.verify` documents the arguments.

    A program that does not fit is a result, not an error.

    Raises:
      HardwareError: the plan is for another device type than the topology has.
      MeshError: too few host devices, or a topology of another size.
      VerifyError: there is no such topology, no compiler for it, or the compiler fails.
    """
    backend = backend_for(topology)
    _check_device_type(plan, backend)
    options = backend.options(windowed_einsum=windowed_einsum, combine=combine)
    options |= compiler_options or {}
    compiled: Compiled | OutOfMemoryError
    with contextlib.nullcontext() if verbose else silenced():
        lowered = plan.lower(backend.device_mesh(plan.mesh), form)
        try:
            compiled = backend.compile(lowered, options)
        except OutOfMemoryError as error:
            compiled = error
    return verified(plan, backend, form, compiled)


def verified(
    plan: Predicted, backend: Backend, form: Form, compiled: Compiled | OutOfMemoryError
) -> Verification:
    """Compares a plan with what was compiled of it, or with the compiler's refusal."""
    predicted = predicted_memory(plan)
    if isinstance(compiled, OutOfMemoryError):
        return Verification(plan, backend, form, predicted, None, None, None, compiled, (), None)
    module = parse(compiled.text)
    runs = executions(module)
    found = collectives_of(module, runs, backend, form)
    return Verification(
        plan,
        backend,
        form,
        predicted,
        compiled.memory,
        _compared(plan, backend, form, found),
        backend.time(module, runs, found, plan),
        None,
        runs.unknown,
        compiled.seconds,
        _computed_again(module),
        compiled.text,
    )


def collectives_of(
    module: HloModule, runs: Executions, backend: Backend, form: Form
) -> list[Found]:
    """The collectives of a compiled program, in the order of its text."""
    found = found_collectives(module, runs)
    is_host = backend.keeps_collectives
    return [_cut(each) for each in found] if form == "given" and is_host else found


def _cut(found: Found) -> Found:
    """Replaces a sum of which each device keeps only a shard by a reduce_scatter. Compilers for
    accelerators make this rewrite themselves; the one for hosts does not."""
    if not found.cut or found.collective.kind != ALL_REDUCE.name:
        return found
    collective = dataclasses.replace(found.collective, kind=REDUCE_SCATTER.name)
    return dataclasses.replace(found, collective=collective)


def _computed_again(module: HloModule) -> int:
    """Returns how many operations the compiler rematerialises to save memory."""
    return sum(
        ".remat" in instruction.name and instruction.opcode not in NOTHING
        for computation in module.computations.values()
        for instruction in computation
    )


def _compared(plan: Predicted, backend: Backend, form: Form, found: list[Found]) -> Comparison:
    """Compares the collectives of a plan, in the types that devices move, with the compiled
    ones."""
    return side_by_side(
        [dataclasses.replace(c, bytes=_moved(plan, c, backend)) for c in plan.collectives],
        plan.mesh,
        found,
        executions=backend.counts_executions,
        becomes=() if form == "annotated" else backend.known_rewrites(plan.spmd),
    )


def _moved(plan: Predicted, collective: Collective, backend: Backend) -> int:
    """Returns the bytes that devices move, possibly in a wider type than the program's."""
    wider, own = backend.widening(collective.dtype), plan.spmd.collective_steps
    if wider == 1 or bits(collective.dtype) >= 8 or collective.index >= len(own):
        return collective.bytes * wider
    step = own[collective.index].step
    elements = max(step.before.elements, step.after.elements)
    if step.send is not None:
        elements = step.before.elements // step.before.shape[step.dim] * step.send.size
    return math.ceil(elements * bits(collective.dtype) * wider / 8)  # packed, they are rounded up


def _check_device_type(plan: Predicted, backend: Backend) -> None:
    """Raises `HardwareError` if a plan is for another device type than is compiled for."""
    wanted, given = backend.device_type, plan.hardware.name
    if given not in cost.device_types():
        return  # what a user's file describes only the user knows
    if wanted is not None and wanted != given:
        raise HardwareError(
            f"the plan is for {given}, and topology {backend.target} has devices of type {wanted}; "
            f"plan with hardware={wanted!r}"
        )
