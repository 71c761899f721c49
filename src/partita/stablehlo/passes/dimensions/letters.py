"""Letters for the dimensions of operations, and attributes rewritten when dimensions are split.

`letters_of` gives the dimensions of all operands and results letters, as an einsum does: those with
the same letter are the same dimension. `renumber` rewrites the attributes of an operation when some
of its dimensions become several, each in its place. Operations whose dimensions can be split
without changing what they compute have letters in their entries; those of others are fixed.
"""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo import rolls
from partita.stablehlo.mlir import ir, is_constant, splat
from partita.stablehlo.operations import entry
from partita.stablehlo.operations.letters import (
    EDGE,
    FIXED,
    Letters,
    SizesOf,
    lettered,
    same_but,
    shape,
)


def letters_of(op: Any) -> Letters:
    """The letters of an operation without regions that read from outside."""
    known = traits(op.name)
    write = entry(op.name).letters
    if write is not None:
        return write(op)
    if rolls.is_roll(op):
        return same_but(lambda op: [rolls.place(op)[0]])(op)
    if known.elementwise:
        return tuple(lettered(value) for value in (*op.operands, *op.results))
    if is_constant(op):
        (result,) = op.results
        return (lettered(result) if splat(op) is not None else (EDGE,) * len(shape(result)),)
    # What every device runs in full anyway loses nothing by a reshape.
    own = EDGE if known.treatment == "replicated" and not op.regions else FIXED
    return tuple((own,) * len(shape(value)) for value in (*op.operands, *op.results))


def renumber(op: Any, sizes_of: SizesOf) -> Any:
    """Rewrites the attributes of an operation for the dimensions as they will be.

    Returns:
      The operation; another one in its place where it needs more operands.
    """
    known = entry(op.name)
    if known.letters is not None:
        return known.renumber(op, sizes_of) or op
    if is_constant(op) and splat(op) is not None:
        (result,) = op.results
        type_ = ir.RankedTensorType(result.type)
        held = op.attributes["value"]
        flat = [size for each in sizes_of(result) for size in each]
        made = ir.RankedTensorType.get(flat, type_.element_type)
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(made, held.get_splat_value())
    return op
