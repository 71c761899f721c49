"""Arithmetic in bfloat16 on hardware without it: computed, and in part stored, in float32.

XLA leaves out a conversion to bfloat16 that is followed by one back. Values that kernels store for
other arithmetic therefore stay in float32; operands of products and results of the program do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita.cost.kernels.fusion import Fusion
from partita.program.ir import Operation

NARROW, WIDE = "bf16", "f32"


def widened(
    fusion: Fusion,
    uses: Sequence[Sequence[tuple[int, int]]],
    lifetimes: Sequence[Sequence[int]],
    read: Callable[[int, int, int], int],
) -> list[tuple[int, int, int, str]]:
    """Returns the values that are stored in float32 as well, or instead: number, first and last
    position of the extra buffer, and a type that takes as many bytes.

    Args:
      fusion: of a program.
      uses: its uses, by value.
      lifetimes: of the values that have a buffer: number, first and last position.
      read: until where a value is kept for a use of it, by its operation and operand number.
    """
    values, operations = fusion.program.values, fusion.program.operations
    results, found = frozenset(fusion.program.results), []
    for v, start, end in lifetimes:
        producer = values[v].producer
        assert producer is not None
        op = operations[producer]
        computed = op.traits.elementwise and producer not in fusion.called
        if values[v].type.dtype != NARROW or not computed:
            continue
        wide = [use for use in uses[v] if _computes(operations[use[0]])]
        if not wide:
            continue
        if len(wide) == len(uses[v]) and v not in results:
            found.append((v, start, end, NARROW))
        else:
            until = max(read(v, *use) for use in wide)
            found.append((v, start, max(start, until), WIDE))
    return found


def _computes(op: Operation) -> bool:
    return op.traits.elementwise or op.traits.reduces or op.traits.read_through
