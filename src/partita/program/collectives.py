"""Collectives: all that is known of each, one entry for each kind.

An entry says what a collective does, how its data travel and how compiled programs write it.
Whoever handles collectives asks here: the lowering for payloads, the cost model for how data
travel, verification for opcodes. What a way of travelling costs is in `partita.cost.collectives`,
how a collective is emitted in `partita.emit.collectives`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Travel = Literal["nowhere", "neighbour", "ring", "pairwise"]
"""How data travel: not at all, to a neighbour, around a ring, or from each device to each other."""


@dataclasses.dataclass(frozen=True, slots=True)
class HloForm:
    """How HLO, the text of compiled programs, writes a collective."""

    opcodes: tuple[str, ...]
    """Each may be followed by `-start` and `-done`, where other work can run in between."""
    pairs: bool = False
    """Whether it lists who sends to whom, and not the groups of devices."""
    start_holds_operands: bool = False
    """Whether the type of its `-start` has the operands before the results."""
    tuple_of_shards: bool = False
    """Whether a tuple holds the shards of one operand; otherwise it has several operands."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveKind:
    """One kind of collective."""

    name: str
    """As StableHLO calls it, and everything that is printed."""
    hlo: HloForm
    travel: Travel
    passes: int = 1
    """How often data go around a ring."""
    reduces: bool = False
    """Whether what devices have is added up, or combined otherwise."""
    gathers: bool = False
    """Whether a dimension becomes longer: shards of several devices are put together."""
    splits: bool = False
    """Whether a dimension becomes shorter: each device keeps its shard."""

    @property
    def scatters(self) -> bool:
        """Whether the result is a shard of the operand."""
        return self.splits and not self.gathers

    def payload_of_result(self, result: int, devices: int) -> int:
        """Payload in bytes per device, from the bytes of the result and how many take part."""
        return result * devices if self.scatters else result

    def sent(self, payload: int, devices: int) -> float:
        """Bytes that a device sends, where devices pass data around a ring."""
        if self.travel == "nowhere":
            return 0.0
        if self.travel == "neighbour":
            return payload
        return self.passes * payload * (1 - 1 / devices)


def payload(operand: int, result: int) -> int:
    """What a collective moves, in bytes per device: the larger of operand and result."""
    return max(operand, result)


COLLECTIVES: dict[str, CollectiveKind] = {}
"""Every kind of collective, by name."""


def register(kind: CollectiveKind) -> CollectiveKind:
    """Adds a kind of collective; returns it."""
    COLLECTIVES[kind.name] = kind
    return kind


SLICE = CollectiveKind("slice", HloForm(()), "nowhere", splits=True)
"""No collective: each device keeps its shard of what all have."""

MASK = CollectiveKind("mask", HloForm(()), "nowhere")
"""No collective: one device keeps what all have, the others zeros, so that their sum is that."""

LOCAL: dict[str, CollectiveKind] = {kind.name: kind for kind in (SLICE, MASK)}
"""The steps of a reshard that are none, by name."""

ALL_GATHER = register(
    CollectiveKind(
        "all_gather", HloForm(("all-gather",), start_holds_operands=True), "ring", gathers=True
    )
)
ALL_REDUCE = register(
    CollectiveKind("all_reduce", HloForm(("all-reduce",)), "ring", passes=2, reduces=True)
)
REDUCE_SCATTER = register(
    CollectiveKind(
        "reduce_scatter",
        HloForm(("reduce-scatter",), start_holds_operands=True),
        "ring",
        reduces=True,
        splits=True,
    )
)
ALL_TO_ALL = register(
    CollectiveKind(
        "all_to_all",
        HloForm(
            ("all-to-all", "ragged-all-to-all"), start_holds_operands=True, tuple_of_shards=True
        ),
        "pairwise",
        gathers=True,
        splits=True,
    )
)
COLLECTIVE_PERMUTE = register(
    CollectiveKind(
        "collective_permute",
        HloForm(("collective-permute",), pairs=True, start_holds_operands=True),
        "neighbour",
    )
)
