"""Rewrites of a program: which there are, in which order, and why in that order.

Each changes a module of StableHLO in place and leaves what it computes. Programs are read after
`READING` and, once the number of devices is known, rewritten by those of `FOR_DEVICES` that concern
them and read again. `passes.adapt` has what the compilers of one platform lack, for when a program
is emitted.

A new rewrite is a module here and a line in one of the lists. Most are a `driver.Pattern`: which
operations it is for, and what stands for their results. Where a comment gives no reason, the order
of neighbours does not matter.
"""

from __future__ import annotations

from partita.stablehlo.inlining import inline
from partita.stablehlo.passes.constraints import note_constraints
from partita.stablehlo.passes.copies import copy_for_each_use
from partita.stablehlo.passes.crops import align
from partita.stablehlo.passes.dimensions import unfuse, unmerge
from partita.stablehlo.passes.driver import ForDevices, Pass
from partita.stablehlo.passes.expansions import expand
from partita.stablehlo.passes.liveness import drop_dead
from partita.stablehlo.passes.manual import unfold, write_meshes
from partita.stablehlo.passes.names import note_names
from partita.stablehlo.passes.prefix import split_prefix
from partita.stablehlo.passes.rolls import note_rolls
from partita.stablehlo.passes.top_k import split_top_k
from partita.stablehlo.passes.unread import drop_unread
from partita.stablehlo.passes.zeros import drop_added_zeros

READING: tuple[Pass, ...] = (
    # Before calls are inlined: a composite that stands for no operation becomes a call.
    expand,
    # From here on, all of the program is in `main`, which is all that the others look at.
    inline,
    # Before MLIR's passes, which do not know what of the user's these operations stand for.
    note_constraints,
    write_meshes,
    note_names,
    # Before constants are copied: both slices of a roll are of one value.
    note_rolls,
    # Erases the functions that have been inlined; copies what is made of constants for each use.
    "symbol-dce,sdy-constant-or-scalar-splitter",
    # After the splitter, which marks constants: those in a manual computation are like others.
    unfold,
    drop_added_zeros,
    drop_unread,
    # After the two: what they have left without a use needs no copies.
    copy_for_each_use,
    # After all that replaces operations and leaves dead what only these have read.
    drop_dead,
    # After dead operations, whose dimensions would have a say in what a dimension may become.
    unmerge,
    unfuse,
)
"""Whenever a program is read, with nothing known of a mesh."""

FOR_DEVICES: tuple[ForDevices, ...] = (
    # First: a cumulative sum of a slice is one of full length then, which can be split.
    align,
    split_prefix,
    split_top_k,
)
"""Once the number of devices is known."""
