"""Every use of jaxlib's MLIR bindings that reads a program. A change in jaxlib is a change here.

`prepare` brings a module into the one shape that the importer and the emitter share: a single
function `main`, no calls, every use of a constant with its own copy, no dead operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jax._src.interpreters import mlir as jax_mlir  # the context with every dialect JAX emits
from jax.extend.mlir import ir, serialize_portable_artifact
from jaxlib.mlir import passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo

from partita.errors import UnsupportedError
from partita.program.operations import REWRITTEN

__all__ = ["context", "ir", "main_function", "parse", "prepare", "serialize", "splat", "with_rules"]


@contextlib.contextmanager
def context() -> Iterator[None]:
    """An MLIR context in which modules can be parsed and built."""
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        yield


def parse(text: str | bytes) -> Any:
    """Parses a module; raises `UnsupportedError` with MLIR's own message for an unreadable one."""
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        raise UnsupportedError(f"this is not a readable StableHLO module: {error}") from None


def main_function(module: Any) -> Any:
    """The function `main`, or the only one there is."""
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    for function in functions:
        if function.name.value == "main":
            return function
    if len(functions) == 1:
        return functions[0]
    raise UnsupportedError("the module has no function `main`")


def prepare(text: str) -> str:
    """Inlines calls, splits shared constants, drops what is dead; returns the module's text."""
    module = parse(text)
    _rewrite(module)
    _inline_calls(module)
    _drop_open_constraints(main_function(module))
    # Handles to erased operations are unsafe to keep: go on with a fresh parse.
    module = parse(module.operation.get_asm(enable_debug_info=True))
    _run(module, "symbol-dce,sdy-constant-or-scalar-splitter")
    _copy_for_each_use(main_function(module))
    _erase_dead(main_function(module).entry_block)
    text = module.operation.get_asm(enable_debug_info=True)
    # The splitter turns constants into Shardy's own, which XLA does not take.
    return text.replace("sdy.constant dense", "stablehlo.constant dense")


def with_rules(text: str) -> Any:
    """Parses a prepared module and has Shardy attach a sharding rule to every operation."""
    module = parse(text)
    _run(module, "func.func(sdy-populate-op-sharding-rules)")
    return module


def splat(constant: Any) -> Any | None:
    """The one element that a constant holds everywhere; None if they differ or are complex."""
    try:
        value = constant.attributes["value"]
    except TypeError:  # jaxlib's bindings have no attribute class for complex elements
        return None
    return value.get_splat_value() if value.is_splat else None


def serialize(module: Any) -> bytes:
    """A module as the portable artifact that `jax.export` keeps, Shardy's dialect included."""
    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    version = stablehlo.get_version_from_compatibility_requirement(requirement)
    return bytes(serialize_portable_artifact(module, version, True))


def _run(module: Any, passes: str) -> None:
    passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)


def _rewrite(module: Any) -> None:
    """Replaces operations that are other ones in disguise, if there are any."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in REWRITTEN:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        if op.name == "stablehlo.get_dimension_size":
            _replace_by_its_size(op)
    if found:
        stablehlo.register_stablehlo_passes()
        passes = ",".join(_REWRITES)
        _run(module, f"func.func({passes})")


_REWRITES = (
    "stablehlo-legalize-composite-to-call",
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}",
    "stablehlo-canonicalize-dynamism",
)


def _replace_by_its_size(op: Any) -> None:
    operand = ir.RankedTensorType(op.operands[0].type)
    dimension = op.attributes["dimension"].value
    if not operand.is_dynamic_dim(dimension):
        type_ = ir.RankedTensorType(op.results[0].type)
        size = ir.IntegerAttr.get(type_.element_type, operand.get_dim_size(dimension))
        with ir.InsertionPoint(op), op.location:
            constant = stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, size))
        op.results[0].replace_all_uses_with(constant)


def _calls(operation: Any) -> list[Any]:
    found = []

    def visit(op: Any) -> Any:
        if op.name == "func.call":
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found


def _inline_calls(module: Any) -> None:
    symbols = ir.SymbolTable(module.operation)
    main = main_function(module)
    while calls := _calls(main.operation):
        for call in calls:
            callee = symbols[call.attributes["callee"].value]
            with ir.InsertionPoint(call):
                results = _jax_mlir_ext.inlined_func_call(
                    callee.operation, list(call.operands), call.location
                )
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()


def _drop_open_constraints(main: Any) -> None:
    """Takes out the constraints over an empty mesh that JAX itself adds (to random keys)."""
    for view in list(main.entry_block.operations):
        op = view.operation
        if op.name == "sdy.sharding_constraint" and "@empty_mesh" in str(op.attributes["sharding"]):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _copy_for_each_use(main: Any) -> None:
    """Gives every use of a constant or iota its own copy, those by other constants included."""
    shared = []

    def visit(op: Any) -> Any:
        if op.name in ("stablehlo.iota", "sdy.constant", "stablehlo.constant"):
            uses = [(use.owner, use.operand_number) for use in op.results[0].uses]
            if len(uses) > 1:
                shared.append((op, uses[1:]))
        return ir.WalkResult.ADVANCE

    main.operation.walk(visit)
    for op, uses in shared:
        for owner, number in uses:
            with ir.InsertionPoint(op):
                owner.operands[number] = op.clone().results[0]


def _erase_dead(block: Any) -> None:
    for view in reversed(list(block.operations)):
        op = view.operation
        if op.name in ("stablehlo.while", "stablehlo.case", "stablehlo.if"):
            for region in op.regions:
                _erase_dead(region.blocks[0])
        used = any(True for result in op.results for _ in result.uses)
        if op.results and not used and not _has_effect(op):
            op.erase()


def _has_effect(op: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        effect = op.attributes.get("has_side_effect", None)
        return effect is not None and bool(effect.value)
    return op.name in {"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"}
