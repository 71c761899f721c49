"""The shardings that a program comes with, propagated by Shardy as XLA has it.

XLA takes two steps. Shardy gives every value a sharding, starting from those that the user wrote;
then the partitioner makes a program for one device, in which an operation whose operands and result
disagree moves data. The first step is done here, by Shardy itself: the module gets the user's
shardings, runs through Shardy's own passes, and the sharding of every value is read back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partita.errors import MeshError
from partita.mesh import Mesh
from partita.program.blocks import Barrier, Branch, Item, Loop
from partita.program.ir import Operation, Program
from partita.program.op_traits import CONSTRAINT
from partita.stablehlo import attributes, mlir, rolls
from partita.stablehlo.mlir import hlo, ir, sdy
from partita.stablehlo.shardings import written
from partita.stablehlo.templates import templates

MESH = "mesh"
"""Symbol of the mesh in the modules that partita writes."""

_PASSES = "sdy-propagation-pipeline"
_SHARDING = "sdy.sharding"
_VALUES = "partita.values"
"""Note on an operation: the values of the program that its results are."""

Placed = tuple[tuple[int, ...], ...]
"""The axes of every dimension, by position in the mesh, major first."""


@dataclasses.dataclass(frozen=True)
class Propagated:
    """Result of Shardy's propagation."""

    layouts: Mapping[int, Placed]
    """Layout by value; values without an entry are replicated."""
    lost: Mapping[int, str]
    """Shardy's sharding by value, where a plan cannot express it and `layouts` shards less."""


def mesh_attribute(mesh: Mesh) -> str:
    """The mesh in Shardy's syntax."""
    return "#sdy.mesh<[" + ", ".join(f"{axis_attribute(n)}={size}" for n, size in mesh) + "]>"


def axis_attribute(name: str) -> str:
    """The name of an axis as a string of MLIR.

    Raises:
      MeshError: XLA would end the process over it, while it parses the sharding of an argument.
    """
    if not name.isascii() or "\\" in name:
        raise MeshError(
            f"XLA cannot compile for a mesh axis named {name!r}; plan with an axis whose name has "
            "only ASCII characters and no backslash"
        )
    escaped = (c if c.isprintable() and c != '"' else f"\\{ord(c):02X}" for c in name)
    return f'"{"".join(escaped)}"'


def can_propagate(program: Program) -> bool:
    """Returns whether Shardy can be given all shardings that the program sets.

    It cannot where constraints are manual over some axes, since the module unfolds those.
    """
    return all(op.kind == CONSTRAINT and not op.manual for op in program.operations if op.given)


def annotated(program: Program, mesh: Mesh) -> Any:
    """The module of a program with the shardings that it has inside, and no others: those of
    arguments and results are left to whoever calls it.

    To be called, and used, within an MLIR context.
    """
    return _annotated(program, mesh, notes=False)


def given_results(program: Program) -> dict[int, tuple[tuple[str, ...], ...]]:
    """The shardings that results come with, by number.

    What `jax.jit(out_shardings=...)` says is a constraint in the program. To XLA it is none: a
    value is computed as it propagates, and moved when it is returned.
    """
    facts = {fact.name: fact for fact in program.given if not fact.open}
    found = {
        number: facts[name].axes
        for number, name in enumerate(program.result_names)
        if name in facts
    }
    for number in program.specs.own if program.specs else ():
        op = _constraint_of(program, number)
        if op is not None and op.given is not None:
            found[number] = op.given.axes
    return found


def _constraint_of(program: Program, number: int) -> Operation | None:
    """The constraint that makes a result; None if that is anything else."""
    producer = program.values[program.results[number]].producer
    op = None if producer is None else program.operations[producer]
    return op if op is not None and op.kind == CONSTRAINT else None


def propagated(program: Program, mesh: Mesh) -> Propagated:
    """Propagates the shardings that a program comes with.

    Args:
      program: which `can_propagate`.
      mesh: has the axes that its shardings name.

    Raises:
      UnsupportedError: Shardy refuses the program.
    """
    with mlir.context():
        module = _annotated(program, mesh, notes=True)
        mlir.run_passes(module, _PASSES)
        found: dict[int, Any] = {}
        main = mlir.main_function(module)
        rows = mlir.attributes_of(main, "arg_attrs", len(program.arguments))
        for value, row in zip(program.arguments, rows, strict=True):
            if _SHARDING in row:
                found[value] = row[_SHARDING]
        for op in mlir.find(main.operation, lambda op: bool(attributes.get(op, _VALUES))):
            if _SHARDING in op.attributes:
                every = sdy.TensorShardingPerValueAttr(op.attributes[_SHARDING]).shardings
                notes = attributes.get(op, _VALUES).split(",")
                for note, sharding in zip(notes, every, strict=True):
                    found.update((int(value), sharding) for value in note.split())
        return _read(program, mesh, found)


def _annotated(program: Program, mesh: Mesh, notes: bool) -> Any:
    module = mlir.parse(program.module)
    main = mlir.main_function(module)
    pairs = zip(program.body.nested(), templates(main.entry_block), strict=True)
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(MESH, ir.Attribute.parse(mesh_attribute(mesh)))
    if notes:
        _annotate_signature(program, main)
    returned = _returned(program)
    for item, view in pairs:
        if item not in returned:
            view = _constrained(program, item, view)
        if notes:
            view = _known_to_shardy(program, item, view)
        if notes and list(view.results):
            attributes.put(view, _VALUES, ",".join(_values(program, item)))
    return module


def _returned(program: Program) -> set[Item]:
    """The constraints that stand for shardings of results."""
    if program.specs is None:
        return set()
    numbers = {*program.specs.results, *program.specs.own}
    found = (_constraint_of(program, number) for number in numbers)
    return {op.index for op in found if op is not None}


def _annotate_signature(program: Program, main: Any) -> None:
    facts = {fact.name: fact for fact in program.given}
    given = [facts.get(name) for name in program.argument_names]
    arguments = [f and _sharding(f.axes, [f.open] * len(f.axes)) for f in given]
    axes = given_results(program)
    results = [
        _sharding(axes[n], [False] * len(axes[n])) if n in axes else None
        for n in range(len(program.results))
    ]
    for which, shardings in (("arg_attrs", arguments), ("res_attrs", results)):
        rows = []
        known = mlir.attributes_of(main, which, len(shardings))
        for sharding, row in zip(shardings, known, strict=True):
            own = {a.name: a.attr for a in row} if row else {}
            rows.append(ir.DictAttr.get(own | ({_SHARDING: sharding} if sharding else {})))
        main.attributes[which] = ir.ArrayAttr.get(rows)


def _constrained(program: Program, item: Item, view: Any) -> Any:
    """Writes what stands for a constraint or a roll as it was; the operation that makes the
    result."""
    if not isinstance(item, int):
        return view
    if rolls.is_roll(view):
        with ir.InsertionPoint(view), view.location:
            made = rolls.write(view.operands[0], *rolls.place(view))
        view.results[0].replace_all_uses_with(made)
        view.erase()
        return made.owner
    op = program.operations[item]
    if op.given is not None and op.kind == CONSTRAINT:
        is_open = [factor.kind != "given" for factor in op.rule.factors]
        with ir.InsertionPoint(view), view.location:
            view.operands[0] = sdy.sharding_constraint(
                view.operands[0], _sharding(op.given.axes, is_open)
            )
    return view


def _known_to_shardy(program: Program, item: Item, view: Any) -> Any:
    """Puts an operation that propagates alike in place of one that XLA rewrites before it
    propagates; the operation that makes the result.

    A broadcast that only adds dimensions of size 1 becomes a reshape, through which Shardy lets
    axes first. Elementwise operations of CHLO, of which Shardy knows nothing, are expanded.
    """
    if not isinstance(item, int):
        return view
    op = program.operations[item]
    types = [program.values[value].type for value in (*op.operands, *op.results)]
    with ir.InsertionPoint(view), view.location:
        if op.traits.broadcasts and types[0].elements == types[1].elements:
            made = hlo.reshape(view.results[0].type, view.operands[0])
        elif op.kind.startswith("chlo.") and op.traits.elementwise and len(set(types)) == 1:
            made = hlo.maximum(view.operands[0], view.operands[-1])
        else:
            return view
    view.results[0].replace_all_uses_with(made)
    view.erase()
    return made.owner


def _sharding(axes: Iterable[Sequence[str]], is_open: Iterable[bool]) -> Any:
    """A sharding over the mesh of the module, as an attribute."""
    return ir.Attribute.parse(written(MESH, (map(axis_attribute, row) for row in axes), is_open))


def _values(program: Program, item: Item) -> list[str]:
    """Returns for each result of an item's operation the numbers of its values, as text."""

    def results(op: int | None) -> str:
        return "" if op is None else " ".join(map(str, program.operations[op].results))

    match item:
        case Loop(carries):
            return [results(carry) for carry in carries]
        case Branch():
            return [results(join) for join in item.joins]
        case Barrier(parts):
            return [results(part) for part in parts]
    return list(map(str, program.operations[item].results))


def _read(program: Program, mesh: Mesh, found: Mapping[int, Any]) -> Propagated:
    layouts: dict[int, Placed] = {}
    lost: dict[int, str] = {}
    for value, sharding in found.items():
        shape = program.values[value].type.shape
        dims = [
            [sdy.AxisRefAttr(a) for a in sdy.DimensionShardingAttr(dim).axes]
            for dim in sdy.TensorShardingAttr(sharding).dimension_shardings
        ]
        placed = [_divided(axes, size, mesh) for axes, size in zip(dims, shape, strict=True)]
        if any(len(axes) > len(kept) for axes, kept in zip(dims, placed, strict=True)):
            lost[value] = str(sharding).partition(", ")[2].removesuffix(">")
        layouts[value] = tuple(placed)
    return Propagated(layouts, lost)


def _divided(axes: Sequence[Any], size: int, mesh: Mesh) -> tuple[int, ...]:
    """The first axes of a dimension: as long as they are whole ones, and divide it."""
    found: list[int] = []
    for axis in axes:
        number = mesh.axis(axis.name)
        if axis.sub_axis_info is not None or size % mesh.size((*found, number)):
            break
        found.append(number)
    return tuple(found)
