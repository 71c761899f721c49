"""Rewrites of a program: what there is, in which order, and why in that order.

Each changes a module in place and leaves what the program computes. A new one is a module here,
most often one `driver.Pattern`, and a line in one of the two lists.
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
    # In all functions: a composite that stands for no operation of ours becomes a call.
    expand,
    # From here on, all of the program is in `main`.
    inline,
    # What stands for something of the user's becomes notes and operations of its own, while values
    # are as they were written. Names come after constraints, which make values of their own.
    note_constraints,
    write_meshes,
    note_names,
    # The slices of a roll have one operand: as long as constants are not copied for each of them.
    note_rolls,
    # What has been inlined; then copies of what is made of constants only, which is `sdy.constant`.
    "symbol-dce,sdy-constant-or-scalar-splitter",
    # After the splitter: constants in a manual computation are those of the program around it.
    unfold,
    # What is left out first needs no copies of constants, and keeps nothing else alive.
    drop_added_zeros,
    drop_unread,
    copy_for_each_use,
    drop_dead,
    # Last: every use of a value has a say in what its dimensions may become, so none is dead.
    unmerge,
    unfuse,
)
"""When a program is read, and whenever it is read again, with nothing known of a mesh."""

FOR_DEVICES: tuple[ForDevices, ...] = (
    # First, for a cumulative sum of a slice is one in full length then, which can be split.
    align,
    split_prefix,
    split_top_k,
)
"""Once the number of devices is known."""
