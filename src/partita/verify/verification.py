"""What was predicted of a plan, and what a compiler made of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from partita import cost
from partita.cost import Estimate
from partita.cost.estimate import StepTime
from partita.errors import HardwareError
from partita.verify.comparison import Comparison, as_on_host, side_by_side, widening
from partita.verify.compile import Compiled, OutOfMemoryError, compile_plan
from partita.verify.cycles import compiled_time
from partita.verify.exchanges import found_exchanges
from partita.verify.hlo import parse
from partita.verify.loops import executions
from partita.verify.memory import Memory, predicted_memory
from partita.verify.rewrites import on_tpu

if TYPE_CHECKING:
    from partita.plan import Form, Plan


@dataclasses.dataclass(frozen=True)
class Verification:
    """A prediction beside what was compiled; printed, a report. Made by `Plan.verify`."""

    plan: Plan
    topology: str | None
    """The TPUs compiled for; None for host devices."""
    form: Form
    predicted_memory: Memory
    memory: Memory | None
    """As the compiler assigns it; None if the program did not fit."""
    collectives: Comparison | None
    """By executions per step on TPUs, whose compiler unrolls loops, as they stand in the program on
    host devices. None if the program did not fit."""
    time: StepTime | None
    """Compute by the compiler's cycles, collectives by the model of their price; None where the
    compiler estimates none, or the hardware file has no clock."""
    out_of_memory: OutOfMemoryError | None
    unknown_loops: tuple[str, ...]
    """Loops of the compiled program whose trip count is not known; they count once."""
    seconds: float | None
    """How long compiling took."""

    @property
    def estimate(self) -> Estimate:
        """What was predicted."""
        return self.plan.estimate

    @property
    def problems(self) -> tuple[str, ...]:
        """What must not differ and does; empty if the prediction holds.

        Collectives that a plan makes explicit are compiled as they are on a host. A compiler for
        TPUs rewrites some, and a compiler that partitions by itself chooses its own: differences
        there are told, and are no failure.
        """
        found = []
        explicit = self.form == "partitioned" and self.topology is None
        if explicit and self.collectives is not None and not self.collectives.equal:
            found.append("the compiled program has other collectives than the plan")
        if self.out_of_memory is not None and self.estimate.fits:
            found.append("the plan was predicted to fit, and the compiler runs out of memory")
        return tuple(found)

    @property
    def widened(self) -> bool:
        """Whether the host moves wider types than the plan; sizes are those of the wider ones."""
        return self.topology is None and any(widening(c.dtype) > 1 for c in self.plan.collectives)

    @property
    def passed(self) -> bool:
        """Whether there are no `problems`."""
        return not self.problems

    def __str__(self) -> str:
        from partita.verify.report import render

        return render(self)

    __repr__ = __str__


def verify(
    plan: Plan,
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
    plan: Plan, topology: str | None, form: Form, compiled: Compiled | OutOfMemoryError
) -> Verification:
    """Compares a plan with what was compiled of it, or with the compiler's refusal."""
    predicted = predicted_memory(plan)
    if isinstance(compiled, OutOfMemoryError):
        return Verification(plan, topology, form, predicted, None, None, None, compiled, (), None)
    module = parse(compiled.text)
    runs = executions(module)
    found = found_exchanges(module, runs)
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


def _check_kind(plan: Plan, topology: str | None) -> None:
    """Raises `HardwareError` if a plan was priced for another kind of device than compiled for."""
    if topology is None or plan.hardware.name not in cost.kinds():
        return  # a host stands for anything; what a user's file describes only the user knows
    kind = cost.kind_of(f"TPU {topology.partition(':')[0]}")
    if kind is not None and kind != plan.hardware.name:
        raise HardwareError(
            f"the plan is priced for {plan.hardware.name}, and topology {topology} has devices of "
            f"kind {kind}; plan with hardware={kind!r}"
        )
