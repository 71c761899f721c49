"""Constants and iotas: a device makes or cuts out its shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.mesh import Layout
from partita.program.ir import TensorType
from partita.stablehlo import mlir
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.mlir import hlo, ir
from partita.stablehlo.operations.entry import Entry
from partita.stablehlo.operations.letters import EDGE, Letters, lettered, numbered


def _constant(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A shard is cut out of it, or filled if all elements are equal."""
    layout = run.makes[0]
    if not any(layout):
        return build.place(op, run.outputs)
    element = mlir.splat(op)
    if element is not None:
        return [hlo.constant(ir.DenseElementsAttr.get_splat(build.type(run.outputs[0]), element))]
    build.body.append(op)
    return [
        build.slice(op.results[0], run.outputs[0].shape, _starts(layout, run.outputs[0], build))
    ]


def _starts(layout: Layout, local: TensorType, build: Builder) -> dict[int, Any]:
    return {dim: build.offset(axes, local.shape[dim]) for dim, axes in enumerate(layout) if axes}


def _local_iota(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """It starts from the number of the shard's first index."""
    (result,) = build.place(op, run.outputs)
    dim = op.attributes["iota_dimension"].value
    axes = run.makes[0][dim]
    if not axes:
        return [result]
    offset = build.offset(axes, run.outputs[0].shape[dim])
    element = ir.RankedTensorType(result.type).element_type
    offset = hlo.convert(ir.RankedTensorType.get([], element), offset)
    return [hlo.add(result, build.propagation(offset, result))]


def _letters_of_iota(op: Any) -> Letters:
    """Whole numbers along several dimensions are made of those along each."""
    along = op.attributes["iota_dimension"].value
    names = lettered(op.results[0])
    if "i" in str(ir.RankedTensorType(op.results[0].type).element_type):
        return (names,)
    return (tuple(EDGE if dim == along else name for dim, name in enumerate(names)),)


ENTRIES = {
    "chlo.constant": Entry(local=_constant),
    "stablehlo.constant": Entry(local=_constant),
    "stablehlo.iota": Entry(
        letters=_letters_of_iota, renumber=numbered("iota_dimension"), local=_local_iota
    ),
}
"""Entries of constants and iotas, by kind."""
