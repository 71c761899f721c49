"""Entry of an operation: functions of its attributes, as far as its kind needs any.

What all operations of a kind have in common is in the kind's row of `partita.program.op_traits`. An
entry has what depends on the attributes of one: how it can be sharded, which of its dimensions are
one dimension, and what a device runs on shards. Most kinds need none of these, and have no entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from partita.program.ir import TensorType
from partita.program.rule import Rule
from partita.stablehlo.builder import Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.operations.letters import Letters, Renumber, unmoved

Types = Sequence[TensorType]

Own = Callable[[Any, Types, Types], str | None]
"""Function from an MLIR operation, operand and result types to a rule as `rules.notation` reads it.

It returns None if an operation of the kind cannot be sharded.
"""

Narrow = Callable[[Any, Rule, Types, Types], Rule]
"""Function from an MLIR operation, Shardy's rule, operand and result types to the rule to use."""

Localizer = Callable[[Any, LocalRun, Builder], Sequence[Any]]
"""Function that makes an MLIR operation, whose operands are local already, device-local.

It changes attributes and operands, puts the operation in its place with `Builder.place`, and
returns the local results. Operations that it builds before and after go there too.
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Functions of the operations of one kind; None where the common way is right."""

    own: Own | None = None
    """Writes the sharding rule, if Shardy has none."""
    narrow: Narrow | None = None
    """Corrects Shardy's rule, if a device cannot follow it alone or could do more."""
    letters: Callable[[Any], Letters] | None = None
    """Names dimensions, as an einsum does; None if all are fixed, or if the kind is elementwise."""
    renumber: Renumber = unmoved
    """Rewrites attributes when dimensions become several."""
    local: Localizer | None = None
    """Makes the device-local form; None if an operation only needs local types."""
