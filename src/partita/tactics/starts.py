"""Starts of a search: ready-made tactics, and their combinations, on all choices of axes.

A strategy is what the tactics of one mesh axis do together. Which of them a program has is told by
the names of its arguments, as for the tactics themselves; a program without such names has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from partita.decisions import (
    EVERY_COLOR,
    Context,
    Request,
    ShardColor,
    ShardValues,
    Stage,
    in_order,
)
from partita.errors import PartitaError
from partita.search import Move
from partita.tactics.expert import ExpertParallel, experts
from partita.tactics.megatron import Megatron, widths
from partita.tactics.parts import examples
from partita.tactics.zero import ZeRO, placements

MOST_STARTS = 300
"""Combinations that are offered; those of fewer different strategies come first."""


def starts(stage: Stage, axes: Sequence[int]) -> list[tuple[Move, ...]]:
    """Sequences of moves: every combination of strategies on some of these axes."""
    known = _Known(stage)
    strategies = [strategy for strategy in _STRATEGIES if known.has(strategy)]
    chosen = list(itertools.product([_NOTHING, *strategies], repeat=len(axes)))
    chosen.sort(key=lambda each: (len(set(each) - {_NOTHING}), each.count(_NOTHING)))
    found: dict[tuple[Move, ...], None] = {}
    for each in chosen[1 : MOST_STARTS + 1]:
        by_axis = list(zip(axes, each, strict=True))
        found[known.colors(by_axis)] = found[known.moves(by_axis)] = None
    return [moves for moves in found if moves]


_NOTHING: tuple[str, ...] = ()

_STRATEGIES: tuple[tuple[str, ...], ...] = (
    ("examples", "parameters"),
    ("examples",),
    ("widths",),
    ("widths", "sequence"),
    ("experts",),
    ("experts", "widths"),
    ("widths", "parameters"),
    ("widths", "sequence", "parameters"),
    ("experts", "widths", "parameters"),
    ("examples", "optimizer and gradients"),
    ("examples", "optimizer"),
)
"""Strategies, by the parts that an axis shards: FSDP, data parallelism, Megatron, the same with
sequence parallelism, experts, experts and Megatron; three of these with the rest of the
parameters along their axis; ZeRO 2 and 1."""

_ORDER = (
    "examples",
    "experts",
    "widths",
    "sequence",
    "parameters",
    "optimizer and gradients",
    "optimizer",
)
"""Order in which parts take their axes, as experts compose tactics."""


_COMPUTED = _ORDER[:4]
"""The parts of computation; the others are only stored along their axes."""


class _Known:
    """The parts of a program that ready-made tactics find, as moves."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._placements: dict[str, list[ShardValues]] = {}
        self._moves: dict[tuple[str, int], tuple[ShardValues, ...]] = {}

    def has(self, strategy: Sequence[str]) -> bool:
        """Returns whether the program has all parts of a strategy."""
        return all(self._found(part) for part in strategy)

    def moves(self, chosen: Sequence[tuple[int, Sequence[str]]]) -> tuple[Move, ...]:
        """Returns the moves of strategies together, each on its axis."""
        return tuple(
            move
            for part in _ORDER
            for axis, strategy in chosen
            if part in strategy
            for move in self._placed(part, axis)
        )

    def colors(self, chosen: Sequence[tuple[int, Sequence[str]]]) -> tuple[Move, ...]:
        """Much the same by tile actions alone, which a search can change one by one."""
        return tuple(
            ShardColor(color, axis)
            for part in _ORDER
            for axis, strategy in chosen
            if part in strategy
            for color in self._colors(part)
        )

    def _colors(self, part: str) -> list[int]:
        """The color groups of what a part starts from; all of them for what is stored."""
        if part not in _COMPUTED:
            return [EVERY_COLOR]
        colors = self._stage.context.analysis.value_colors
        asked = ((r.value, r.dims[0]) for p in self._found(part) for r in p.requests)
        return sorted({colors(value)[dim] for value, dim in asked} - {-1})

    def _placed(self, part: str, axis: int) -> tuple[ShardValues, ...]:
        if (part, axis) not in self._moves:
            self._moves[part, axis] = tuple(
                msgspec.structs.replace(each, axis=axis, folded=True, what=part)
                for each in self._found(part)
            )
        return self._moves[part, axis]

    def _found(self, part: str) -> list[ShardValues]:
        if part not in self._placements:
            try:
                found = _placements(self._stage, part)
                self._placements[part] = [_ordered(self._stage.context, each) for each in found]
            except PartitaError:  # the program has no such part, or does not call it so
                self._placements[part] = []
        return self._placements[part]


def _ordered(context: Context, shard: ShardValues) -> ShardValues:
    """The same over classes: what it tries comes in the order in which it is tried."""
    requests = tuple(
        msgspec.structs.replace(r, dims=tuple(in_order(context, r.value, r.dims)))
        for r in shard.requests
    )
    return msgspec.structs.replace(shard, requests=requests)


def _placements(stage: Stage, part: str) -> Iterable[ShardValues]:
    """Returns the placements of the tactic of a part, along the first axis of the mesh."""
    first = stage.context.mesh.names[0]

    def placed(requests: Iterable[Request], colors: bool = False) -> list[ShardValues]:
        return [ShardValues(tuple(requests), 0, colors=colors)]

    match part:
        case "examples":
            return placed(examples(stage, "", None, 0))
        case "sequence":
            return placed(examples(stage, "", None, 1), colors=True)
        case "widths":
            found = [request for request, _ in widths(Megatron(first), stage)]
            return placed(found) if found else []
        case "experts":
            return placed(experts(ExpertParallel(first), stage))
        case "parameters":
            return placements(ZeRO(3, first), stage)
        case "optimizer and gradients":
            return placements(ZeRO(2, first), stage)
    return placements(ZeRO(1, first), stage)
