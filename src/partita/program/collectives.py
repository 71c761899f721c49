"""Table of collectives: one entry for each kind, with all that is known of it.

An entry says what a collective does, how its data travel and how compiled programs write it. Every
module that handles collectives looks here: the lowering for payloads, the cost model for how data
travel, emission for attributes, validation for what devices hold afterwards, verification for
opcodes. `partita.cost.network.collectives` has the cost of each way of travelling. No other module
spells the name of a kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

Travel = Literal["nowhere", "neighbour", "ring", "pairwise"]
"""Route of the data: none, to a neighbour, around a ring, or from each device to every other."""

Attribute = Literal["dim", "split", "devices", "set"]
"""Value of an attribute: the dimension that a step gathers or scatters, the one that it splits, the
number of devices in a group, or none, if the attribute only has to be there."""

GLOBAL_IDS: Mapping[str, Attribute] = {"use_global_device_ids": "set"}
"""Attribute of collectives that may number devices otherwise than by their global ids."""


@dataclasses.dataclass(frozen=True, slots=True)
class HloForm:
    """Spelling of a collective in HLO, the text of compiled programs."""

    opcodes: tuple[str, ...]
    """Each may be followed by `-start` and `-done`, where other work can run in between."""
    pairs: bool = False
    """True if it lists source-target pairs instead of groups of devices."""
    start_holds_operands: bool = False
    """True if the type of its `-start` has the operands before the results."""
    tuple_of_shards: bool = False
    """True if a tuple holds the shards of one operand; False if it holds several operands."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveKind:
    """One kind of collective."""

    name: str
    """Name in StableHLO and in everything that is printed."""
    hlo: HloForm
    travel: Travel
    passes: int = 1
    """Number of times that data go around a ring."""
    reduces: bool = False
    """True if the devices' values are combined: added, or reduced in another way."""
    gathers: bool = False
    """True if a dimension becomes longer: shards of several devices are concatenated."""
    splits: bool = False
    """True if a dimension becomes shorter: each device keeps its shard."""
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict, hash=False)
    """Attributes in StableHLO, besides the groups of devices and the channel."""

    @property
    def scatters(self) -> bool:
        """True if the result is a shard of the operand."""
        return self.splits and not self.gathers

    @property
    def moves(self) -> bool:
        """True if the result consists of elements of the operands, as it only moves them."""
        return not self.reduces and (self.splits or self.travel != "nowhere")

    @property
    def replicates(self) -> bool:
        """True if all devices have the same result."""
        return (self.gathers or self.reduces) and not self.splits

    def payload_of_result(self, result: int, devices: int) -> int:
        """Returns the payload in bytes per device, given the result's bytes and the devices."""
        return result * devices if self.scatters else result

    def sent(self, payload: int, devices: int) -> float:
        """Returns the bytes that a device sends, where devices pass data around a ring."""
        if self.travel == "nowhere":
            return 0.0
        if self.travel == "neighbour":
            return payload
        return self.passes * payload * (1 - 1 / devices)


def payload(operand: int, result: int) -> int:
    """Returns the bytes that a collective moves per device: the larger of operand and result."""
    return max(operand, result)


SLICE = CollectiveKind("slice", HloForm(()), "nowhere", splits=True)
"""Local step, no collective: each device keeps its shard of a replicated value."""

MASK = CollectiveKind("mask", HloForm(()), "nowhere")
"""Local step, no collective: one device keeps the replicated value, the others zeros, so that they
sum to it."""

LOCAL: dict[str, CollectiveKind] = {kind.name: kind for kind in (SLICE, MASK)}
"""Steps of a reshard that need no collective, by name."""

ALL_GATHER = CollectiveKind(
    "all_gather",
    HloForm(("all-gather",), start_holds_operands=True),
    "ring",
    gathers=True,
    attributes={"all_gather_dim": "dim", **GLOBAL_IDS},
)
ALL_REDUCE = CollectiveKind(
    "all_reduce",
    HloForm(("all-reduce",)),
    "ring",
    passes=2,
    reduces=True,
    attributes=GLOBAL_IDS,
)
REDUCE_SCATTER = CollectiveKind(
    "reduce_scatter",
    HloForm(("reduce-scatter",), start_holds_operands=True),
    "ring",
    reduces=True,
    splits=True,
    attributes={"scatter_dimension": "dim", **GLOBAL_IDS},
)
ALL_TO_ALL = CollectiveKind(
    "all_to_all",
    HloForm(("all-to-all", "ragged-all-to-all"), start_holds_operands=True, tuple_of_shards=True),
    "pairwise",
    gathers=True,
    splits=True,
    attributes={
        "split_dimension": "split",
        "concat_dimension": "dim",
        "split_count": "devices",
    },
)
COLLECTIVE_PERMUTE = CollectiveKind(
    "collective_permute",
    HloForm(("collective-permute",), pairs=True, start_holds_operands=True),
    "neighbour",
)

COLLECTIVES: dict[str, CollectiveKind] = {
    kind.name: kind
    for kind in (ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL, COLLECTIVE_PERMUTE)
}
"""Every kind of collective, by name."""

DIMENSIONS = frozenset(
    name
    for kind in COLLECTIVES.values()
    for name, value in kind.attributes.items()
    if value in ("dim", "split")
)
"""Attributes of any kind that number a dimension."""
