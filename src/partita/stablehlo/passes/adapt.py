"""Operations that compilers cannot run as they are, or compute wrongly, and their substitutes.

A plan is emitted as the program that was planned; on the devices that run it, some operations have
to be written differently.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from partita.program.ir import Program
from partita.program.op_traits import traits
from partita.stablehlo import mlir
from partita.stablehlo.custom_calls import target_of
from partita.stablehlo.functions import write_out
from partita.stablehlo.mlir import hlo, ir, maker, origin
from partita.stablehlo.operations.ragged import Ragged
from partita.stablehlo.passes.driver import Pattern, Rewrite
from partita.stablehlo.rules.calls import PARTITIONED_CALL, PLACEMENT


def lacks(program: Program, platform: str) -> bool:
    """Returns whether a program must be rewritten to run on a platform other than its own."""
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
    Pattern(lambda op: _kind(op) in missing, lambda op: missing[_kind(op)](op)).run(module)
    Pattern(_slices_a_product, _behind_a_barrier).run(module)


def _kind(op: Any) -> str:
    return target_of(op) or str(op.name)


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


def _row_major(op: Any) -> list[Any]:
    """A Fourier transform whose result, and with it the operand, stays in row-major order.

    XLA gives it the order that its users want, an all-gather along another dimension than the
    first for one, and its runtime for hosts then fails a check (`fft_thunk.cc`). It fails alike on
    one device, without partita:

        jax.jit(lambda x: with_layout_constraint(jnp.fft.fft(x), Layout((1, 0, 2))))(x)
    """
    made = op.clone()

    def constrained(value: Any) -> Any:
        return with_layout_constraint(value, Layout(tuple(range(value.ndim))))

    return write_out(constrained, list(made.results), "cpu", op.location)


def _slices_a_product(op: Any) -> bool:
    """Returns whether it reads a part of a product of integers, at places that are computed.

    XLA drops the product where that is of such a part itself, and of one number throughout. It
    does so on one device, without partita:

        jax.jit(lambda x, i: dynamic_slice(dynamic_slice(x, (i,), (2,)) * 15, (i,), (1,)))(x, 1)
    """
    if not traits(op.name).reads_window:
        return False
    product = maker(origin(op.operands[0]))
    if product is None or traits(product.name).combiner != "mul":
        return False
    return isinstance(ir.RankedTensorType(product.results[0].type).element_type, ir.IntegerType)


def _behind_a_barrier(op: Any) -> list[Any]:
    """The same, of an operand that the compiler does not look through."""
    copy = op.clone()
    with ir.InsertionPoint(copy):
        copy.operands[0] = hlo.optimization_barrier([op.operands[0]])
    return list(copy.results)


LACKING: dict[str, dict[str, Rewrite]] = {
    "cpu": {"chlo.ragged_dot": _dense, PLACEMENT: _operand, "stablehlo.fft": _row_major}
}
"""Substitutes by platform, for kinds and targets that its compilers cannot run as they are."""
