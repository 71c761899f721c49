"""Purposes of a parameter's dimensions, read off the first product or look-up that it goes into.

A weight `[embed, heads, head-dim]` goes into a product that sums over `embed`; `heads` and
`head-dim` are its *own*: the other operand has none of them. The experts' weights `[experts, embed,
ffn]` *share* `experts` with the tokens sent to them. A table of vectors is *looked up* along its
first dimension. This holds however a library orders the dimensions, and for layers stacked in
front, which a loop takes away before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Literal

from partita.analysis import Analysis
from partita.program import Operation
from partita.program.op_traits import PASSING

DimPurpose = Literal["own", "summed", "shared", "looked up"]


def dim_purposes(analysis: Analysis, value: int) -> tuple[DimPurpose | None, ...]:
    """Returns the purpose of each dimension of a value in its first product or look-up.

    Args:
      analysis: of the program.
      value: usually an argument.

    Returns:
      For every dimension its purpose, or None: the dimension is gone before, or there is none.
    """
    program = analysis.program
    rank = len(program.values[value].type.shape)
    start = tuple(range(rank))
    queue: list[tuple[int, int, tuple[int | None, ...]]] = []
    seen = {value}

    def follow(reached: int, dims: tuple[int | None, ...]) -> None:
        for op, number in analysis.uses[reached]:
            heapq.heappush(queue, (op, number, dims))

    follow(value, start)
    while queue:  # in program order: forward before backward
        index, number, dims = heapq.heappop(queue)
        op = program.operations[index]
        if op.traits.multiplies or (op.traits.looks_up and number == 0):
            return tuple(None if dim is None else _purpose(op, number, dim) for dim in dims)
        if _passes(op):
            passed = tuple(_passed(op, number, dim) for dim in dims)
            for result in op.results:
                if result not in seen:
                    seen.add(result)
                    follow(result, passed)
    return (None,) * rank


def dims_for(analysis: Analysis, value: int, *wanted: DimPurpose) -> Iterator[int]:
    """The dimensions of a value that are for one of some purposes."""
    return (dim for dim, purpose in enumerate(dim_purposes(analysis, value)) if purpose in wanted)


def _passes(op: Operation) -> bool:
    """Returns whether it may come between a parameter and its product."""
    traits = op.traits
    return traits.elementwise or traits.read_through or traits.slices or op.kind in PASSING


def _purpose(op: Operation, number: int, dim: int) -> DimPurpose | None:
    """Returns the purpose of a dimension of an operand in a product or a look-up."""
    factor = op.rule.leading(op.rule.operands[number][dim])
    if factor is None:
        return None
    if op.rule.factors[factor].kind == "reduction":
        return "looked up" if op.traits.looks_up else "summed"
    others = (tensor for n, tensor in enumerate(op.rule.operands) if n != number)
    return "shared" if any(factor in made for t in others for made in t) else "own"


def _passed(op: Operation, number: int, dim: int | None) -> int | None:
    """The dimension of the result that a dimension of an operand becomes."""
    if dim is None:
        return None
    factor = op.rule.leading(op.rule.operands[number][dim])
    if factor is None:
        return None
    for to, made_of in enumerate(op.rule.results[0]):
        if op.rule.leading(made_of) == factor:
            return to
    return None
