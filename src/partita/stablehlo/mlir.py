"""Every use of jaxlib's MLIR bindings that reads a program. A change in jaxlib is a change here.

`prepare` brings a module into the one shape that the importer and the emitter share: a single
function `main`, no calls, every use of a constant with its own copy, no dead operations.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir as jax_mlir  # the context with every dialect JAX emits
from jax.extend.mlir import ir, serialize_portable_artifact
from jaxlib.mlir import passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo

from partita.errors import UnsupportedError
from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.program.refused import QUANTIZED
from partita.stablehlo import constraints, shard_map, tags

__all__ = [
    "attributes_of",
    "context",
    "element_types",
    "inline",
    "ir",
    "load",
    "main_function",
    "parse",
    "prepare",
    "serialize",
    "shape_of",
    "splat",
    "update_signature",
    "with_rules",
    "without_shardings",
]

_SYMBOLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Operations that stand for a function of the module, and the attribute that names it."""

_SHARDINGS = ("sdy.sharding", "mhlo.sharding")
_RESOURCE = re.compile(r"dense_resource<([\w.$-]+)>")
_BLOB = re.compile(r'^\s*([\w.$-]+): "0x([0-9A-Fa-f]*)",?$', re.M)


@contextlib.contextmanager
def context() -> Iterator[None]:
    """An MLIR context in which modules can be parsed and built."""
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        yield


def parse(text: str | bytes) -> Any:
    """Parses a module; raises `UnsupportedError` with MLIR's own reason for an unreadable one."""
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        reason = error.error_diagnostics[0]
        if "quant" in str(reason):  # a dialect of its own, which JAX does not load
            what, advice = QUANTIZED
            raise UnsupportedError(f"the program contains {what}; {advice}") from None
        line = re.search(r'"-":([1-9]\d*)', str(reason.location))
        where = f" (line {line[1]})" if line else ""
        raise UnsupportedError(
            f"this is not a readable StableHLO module: {reason.message}{where}"
        ) from None


def load(data: str | bytes, file: str) -> str:
    """The text, with locations, of a module in any form: text, bytecode, or portable artifact.

    Constants that are kept apart from the module's body (resources) are put where they stand.
    What has no other location gets its line in `file`.

    Raises:
      UnsupportedError: it cannot be read.
    """
    module = parse(data)
    if any(op.operation.name.startswith("vhlo.") for op in module.body.operations):
        raw = data.encode() if isinstance(data, str) else data
        with ir.Context.current.attach_diagnostic_handler(lambda _: True):
            try:
                module = stablehlo.deserialize_portable_artifact(ir.Context.current, raw)
            except ValueError:
                raise UnsupportedError(
                    "this portable artifact cannot be brought to the StableHLO of this jaxlib "
                    f"({stablehlo.get_current_version()}); write it for an older version"
                ) from None
    text = _inline_resources(module.operation.get_asm(enable_debug_info=True))
    return text.replace('loc("-":', f"loc({json.dumps(file)}:")


def main_function(module: Any) -> Any:
    """The function `main`, or the only one there is, or the only public one."""
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    public = [f for f in functions if "sym_visibility" not in f.attributes] or functions
    for candidates in ([f for f in functions if f.name.value == "main"], public):
        if len(candidates) == 1:
            return candidates[0]
    names = ", ".join(function.name.value for function in functions)
    raise UnsupportedError(
        f"the module has no function `main` ({f'only {names}' if names else 'it has none at all'});"
        " call the one to plan `main`, and make the others private"
    )


def attributes_of(function: Any, which: str, count: int) -> list[Any]:
    """The attributes of each argument (`arg_attrs`) or result (`res_attrs`) of a function."""
    attributes = function.attributes
    return list(attributes[which]) if which in attributes else [{}] * count


def prepare(text: str) -> str:
    """Inlines calls, splits shared constants, drops what is dead; returns the module's text."""
    module = parse(text)
    _rewrite(module)
    inline(module)
    constraints.note(module, main_function(module))
    shard_map.note(module, main_function(module))
    tags.note(main_function(module))
    # Handles to erased operations are unsafe to keep: go on with a fresh parse.
    module = parse(module.operation.get_asm(enable_debug_info=True))
    _run(module, "symbol-dce,sdy-constant-or-scalar-splitter")
    _copy_for_each_use(main_function(module))
    _erase_dead(main_function(module).entry_block)
    text = module.operation.get_asm(enable_debug_info=True)
    # The splitter turns constants into Shardy's own, which XLA does not take.
    return text.replace("sdy.constant dense", "stablehlo.constant dense")


def inline(module: Any) -> None:
    """Brings all of a program into the function `main`."""
    _inline_calls(module)
    _make_main(module)


def update_signature(main: Any) -> None:
    """Makes the type of a function fit its block, to whose arguments some have been added."""
    block = main.entry_block
    inputs, results = [a.type for a in block.arguments], list(main.type.results)
    known = attributes_of(main, "arg_attrs", len(main.type.inputs))
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    if "arg_attrs" in main.attributes:
        added = [ir.DictAttr.get({})] * (len(inputs) - len(known))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(known + added)


def shape_of(type_: TensorType) -> jax.ShapeDtypeStruct:
    """A tensor type as JAX has it; raises `UnsupportedError` for elements that JAX has not."""
    dtype = element_types().get(type_.dtype)
    if dtype is None:
        raise UnsupportedError(f"JAX has no arrays with elements of type {type_.dtype}")
    return jax.ShapeDtypeStruct(type_.shape, dtype)


def with_rules(text: str) -> Any:
    """Parses a prepared module and has Shardy attach a sharding rule to every operation."""
    module = parse(text)
    _run(module, "func.func(sdy-populate-op-sharding-rules)")
    return module


@functools.cache
def element_types() -> dict[str, np.dtype]:
    """The types of array elements in JAX, by their names in StableHLO."""
    with context():
        known = {str(jax_mlir.dtype_to_ir_type(d)): d for d in jax_mlir._dtype_to_ir_type}
    return known | {"i1": np.dtype(bool)}


def without_shardings(text: str) -> str:
    """A module without meshes and without the shardings of its arguments and results."""
    if "sdy.mesh" not in text and "mhlo.sharding" not in text:
        return text
    module = parse(text)
    main = main_function(module)
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh":
            view.operation.erase()
    for which in ("arg_attrs", "res_attrs"):
        kept = [
            ir.DictAttr.get({a.name: a.attr for a in attributes if a.name not in _SHARDINGS})
            for attributes in attributes_of(main, which, 0)
        ]
        if kept:
            main.attributes[which] = ir.ArrayAttr.get(kept)
    return str(module.operation.get_asm(enable_debug_info=True))


def splat(constant: Any) -> Any | None:
    """The one element that a constant holds everywhere; None if they differ or are complex."""
    try:
        value = constant.attributes["value"]
    except TypeError:  # jaxlib's bindings have no attribute class for complex elements
        return None
    return value.get_splat_value() if value.is_splat else None


def _inline_resources(text: str) -> str:
    """Puts constants from the module's resource section into the constants themselves."""
    body, found, section = text.partition("\n{-#")
    if not found:
        return text
    blobs = dict(_BLOB.findall(section))

    def dense(match: re.Match[str]) -> str:
        if match[1] not in blobs:
            raise UnsupportedError(f"the module lacks the constant that it calls {match[1]!r}")
        return f'dense<"0x{blobs[match[1]][8:]}">'  # the first four bytes are the alignment

    return _RESOURCE.sub(dense, body)


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
        if traits(op.name).treatment == "rewritten":
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
        if op.name in _SYMBOLS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found


def _inline_calls(module: Any) -> None:
    symbols = ir.SymbolTable(module.operation)
    main = main_function(module)
    while calls := _calls(main.operation):
        for call in calls:
            name = call.attributes[_SYMBOLS[call.name]].value
            callee = symbols[name]
            if not callee.regions[0].blocks:
                raise UnsupportedError(
                    f"the module calls the function {name!r}, which it declares but does not have"
                )
            with ir.InsertionPoint(call):
                results = _jax_mlir_ext.inlined_func_call(
                    callee.operation, list(call.operands), call.location
                )
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()


def _make_main(module: Any) -> None:
    """Calls the function to plan `main` and makes it the only public one, as JAX expects it."""
    main = main_function(module)
    for view in module.body.operations:
        if view.operation.name == "func.func":
            view.attributes["sym_visibility"] = ir.StringAttr.get("private")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    main.attributes["sym_name"] = ir.StringAttr.get("main")


def _copy_for_each_use(main: Any) -> None:
    """Gives every use of a constant or iota its own copy, those by other constants included."""
    shared = []

    def visit(op: Any) -> Any:
        if traits(op.name).treatment == "generated" or op.name == "sdy.constant":
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
        if traits(op.name).treatment == "structure":
            for region in op.regions:
                _erase_dead(region.blocks[0])
        used = any(True for result in op.results for _ in result.uses)
        if op.results and not used and not _has_effect(op):
            op.erase()


def _has_effect(op: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        effect = op.attributes.get("has_side_effect", None)
        return effect is not None and bool(effect.value)
    return traits(op.name).has_effect
