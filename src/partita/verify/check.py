"""Checking a plan: compiled with a real XLA, and compared with what was predicted."""

from __future__ import annotations

from partita import cost
from partita.errors import HardwareError
from partita.run.executable import Form
from partita.verify.collectives import found_collectives
from partita.verify.comparison import as_on_host, side_by_side
from partita.verify.compile import Compiled, OutOfMemoryError, compile_plan
from partita.verify.cycles import compiled_time
from partita.verify.hlo import parse
from partita.verify.loops import executions
from partita.verify.memory import predicted_memory
from partita.verify.predicted import Predicted
from partita.verify.rewrites import on_tpu
from partita.verify.verification import Verification


def verify(
    plan: Predicted,
    topology: str | None = None,
    form: Form = "partitioned",
    *,
    windowed_einsum: bool = False,
    combine: bool = True,
) -> Verification:
    """Compiles a plan and compares; `Plan.verify` and `compile_plan` say what the arguments are.

    A program that does not fit is a result, not an error.

    Raises:
      HardwareError: the plan was priced for another kind of device than the topology has.
      MeshError: too few host devices, or a topology of another size.
      VerifyError: there is no compiler for it, or the compiler fails.
    """
    _check_kind(plan, topology)
    try:
        compiled = compile_plan(
            plan, topology, form, windowed_einsum=windowed_einsum, combine=combine
        )
    except OutOfMemoryError as error:
        return verified(plan, topology, form, error)
    return verified(plan, topology, form, compiled)


def verified(
    plan: Predicted, topology: str | None, form: Form, compiled: Compiled | OutOfMemoryError
) -> Verification:
    """Compares a plan with what was compiled of it, or with the compiler's refusal."""
    predicted = predicted_memory(plan)
    if isinstance(compiled, OutOfMemoryError):
        return Verification(plan, topology, form, predicted, None, None, None, compiled, (), None)
    module = parse(compiled.text)
    runs = executions(module)
    found = found_collectives(module, runs)
    predicted_ones = plan.collectives if topology else as_on_host(plan.collectives)
    return Verification(
        plan,
        topology,
        form,
        predicted,
        compiled.memory,
        side_by_side(
            predicted_ones,
            plan.mesh,
            found,
            executions=topology is not None,
            becomes=on_tpu(plan.spmd, topology) if topology and form == "partitioned" else (),
        ),
        compiled_time(module, runs, found, plan.mesh, plan.hardware),
        None,
        runs.unknown,
        compiled.seconds,
    )


def _check_kind(plan: Predicted, topology: str | None) -> None:
    """Raises `HardwareError` if a plan was priced for another kind of device than compiled for."""
    if topology is None or plan.hardware.name not in cost.device_types():
        return  # a host stands for anything; what a user's file describes only the user knows
    kind = cost.device_type_of(f"TPU {topology.partition(':')[0]}")
    if kind is not None and kind != plan.hardware.name:
        raise HardwareError(
            f"the plan is priced for {plan.hardware.name}, and topology {topology} has devices of "
            f"kind {kind}; plan with hardware={kind!r}"
        )
