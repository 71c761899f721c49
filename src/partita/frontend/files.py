"""Programs from files: StableHLO as text, bytecode or portable artifact, and `jax.export` files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import jax.export

from partita import files
from partita.errors import FileError, FormerName, UnsupportedError
from partita.escape import printed
from partita.frontend.trace import Traced, as_tuple
from partita.program.ir import Program, TensorType
from partita.stablehlo import mlir
from partita.stablehlo.artifact import artifact
from partita.stablehlo.constants import hoist
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.internals import exported_nodes, platform_of
from partita.stablehlo.passes.adapt import adapt
from partita.stablehlo.reading import UnreadableError
from partita.stablehlo.signature import donate

_BYTECODE = b"ML\xefR"
SUFFIXES = (".mlir", ".mlirbc", ".bin", ".jaxexport")
"""Conventional suffixes of such files: text, portable artifact, `jax.export` file, and one that
needs no code of the model."""

MOST = 2**32
"""Bytes that such a file may have."""

MOST_NODES = 1_000_000
"""Largest number of nodes in the pytrees of a `jax.export` file's arguments and results."""

_EXPECTED = (
    "expected StableHLO as text, as bytecode or as a portable artifact, or a serialized "
    "jax.export.Exported"
)


@dataclasses.dataclass(frozen=True, repr=False)
class Module(Traced):
    """A program read from a file, as `partita.plan` takes it. Called, it runs unpartitioned.

    Made by `partita.read`. `print(module)` shows the program.
    """

    text: str = ""
    """Text of the module as read."""

    @property
    def __name__(self) -> str:
        return self.program.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the original program on one device."""
        return self._exported.call(*args, **kwargs)

    @cached_property
    def _exported(self) -> jax.export.Exported:
        with mlir.context():
            parsed = mlir.parse(self.program.module)
            adapt(parsed, self.program, platform_of())
            module = mlir.serialize(parsed)
        return artifact(module, self.program.name, self.arguments, self.results)

    def hoisting(self, least: int) -> Module:
        """The same program, with closed-over constants of at least that many bytes as arguments."""
        text, arrays = hoist(self.text, least)
        program = import_stablehlo(text, self.program.name, len(arrays))
        program = dataclasses.replace(program, aliases=self.program.aliases)
        return dataclasses.replace(self, program=program, closed_over=arrays, text=text)

    lifted = FormerName("closed_over")

    lifting = FormerName("hoisting")

    def donating(self, argnums: int | Sequence[int]) -> Module:
        """Returns the same program with these donated arguments, instead of the file's own."""
        program, numbers = self.program, as_tuple(argnums)
        donors = [leaf for n in numbers for leaf in _leaves(self.arguments[0])[n]]
        types = [value.type for value in program.values]
        aliases = donate(
            donors,
            [(types[v], program.argument_memory.get(n)) for n, v in enumerate(program.arguments)],
            [(types[v], program.result_memory.get(n)) for n, v in enumerate(program.results)],
            {},
        )
        program = dataclasses.replace(program, aliases=aliases)
        return dataclasses.replace(self, program=program, donate_argnums=numbers)

    @printed
    def __str__(self) -> str:
        return str(self.program)

    @printed
    def __repr__(self) -> str:
        return f"<Module: {self.program!r}>"


def read(path: str | Path) -> Module:
    """Reads a program from a file.

    Args:
      path: a StableHLO module as text, as bytecode or as a portable artifact, or a serialized
        `jax.export.Exported`; the format is recognised from the contents, not from the name.

    Raises:
      FileError: there is no such file, or it holds no readable program.
      UnsupportedError: the program cannot be partitioned.
    """
    try:
        data = files.read(path, MOST)
    except OSError as error:
        raise FileError(f"cannot read {str(path)!r}: {error.strerror}; {_EXPECTED}") from None
    path = Path(path)
    if not data.strip():
        raise FileError(f"{str(path)!r} is empty; {_EXPECTED}")
    try:
        with mlir.context():
            text, exported = _decode(data, path)
        return _module(text, exported, path)
    except UnreadableError as error:
        raise FileError(f"cannot read {str(path)!r}: {error}; {_EXPECTED}") from None
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error}") from None


def format_of(path: str | Path) -> str:
    """Returns the format of a file from its suffix, one of `SUFFIXES`.

    Raises:
      FileError: the suffix is unknown.
    """
    suffix = Path(str(path)).suffix
    if suffix not in SUFFIXES:
        raise FileError(
            f"what should {str(path)!r} be? expected a name that ends in .mlir (text), .mlirbc "
            "(portable artifact), .bin (a serialized jax.export.Exported) or .jaxexport (one that "
            "needs no code of the model)"
        )
    return suffix


def contents(module: Any, suffix: str, exported: Callable[[Any], jax.export.Exported]) -> bytes:
    """A module as the contents of a file.

    Args:
      module: within its MLIR context.
      suffix: the format, one of `SUFFIXES`.
      exported: wraps the module for `jax.export`.

    Raises:
      FileError: JAX cannot serialize how arguments are nested.
    """
    if suffix == ".mlir":
        return str(module.operation.get_asm(enable_debug_info=True)).encode()
    if suffix == ".mlirbc":
        return mlir.serialize(module)
    try:
        return bytes(exported(module).serialize())
    except ValueError as error:
        raise FileError(
            f"JAX cannot serialize the arguments: {error} A name that ends in .jaxexport has them "
            "in dicts and lists alone"
        ) from None


def plain(tree: Any) -> Any:
    """Converts a pytree to dicts, lists and tuples alone: nodes of other classes become tuples.

    So a file of it can be read without any of these classes.
    """
    structure: Any = jax.tree.structure(tree)
    return jax.tree.unflatten(jax.tree.structure(_plain(structure)), jax.tree.leaves(tree))


def _plain(structure: Any) -> Any:
    node, children = structure.node_data(), [_plain(child) for child in structure.children()]
    if node is None:
        return 0  # a leaf
    kind, keys = node
    if kind is dict:
        return dict(zip(keys, children, strict=True))
    return None if kind is type(None) else children if kind is list else tuple(children)


def _decode(data: bytes, path: Path) -> tuple[str, jax.export.Exported | None]:
    """The text of the module, and what `jax.export` says of it if that wrote the file."""
    if data.startswith(_BYTECODE):
        return mlir.load(data, str(path)), None
    try:
        return mlir.load(data.decode(), str(path)), None
    except UnicodeDecodeError:
        pass
    try:
        if exported_nodes(data) > MOST_NODES:
            raise UnreadableError(f"its arguments are nested in more than {MOST_NODES} nodes")
        exported = jax.export.deserialize(bytearray(data))
    except UnreadableError:
        raise
    except Exception as error:  # flatbuffers raises whatever it stumbles over
        reason = f" ({error})" if isinstance(error, ValueError) else ""
        raise UnreadableError(f"this is neither MLIR nor a jax.export file{reason}") from None
    return mlir.load(exported.mlir_module_serialized, str(path)), exported


def _module(text: str, exported: jax.export.Exported | None, path: Path) -> Module:
    program = import_stablehlo(text)
    name = exported.fun_name if exported else program.name.removeprefix("jit_")
    program = dataclasses.replace(program, name=path.stem if name == "program" else name)
    arguments: Any = (tuple(map(mlir.shape_of, _types(program, program.arguments))), {})
    results: Any = tuple(map(mlir.shape_of, _types(program, program.results)))
    results = results[0] if len(results) == 1 else results
    # Arguments that JAX dropped from the module, unused, leave no way to nest the others.
    if exported and len(exported.in_avals) == len(program.arguments):
        arguments = jax.tree.unflatten(exported.in_tree, map(_shaped, exported.in_avals))
        results = jax.tree.unflatten(exported.out_tree, map(_shaped, exported.out_avals))
    donated = tuple(
        number
        for number, leaves in enumerate(_leaves(arguments[0]))
        if not program.aliases.keys().isdisjoint(leaves)
    )
    return Module(program, arguments, results, donated, text=text)


def _types(program: Program, values: Sequence[int]) -> list[TensorType]:
    return [program.values[v].type for v in values]


def _shaped(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _leaves(arguments: Sequence[Any]) -> list[range]:
    """Returns, for every argument, the numbers of its leaves in the flat list of all."""
    counts = [len(jax.tree.leaves(argument)) for argument in arguments]
    return [range(end - n, end) for n, end in zip(counts, accumulate(counts), strict=True)]
