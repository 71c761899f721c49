"""What the compilers of a platform lack, written out in what they have.

A plan is emitted as the program that was planned; where it runs on devices of another platform,
some operations have to be others there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from partita.program.ir import Program
from partita.stablehlo import mlir
from partita.stablehlo.functions import write_out
from partita.stablehlo.mlir import find, ir
from partita.stablehlo.refusals import target_of
from partita.stablehlo.rules.calls import PARTITIONED_CALL, PLACEMENT
from partita.stablehlo.rules.ragged import Ragged

Substitute = Callable[[Any], list[Any]]
"""Of an MLIR operation, at whose place it builds: the values that stand for its results."""


def lacks(program: Program, platform: str) -> bool:
    """Whether a program is written otherwise for a platform than for its own."""
    if platform == program.platform:
        return False
    if program.partitioned or any(op.kernel for op in program.operations):
        return True
    missing = LACKING.get(platform, {})
    inside = (each for op in program.operations if op.work for each in op.work.operations)
    return any((op.target or op.kind) in missing for op in (*program.operations, *inside))


def adapt(module: Any, program: Program, platform: str = "") -> None:
    """Replaces in a module what the compilers of a platform do not have; within an MLIR context.

    Args:
      module: a form of the program.
      program: which program.
      platform: as JAX names it; by default that which the program was lowered for.
    """
    platform = platform or program.platform

    def whole(op: Any) -> list[Any]:
        said = program.partitioned[op.attributes["backend_config"].value]
        return write_out(said.whole, list(op.operands), platform, op.location)

    missing = {PARTITIONED_CALL: whole, **LACKING.get(platform, {})}
    found = find(module.operation, lambda op: (target_of(op) or op.name) in missing)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            results = missing[target_of(op) or op.name](op)
        for old, new in zip(op.results, results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _dense(op: Any) -> list[Any]:
    """A product with ragged groups as JAX has it on a host: dense ones of masked operands."""
    numbers = Ragged.of(op)
    said = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(numbers.contracted, numbers.batch),
        lhs_ragged_dimensions=(numbers.rows,),
        rhs_group_dimensions=() if numbers.groups is None else (numbers.groups,),
    )
    dtype = mlir.element_types()[str(ir.RankedTensorType(op.results[0].type).element_type)]

    def product(left: Any, right: Any, sizes: Any) -> Any:
        return lax.ragged_dot_general(
            left, right, sizes, ragged_dot_dimension_numbers=said, preferred_element_type=dtype
        )

    return write_out(product, list(op.operands), "cpu", op.location)


def _operand(op: Any) -> list[Any]:
    """Its memory is the host's, whatever it is called."""
    return [op.operands[0]]


LACKING: dict[str, dict[str, Substitute]] = {
    "cpu": {"chlo.ragged_dot": _dense, PLACEMENT: _operand}
}
"""By platform, the kinds and targets that its compilers do not have, and what to do instead."""
