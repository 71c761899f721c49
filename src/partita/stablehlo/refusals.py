"""Refusals of unsupported programs: each says what is not supported, where, and what to do."""

from __future__ import annotations

from typing import Any

from partita.errors import UnsupportedError
from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.program.refused import BITS, CALLS, INSTEAD, TYPES, Refused
from partita.stablehlo.custom_calls import target_of
from partita.stablehlo.mlir import find, ir

_SHARDING = "sdy.sharding"


def tensor_type(type_: Any) -> TensorType:
    """The type of a value; raises `UnsupportedError` for what is no tensor of fixed shape."""
    try:
        ranked = ir.RankedTensorType(type_)
    except (TypeError, ValueError):
        for start, refused in TYPES.items():
            if str(type_).startswith(start):
                raise _refusal(refused, str(type_)) from None
        if not str(type_).startswith("tensor<*"):
            raise UnsupportedError(
                f"the program contains a value of type {type_}; expected tensors"
            ) from None
        ranked = None
    if ranked is None or not ranked.has_static_shape:
        raise UnsupportedError(
            f"{type_} has a dynamic shape; export the program with fixed shapes, for example by "
            "passing jax.ShapeDtypeStruct arguments"
        )
    return TensorType(tuple(ranked.shape), str(ranked.element_type))


def check_all(module: Any) -> None:
    """Raises `UnsupportedError` for the first thing in a module that a program must not contain.

    It looks at operations in order, and first at the types of what they make.
    """
    for op in find(module.operation, lambda _: True):
        if op.name not in ("builtin.module", "func.func"):
            for value in (*op.operands, *op.results):
                tensor_type(value.type)
            if op.name.partition(".")[0] not in ("func", "sdy"):
                check_supported(op, "")


def check_supported(op: Any, source: str) -> None:
    """Raises `UnsupportedError` for an operation that a program must not contain."""
    known = traits(op.name)
    if known.refusal is not None:
        raise _refusal(known.refusal, op.name, source)
    if known.treatment == "rewritten":
        raise UnsupportedError(
            f"the program contains {op.name}{_at(source)} with a shape that is not constant; "
            "export the program with fixed shapes"
        )
    dialect = op.name.partition(".")[0]
    if dialect not in ("stablehlo", "chlo"):
        raise UnsupportedError(
            f"the program contains {op.name}{_at(source)}, of the dialect {dialect!r}; expected "
            "StableHLO, the dialects 'stablehlo' and 'chlo'"
        )
    target = target_of(op)
    for part, refused in CALLS.items():
        if part in target:
            raise _refusal(refused, target, source)
    if op.name == "stablehlo.bitcast_convert" and _of_booleans(op):
        raise _refusal(BITS, op.name, source)
    if _SHARDING in op.attributes:
        given = Refused(f"a sharding given to {op.name.rpartition('.')[2]}", INSTEAD)
        raise _refusal(given, _SHARDING, source)


def _of_booleans(op: Any) -> bool:
    """Returns whether only one side is made of booleans."""
    sides = (op.operands[0], op.results[0])
    of = [str(ir.RankedTensorType(side.type).element_type) == "i1" for side in sides]
    return of[0] != of[1]


def _refusal(refused: Refused, name: str, source: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"the program contains {refused.what}{_at(source)} ({name}); {refused.advice}"
    )


def _at(source: str) -> str:
    return f" at {source}" if source else ""
