"""Device-local form of custom calls: another kernel, one of those compiled for the local sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import AbstractMesh, PartitionSpec

from partita.errors import RuleError
from partita.mesh import spec
from partita.stablehlo import mlir
from partita.stablehlo.builder import Builder
from partita.stablehlo.functions import write_out
from partita.stablehlo.local_run import LocalRun, opened
from partita.stablehlo.operations.entry import Entry
from partita.stablehlo.partitioned import body_of
from partita.stablehlo.refusals import tensor_type
from partita.stablehlo.rules import registry
from partita.stablehlo.rules.calls import PARTITIONED_CALL


def _custom_call(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """A kernel, and a function that says itself how it is split, is lowered anew for shards."""
    operation = run.operation
    if not run.axes:
        return build.place(op, run.outputs)
    if operation.target == PARTITIONED_CALL:
        return _partitioned(op, run, build)
    name = operation.kernel.name if operation.kernel else operation.target
    local = registry.LOCAL.get(name)
    if local is None:
        return build.place(op, run.outputs)
    results = write_out(local, list(op.operands), build.platform, op.location)
    made = tuple(tensor_type(result.type) for result in results)
    if made != run.outputs:
        raise RuleError(
            f"the local form of {name!r} makes {', '.join(map(str, made))} of the shards "
            f"{', '.join(map(str, run.inputs))}; its rule says {', '.join(map(str, run.outputs))}"
        )
    return results


def _partitioned(op: Any, run: LocalRun, build: Builder) -> list[Any]:
    """Inlines the code that its `partition` runs on each device, collectives included."""
    said = run.partitioned[op.attributes["backend_config"].value]
    mesh = AbstractMesh(build.mesh.sizes, build.mesh.names)
    operands, results = (
        [mlir.shape_of(type_) for type_ in side] for side in (run.global_inputs, run.global_outputs)
    )
    layouts = (*run.needs, *run.makes)
    specs = [PartitionSpec(*spec(layout, build.mesh)) for layout in layouts]
    function = said.on_device(mesh, operands, results, specs)
    _module, manual = body_of(function, operands, build.platform)
    return opened(manual.regions[0].blocks[0], op.operands, build)


ENTRIES = {"stablehlo.custom_call": Entry(local=_custom_call)}
"""Entry of custom calls; `partita.stablehlo.rules.calls` has their rules by target."""
