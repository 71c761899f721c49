"""Rewrites that XLA's compiler for hosts applies to the collectives that a plan makes explicit.

It keeps all others one to one. `tests/verify/test_host_rewrites.py` compiles each rewrite again.
"""

from __future__ import annotations

from partita.emit.spmd import operations_of
from partita.program.collectives import ALL_GATHER
from partita.program.ir import bits
from partita.spmd import Reshard, Run, SpmdProgram
from partita.spmd.instructions import inside
from partita.stablehlo import mlir
from partita.verify.comparison import Becomes

HOST_REWRITES = {
    "constant": "an all_gather of one number repeated, the same on all devices, becomes that "
    "number repeated",
}
"""Known rewrites of XLA on a host, by name: what it does, and when."""

_MOVED_AS = {"bf16": 32, "f8E8M0FNU": 32, "f4E2M1FN": 16, "i4": 8, "ui4": 8}
"""Bits of the types that elements are widened to; those of float8 that are not here, to 16."""


def widening(dtype: str) -> int:
    """Returns how many times wider a host moves an element type than the program declares it."""
    own = bits(dtype)
    return _MOVED_AS.get(dtype, 16 if dtype.startswith("f8") else own) // own


def on_host(spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
    """Returns, for each of `spmd.collectives`, all rewrites that the compiler may apply to it."""
    own, repeated = spmd.collective_steps, _repeated(spmd)
    folded = {
        number
        for number, move in enumerate(own)
        if move.step.kind == ALL_GATHER.name and move.input in repeated
    }
    gone = (Becomes("constant", None, always=False),)
    return [gone if number in folded else () for number in range(len(spmd.collectives))]


def _repeated(spmd: SpmdProgram) -> set[int]:
    """The buffers that hold one number repeated, the same on all devices."""
    found: set[int] = set()
    with mlir.context():
        module = mlir.parse(spmd.program.module)  # the operations live as long as it does
        operations = operations_of(spmd, module)
        for item in inside(spmd.instructions):
            if isinstance(item, Reshard):
                kept = not item.step.is_collective or item.step.kind == ALL_GATHER.name
                if item.input in found and kept:
                    found.add(item.output)
            elif isinstance(item, Run) and not spmd.form(item.op).sums:
                op = spmd.program.operations[item.op]
                if op.traits.constant:
                    repeated = mlir.splat(operations[item.op]) is not None
                else:
                    elementwise = op.traits.treatment in ("elementwise", "broadcasting")
                    repeated = (elementwise or op.traits.read_through) and bool(item.inputs)
                if repeated and found.issuperset(item.inputs):
                    found.update(item.outputs)
    return found
