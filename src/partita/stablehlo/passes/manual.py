"""Manual computations: those over all axes made to stand for themselves, others made part of the
program around them, as `partita.stablehlo.shard_map` and `manual_regions` read them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.mesh import Mesh
from partita.program.op_traits import FULL_TO_SHARD, MANUAL, SHARD_TO_FULL
from partita.stablehlo.manual_regions import Manual, crossed, note
from partita.stablehlo.mlir import find, ir, main_function, returned
from partita.stablehlo.passes.driver import Pattern
from partita.stablehlo.shard_map import GROUPS, SIDES, manual_axes, shardings_of, title
from partita.stablehlo.shardings import meshes_of, read_sharding, with_mesh
from partita.stablehlo.versions import axes_of_groups


def write_meshes(module: Any) -> None:
    """Writes the mesh of each manual computation out where it is used: it stands for itself."""
    meshes = meshes_of(module)
    main = main_function(module).operation
    for op in find(main, lambda op: op.name == MANUAL or GROUPS in op.attributes):
        if op.name == MANUAL:
            for side in SIDES:
                own = [str(with_mesh(s, meshes)) for s in shardings_of(op, side)]
                inner = ", ".join(text.removeprefix("#sdy.sharding") for text in own)
                op.attributes[side] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{inner}]>")
        else:
            _list_groups(op, meshes)


def _list_groups(op: Any, meshes: dict[str, Any]) -> None:
    """Writes out the groups of devices of a collective, where it names axes of a mesh."""
    sizes, axes = axes_of_groups(op.attributes[GROUPS], meshes)
    if axes:
        mesh = Mesh(tuple(name for name, _ in sizes), tuple(size for _, size in sizes))
        groups: Any = np.array(mesh.groups(tuple(map(mesh.axis, axes))), np.int64)
        op.attributes[GROUPS] = ir.DenseIntElementsAttr.get(groups)


def _is_partial(op: Any) -> bool:
    """Returns whether an operation is a computation over some axes only, or inside of one."""
    if op.name != MANUAL:
        return False
    outermost, around = op, op.parent
    while around is not None:
        outermost = around if around.name == MANUAL else outermost
        around = around.parent
    return any(axis not in manual_axes(outermost) for axis, _ in _mesh(outermost))


def _mesh(op: Any) -> tuple[tuple[str, int], ...]:
    said = [read_sharding(s, {}, title("")) for side in SIDES for s in shardings_of(op, side)]
    return said[0].mesh if said else ()


def _unfold(op: Any) -> list[Any]:
    block = op.regions[0].blocks[0]
    inside = [view.operation for view in block.operations][:-1]
    here = Manual(tuple(manual_axes(op)), _mesh(op))
    for each in inside:
        note(each, here)

    def across(kind: str, values: Any, types: Any, side: str) -> list[Any]:
        rows = zip(values, types, shardings_of(op, side), strict=True)
        return [crossed(kind, *row, here) for row in rows]

    arguments = list(block.arguments)
    types = [argument.type for argument in arguments]
    entered = across(FULL_TO_SHARD, op.operands, types, "in_shardings")
    for argument, value in zip(arguments, entered, strict=True):
        argument.replace_all_uses_with(value)
    left = returned(block)
    for each in inside:
        each.move_before(op)
    types = [result.type for result in op.results]
    return across(SHARD_TO_FULL, left, types, "out_shardings")


unfold = Pattern(_is_partial, _unfold)
"""Makes computations that are manual over some axes only part of the program around them."""
