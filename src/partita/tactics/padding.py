"""Estimates the gain of padding heavy dimensions that the axes of a mesh do not divide.

Nothing is padded here. The plan that was found is estimated for the program in which such a
dimension is a little longer, with its color split along axes, too; who finds that worth it pads
the dimension in the model.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from partita.cost import Cost
from partita.decisions import Stage
from partita.program import Program
from partita.program.resized import resized
from partita.search import Move, Problem, SearchState
from partita.search.refine import climb
from partita.tactics.protocol import Refusal
from partita.text import seconds, size

MOST_PADDED = 3
"""Dimensions that are looked at, the heaviest first."""

HEAVY = 0.02
"""The share of all data that a dimension has to be part of."""

WASTE = 0.1
"""Largest ratio of a padded size to the original one."""

WORTH = 0.01
"""Least gain, as a share of the step, or of the memory that does not suffice."""

CLIMBED = 100
"""Plans that are evaluated to fit the plan to a padded dimension."""


def paddings(stage: Stage, axes: Sequence[int], best: SearchState) -> Iterator[Refusal]:
    """Dimensions that would be worth padding, with what the plan would take then.

    Args:
      stage: where the search began.
      axes: positions of the mesh axes that it could use.
      best: what it has found.
    """
    mesh = stage.context.mesh
    for color, length in _heavy(stage, axes):
        problems = {
            to: padded
            for to in _lengths(stage, axes, length)
            if (padded := _padded(stage, axes, color, length, to, best.moves)) is not None
        }
        if not problems:
            continue
        to = min(problems, key=lambda to: problems[to].rank(problems[to].best))
        padded = problems[to]
        cost = climb(padded, padded.best, padded.evaluations + CLIMBED).cost
        if _gain(best.cost, cost, stage.capacity) > WORTH:
            split = " x ".join(f"{mesh.names[a]}={mesh.sizes[a]}" for a in axes)
            yield Refusal(
                f"{stage.context.colors.name(color)}, of {length}",
                f"not divisible by {split}",
                f"with {to} instead, {100 * (to - length) / length:.2g} % more, the plan would "
                f"take {_told(cost)}, not {_told(best.cost)}",
            )


def _told(cost: Cost) -> str:
    return f"{seconds(cost.time.step_time)} and {size(cost.peak)}"


def _lengths(stage: Stage, axes: Sequence[int], length: int) -> list[int]:
    """The next multiples of what axes divide dimensions into, shortest first."""
    found = set[int]()
    for count in range(1, len(axes) + 1):
        for along in itertools.combinations(axes, count):
            shards = stage.context.mesh.size(along)
            found.add(-(-length // shards) * shards)
    return sorted(to for to in found if length < to <= length * (1 + WASTE))


def _heavy(stage: Stage, axes: Sequence[int]) -> list[tuple[int, int]]:
    """The color groups with most data whose size an axis does not divide, with that size."""
    values, total = stage.context.single.graph.values, 0
    weight: dict[tuple[int, int], int] = {}
    for value in values:
        of_value = value.value.type
        total += of_value.bytes
        for color, length in {*zip(value.colors, of_value.shape, strict=True)}:
            if color >= 0:
                weight[color, length] = weight.get((color, length), 0) + of_value.bytes
    sizes = [n for n in map(stage.context.mesh.sizes.__getitem__, axes) if n > 1]
    found = [
        (-each, color, length)
        for (color, length), each in weight.items()
        if length > max(sizes, default=length) and any(length % n for n in sizes)
        if each > HEAVY * total
    ]
    return [(color, length) for _, color, length in sorted(found)[:MOST_PADDED]]


def _padded(
    stage: Stage, axes: Sequence[int], color: int, old: int, new: int, moves: Sequence[Move]
) -> Problem | None:
    """The problem with another size, in which the plan and what splits the color, too, are
    evaluated; None if it is not known what it is."""
    context = stage.context
    dims = [
        (value.index, dim)
        for value in context.single.graph.values
        for dim, each in enumerate(value.colors)
        if each == color
    ]
    program = resized(context.analysis.program, dims, old, new)
    if program is None or not _divided(stage, program):
        return None
    analysis = dataclasses.replace(context.analysis, program=program)
    padded = Stage(dataclasses.replace(context, analysis=analysis), stage.assignment, stage.memory)
    problem = Problem(analysis, *padded.folded, context.mesh, padded.cost_model, axes)
    tiles = {move.axis: move for move in reversed(problem.moves) if move.color == color}
    for count in range(1, len(tiles) + 1):
        for chosen in itertools.combinations(tiles.values(), count):
            problem.replay((*chosen, *moves))
            problem.replay((*moves, *chosen))
    return problem


def _divided(stage: Stage, program: Program) -> bool:
    """Returns whether the decisions so far divide the sizes of another program, too."""
    mesh = stage.context.mesh
    return all(
        length % mesh.size(along) == 0
        for value, layout in zip(program.values, stage.tiling.values, strict=True)
        for length, along in zip(value.type.shape, layout, strict=True)
    )


def _gain(before: Cost, after: Cost, capacity: float) -> float:
    """The share of the step that is saved, or of the peak if that was too large."""
    if before.peak > capacity:
        return 1 - after.peak / before.peak
    if after.peak > capacity:
        return -math.inf
    return 1 - after.time.step_time / before.time.step_time
