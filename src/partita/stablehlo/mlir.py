"""jaxlib's MLIR bindings, and what modules are read and written with."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy
from jaxlib.mlir.dialects import stablehlo as hlo

from partita.errors import UnsupportedError
from partita.program.ir import TensorType
from partita.program.refused import QUANTIZED
from partita.stablehlo import internals

__all__ = [
    "attributes_of",
    "chlo",
    "context",
    "element_types",
    "filled",
    "hlo",
    "inlined",
    "ir",
    "load",
    "main_function",
    "parse",
    "run_passes",
    "sdy",
    "serialize",
    "shape_of",
    "splat",
    "update_signature",
]

_RESOURCE = re.compile(r"dense_resource<([\w.$-]+)>")
_BLOB = re.compile(r'^\s*([\w.$-]+): "0x([0-9A-Fa-f]*)",?$', re.M)


@contextlib.contextmanager
def context() -> Iterator[None]:
    """An MLIR context in which modules can be parsed and built."""
    with internals.make_context(), ir.Location.unknown():
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
                module = hlo.deserialize_portable_artifact(ir.Context.current, raw)
            except ValueError:
                raise UnsupportedError(
                    "this portable artifact cannot be brought to the StableHLO of this jaxlib "
                    f"({hlo.get_current_version()}); write it for an older version"
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


@functools.cache
def element_types() -> dict[str, np.dtype]:
    """The types of array elements in JAX, by their names in StableHLO."""
    with context():
        return internals.element_types() | {"i1": np.dtype(bool)}


def filled(type_: Any, value: Any) -> Any:
    """A tensor of one Python number, made at the current insertion point."""
    ranked = ir.RankedTensorType(type_)
    element = ranked.element_type
    attribute: Any
    if isinstance(element, ir.ComplexType):
        part = ir.RankedTensorType.get(list(ranked.shape), ir.ComplexType(element).element_type)
        return hlo.complex(filled(part, value), filled(part, 0))
    if isinstance(element, ir.IntegerType):
        attribute = ir.IntegerAttr.get(element, int(value))
    else:
        attribute = ir.FloatAttr.get(element, float(value))
    return hlo.constant(ir.DenseElementsAttr.get_splat(ranked, attribute))


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
    requirement = hlo.StablehloCompatibilityRequirement.WEEK_4
    version = hlo.get_version_from_compatibility_requirement(requirement)
    return bytes(internals.serialize_portable_artifact(module, version, True))


def run_passes(module: Any, passes: str) -> None:
    """Runs MLIR passes, in MLIR's syntax of a pipeline, on a module in place."""
    passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)


def inlined(function: Any, operands: Sequence[Any], location: Any) -> Sequence[Any]:
    """Writes the body of a function out at the insertion point; what it returns."""
    made: Sequence[Any] = _jax_mlir_ext.inlined_func_call(
        function.operation, list(operands), location
    )
    return made
