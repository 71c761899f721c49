"""Reads files of `torch.export.save` without running anything that is in them.

`torch.export.load` runs what a file says: it unpickles sample inputs, evaluates expressions,
imports modules and loads shared libraries. A plan needs the graph and the numbers of constants
alone, no weight and no sample. So the JSON of the program is read here and held to
`archive_schema`. Its operators must be those of ATen, and only what passed is given to torch.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch._export.serde import schema, serialize
from torch.utils import _pytree as pytree

from partita import files
from partita.errors import FileError, PartitaError, UnsupportedError
from partita.torch import archive_schema as read
from partita.torch.operations.registry import OPERATIONS

_T = TypeVar("_T")

MOST_PROGRAM = 2**28
"""Bytes that the JSON of a program may have."""

MOST_CONSTANTS = 2**32
"""Bytes that the constants of a program may have, as they are stored and as arrays."""

MOST_NESTED = 100
"""Largest nesting depth of arguments and results."""

_PROGRAM = ("models/model.json", "serialized_exported_program.json")
"""Paths of the program in the archive: since torch 2.8, and before."""
_CONSTANTS = "data/constants/"
_CONFIG = f"{_CONSTANTS}model_constants_config.json"

_CONTEXTS = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in ("cond", "wrap_with_autocast", "wrap_with_set_grad_enabled")
)
"""Operations with graphs inside that torch takes apart, or that are refused by name later."""
_VMAP = frozenset(
    f"torch._functorch.predispatch.{name}"
    for name in (
        "_add_batch_dim _remove_batch_dim _vmap_decrement_nesting _vmap_increment_nesting "
        "lazy_load_decompositions"
    ).split()
)
_SYMBOLIC = re.compile(r"as_expr|as_name|as_sym_(int|bool|float)s?`|sym_\w+_values")
_FRAME = re.compile(r'File "([^"\n\0]{1,1000})", line (\d{1,7})\b')
_PATH = re.compile(r"[\w.:@\[\] -]{0,1000}")


def load(path: Path) -> Any:
    """The program of a file, as a `torch.export.ExportedProgram` whose weights have no numbers.

    Raises:
      FileError: it cannot be read, is damaged, or could only be read by running what it holds.
      UnsupportedError: it has sizes that are not fixed, or operators that are not ATen's.
    """
    try:
        with files.opened(path) as file, zipfile.ZipFile(file) as archive:
            program = _program(archive, path)
            constants = dict(_constants(archive, program, path))
    except PartitaError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        LookupError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        raise _no_file(path, str(error)) from None
    return _made(program, constants, path)


def _no_file(path: Path, reason: str) -> FileError:
    return FileError(f"{path} is no file that torch.export.save has written: {reason.strip()}")


def _program(archive: zipfile.ZipFile, path: Path) -> read.Program:
    """The program, with trees and frames as they are safe to hand on."""
    for name in _PROGRAM:
        if (found := _member(archive, name)) is not None:
            break
    else:
        raise _no_file(path, "it holds no exported program (models/model.json)")
    try:
        program = _decoded(archive, found, read.Program)
    except msgspec.ValidationError as error:
        if _SYMBOLIC.search(str(error)):
            raise UnsupportedError(
                f"{path} has sizes or numbers that are not fixed; export it without "
                f"dynamic_shapes=, and without item() ({error})"
            ) from None
        raise
    for node in _nodes(program.graph_module.graph):
        _check_operator(node.target, path)
    return program


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo | None:
    """A part of the archive, in the folder that all are in, if there is one."""
    for info in archive.infolist():
        if name in (info.filename, info.filename.partition("/")[2]):
            return info
    return None


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    with archive.open(info) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{info.filename} has more than {most:,} bytes, the most for it")
    return data


def _decoded(archive: zipfile.ZipFile, info: zipfile.ZipInfo, type_: type[_T]) -> _T:
    try:
        return msgspec.json.decode(_bytes(archive, info, MOST_PROGRAM), type=type_)
    except RecursionError:
        raise ValueError(f"{info.filename} is nested too deeply") from None


def _nodes(graph: read.Graph) -> Iterator[read.Node]:
    """The operations of a graph, those in the graphs that they take included."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            yield node
            inner = (each.arg.as_graph for each in node.inputs)
            waiting += [each.graph for each in inner if each is not msgspec.UNSET]


def _check_operator(target: str, path: Path) -> None:
    """Raises `UnsupportedError` unless an operator only computes tensors."""
    if target in _CONTEXTS or target in _VMAP:
        return
    found: Any = None
    prefix, _, name = target.partition("torch.ops.")
    if not prefix and (name.startswith("aten.") or name in OPERATIONS):
        found = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        known = "import the library that has it, and" if name.count(".") == 2 else ""
        raise UnsupportedError(
            f"{path} uses {target}, which is no operator of ATen; for one of your own, {known} say "
            "what it computes with @partita.torch.operation"
        )
    arguments, returns = found._schema.arguments, found._schema.returns
    tensors = any("Tensor" in str(each.type) for each in (*arguments, *returns))
    if not tensors or any(each.name == "filename" for each in arguments):
        raise UnsupportedError(f"{path} uses {target}, which does not compute tensors of tensors")


def _constants(
    archive: zipfile.ZipFile, program: read.Program, path: Path
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that are part of a program, by name."""
    specs = (each.tensor_constant for each in program.graph_module.signature.input_specs)
    names = [each.tensor_constant_name for each in specs if each is not msgspec.UNSET]
    if not names:
        return
    config = _member(archive, _CONFIG)
    payloads = {} if config is None else _decoded(archive, config, read.Payloads).config
    left = MOST_CONSTANTS
    for name in dict.fromkeys(names):
        payload = payloads.get(name)
        if payload is None or payload.use_pickle or payload.tensor_meta is None:
            raise FileError(
                f"{path} holds the constant {name!r} as a pickle, which can run any code and is "
                "not read; save the file again with torch 2.8 or later, or make the constant a "
                "buffer"
            )
        info = _member(archive, _CONSTANTS + payload.path_name)
        if info is None:
            raise ValueError(f"it lacks the constant {name!r}")
        tensor = _tensor(_bytes(archive, info, left), payload.tensor_meta, name)
        left -= max(tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size())
        if left < 0:
            raise ValueError(f"its constants have more than {MOST_CONSTANTS:,} bytes")
        yield name, tensor


def _tensor(data: bytes, meta: read.TensorMeta, name: str) -> torch.Tensor:
    """A tensor of the bytes of its storage."""
    dtype = serialize._SERIALIZE_TO_TORCH_DTYPE.get(meta.dtype)
    sizes, strides = ([each.as_int for each in axis] for axis in (meta.sizes, meta.strides))
    if dtype is None or min(sizes, default=0) < 0 or math.prod(sizes) > MOST_CONSTANTS:
        raise ValueError(f"the constant {name!r} has a wrong type or shape")
    if not data:
        return torch.empty(sizes, dtype=dtype) if 0 in sizes else _lacking(name)
    stored = torch.frombuffer(bytearray(data), dtype=dtype)
    return torch.as_strided(stored, sizes, strides, meta.storage_offset.as_int)


def _lacking(name: str) -> torch.Tensor:
    raise ValueError(f"the constant {name!r} has no numbers")


def _made(program: read.Program, constants: dict[str, torch.Tensor], path: Path) -> Any:
    """Returns the exported program that torch builds from one that has passed the checks."""
    plain = msgspec.to_builtins(program)
    module = plain["graph_module"]
    _clean_nodes(module["graph"])
    module["module_call_graph"] = [_outermost(module["module_call_graph"][0], path)]
    plain |= {"opset_version": {}, "range_constraints": {}, "guards_code": []}
    state: dict[str, torch.Tensor] = {}
    for spec in module["signature"]["input_specs"]:  # with numbers of no account
        if "parameter" in spec:
            state[spec["parameter"]["parameter_name"]] = torch.nn.Parameter(torch.empty(0))
        elif "buffer" in spec:
            kept = state if spec["buffer"]["persistent"] else constants
            kept[spec["buffer"]["buffer_name"]] = torch.empty(0)
    try:
        serialized = serialize._dict_to_dataclass(schema.ExportedProgram, plain)
        made = serialize.ExportedProgramDeserializer().deserialize(
            serialized, state, constants, b""
        )
        _without_numbers(made)
    except Exception as error:
        reason = str(error).strip().split("\n")[-1]
        raise _no_file(path, f"{type(error).__name__}: {reason}") from None
    return made


def _without_numbers(made: Any) -> None:
    """Puts tensors without numbers, as the graph has them, in place of parameters and buffers."""
    inputs = {n.name: n.meta["val"] for n in made.graph.nodes if n.op == "placeholder"}
    for spec in made.graph_signature.input_specs:
        value: Any = inputs.get(spec.arg.name)
        if spec.kind.name == "PARAMETER":
            made.state_dict[spec.target] = torch.nn.Parameter(value, value.requires_grad)
        elif spec.kind.name == "BUFFER":
            kept = made.state_dict if spec.persistent else made.constants
            kept[spec.target] = value


def _clean_nodes(graph: dict[str, Any]) -> None:
    """Keeps of where operations are from what reports say: paths of modules, files and lines."""
    for node in graph["nodes"]:
        said = node["metadata"]
        frames = _FRAME.findall(said["stack_trace"])
        stack = (entry.split(",")[1:2] for entry in said["nn_module_stack"].split(";"))
        paths = [path for part in stack for path in part if _PATH.fullmatch(path)]
        node["metadata"] = {
            "stack_trace": "\n".join(f'File "{file}", line {line}' for file, line in frames),
            "nn_module_stack": ";".join(f"{n},{path},module" for n, path in enumerate(paths)),
        }
        for each in node["inputs"]:
            if "as_graph" in each["arg"]:
                _clean_nodes(each["arg"]["as_graph"]["graph"])


def _outermost(call: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the call signature of the module, in trees of plain types."""
    signature = call["signature"]
    if signature is None:
        raise _no_file(path, "it does not say how the module is called")
    specs = {name: _tree(signature[name], path) for name in ("in_spec", "out_spec")}
    names = signature["forward_arg_names"]
    return {
        "fqn": "",
        "signature": {"inputs": [], "outputs": [], **specs, "forward_arg_names": names},
    }


def _tree(text: str, path: Path) -> str:
    """Checks how values are nested: for some types torch imports a module that the file names."""
    try:
        protocol, tree = msgspec.json.decode(text, type=tuple[int, read.Tree])
        _check_tree(tree, path, 0)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _no_file(path, f"how its arguments are nested cannot be read ({error})") from None
    return json.dumps([protocol, msgspec.to_builtins(tree)])


def _check_tree(tree: read.Tree, path: Path, depth: int) -> None:
    if depth > MOST_NESTED:
        raise ValueError(f"more than {MOST_NESTED} deep")
    kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(tree.type)
    known = kind and pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context is None
    if tree.type is not None and not known:
        raise UnsupportedError(
            f"{path} nests arguments or results in {tree.type[:100]!r}; export a module that takes "
            "and returns tensors in tuples, lists and dicts"
        )
    keys = json.loads(tree.context or "null")
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(key, str | int) for key in keys)
    ):
        raise ValueError(f"the keys {tree.context!r:.100}")
    for child in tree.children_spec:
        _check_tree(child, path, depth + 1)
