"""jaxlib's MLIR bindings, and what modules are read and written with."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy
from jaxlib.mlir.dialects import stablehlo as hlo

from partita.errors import UnsupportedError
from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.stablehlo import internals
from partita.stablehlo.limits import check_text
from partita.stablehlo.reading import UnreadableError, decode, unreadable

__all__ = [
    "attributes_of",
    "chlo",
    "context",
    "element_types",
    "filled",
    "find",
    "hlo",
    "inlined",
    "ir",
    "is_constant",
    "load",
    "main_function",
    "maker",
    "number_of",
    "origin",
    "parse",
    "returned",
    "run_passes",
    "sdy",
    "serialize",
    "shape_of",
    "splat",
    "top_of",
    "update_signature",
]

_RESOURCE = re.compile(r"dense_resource<([\w.$-]+)>")
_GROUPS = re.compile(r"replica_groups|source_target_pairs")
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
        first = error.error_diagnostics[0]
        raise unreadable(first.message, str(first.location)) from None


def afresh(module: Any) -> Any:
    """The same module once more, of which there are no handles; by way of bytecode, which is read
    and written several times as fast as text."""
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return parse(written.getvalue())


def load(data: str | bytes, file: str) -> str:
    """The text, with locations, of a module in any form: text, bytecode, or portable artifact.

    Constants that are kept apart from the module's body (resources) are put where they stand.
    Operations without a location get their line in `file`.

    Raises:
      UnsupportedError: it cannot be read, or is beyond a limit.
    """
    if isinstance(data, str):
        check_text(data)
        if _GROUPS.search(data):
            text = decode(data.encode())
        else:
            text = parse(data).operation.get_asm(enable_debug_info=True)
    else:
        text = decode(data)
        check_text(text)
    return _inline_resources(text).replace('loc("-":', f"loc({_quoted(file)}:")


def _quoted(text: str) -> str:
    """A string as MLIR writes it: bytes that are no printable ASCII as two digits."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode())
    return f'"{"".join(plain)}"'


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


def find(operation: Any, wanted: Callable[[Any], bool], outer_first: bool = False) -> list[Any]:
    """Returns the operations inside of one, itself included, that satisfy a predicate, in order.

    Those inside of another one come before it, or `outer_first` after it.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if wanted(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit, ir.WalkOrder.PRE_ORDER if outer_first else ir.WalkOrder.POST_ORDER)
    return found


def top_of(op: Any) -> Any:
    """The module that an operation is in, as an operation."""
    while op.parent is not None:
        op = op.parent.operation
    return op


def maker(value: Any) -> Any | None:
    """The operation that makes a value; None for an argument of a block."""
    return value.owner.operation if isinstance(value, ir.OpResult) else None


def origin(value: Any) -> Any:
    """The value that another one is made from by operations that keep zeros, and nothing else."""
    while (op := maker(value)) is not None and traits(op.name).keeps_zeros:
        value = op.operands[0]
    return value


RETURNS = ("func.return", "stablehlo.return", "sdy.return")
"""Operations that end a block, with the values that it gives."""


def returned(block: Any) -> list[Any]:
    """The values that a block ends with."""
    return list(list(block.operations)[-1].operation.operands)


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


def number_of(value: Any) -> Any | None:
    """The number that a constant holds everywhere; None for any other value."""
    op = maker(value)
    return getattr(splat(op), "value", None) if op is not None and is_constant(op) else None


def is_constant(op: Any) -> bool:
    """Returns whether an operation is a constant of the text, as Shardy may write it, too."""
    return traits(op.name).constant or op.name == "sdy.constant"


def _inline_resources(text: str) -> str:
    """Puts constants from the module's resource section into the constants themselves."""
    if "dense_resource<" not in text:
        return text
    body, _, section = text.partition("\n{-#")
    blobs = dict(_BLOB.findall(section))

    def dense(match: re.Match[str]) -> str:
        if match[1] not in blobs:
            raise UnreadableError(f"the module lacks the constant that it calls {match[1]!r}")
        return f'dense<"0x{blobs[match[1]][8:]}">'  # the first four bytes are the alignment

    return _RESOURCE.sub(dense, body)


def serialize(module: Any) -> bytes:
    """A module as the portable artifact that `jax.export` keeps, Shardy's dialect included."""
    requirement = hlo.StablehloCompatibilityRequirement.WEEK_4
    version = hlo.get_version_from_compatibility_requirement(requirement)
    return bytes(internals.serialize_portable_artifact(module, version, True))


def run_passes(module: Any, passes: str) -> None:
    """Runs MLIR passes, in MLIR's syntax of a pipeline, on a module in place.

    Raises:
      UnsupportedError: a pass fails over the module.
    """
    try:
        passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
    except ir.MLIRError as error:
        first = error.error_diagnostics[0]
        raise UnsupportedError(f"MLIR cannot process the program: {first.message}") from None


def inlined(function: Any, operands: Sequence[Any], location: Any) -> Sequence[Any]:
    """Writes the body of a function out at the insertion point; what it returns."""
    made: Sequence[Any] = _jax_mlir_ext.inlined_func_call(
        function.operation, list(operands), location
    )
    return made
