"""Targets that run a plan, and the collectives that they cannot express.

Plans for DTensor avoid those; others are refused with a reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partita.errors import OptionError, closest
from partita.program.collectives import COLLECTIVE_PERMUTE
from partita.spmd import Collective
from partita.tactics import AutomaticPartition, Tactic

_AVOIDED = {"dtensor": (COLLECTIVE_PERMUTE.name,)}
"""The kinds of collectives that each target has not."""


def avoided(target: str | None) -> tuple[str, ...]:
    """The kinds of collectives that a plan for a target must not have.

    Raises:
      OptionError: there is no such target.
    """
    if target is None:
        return ()
    if target not in _AVOIDED:
        known = ", ".join(map(repr, _AVOIDED))
        raise OptionError(
            f"target={target!r} is not known{closest(str(target), _AVOIDED)}; known is {known}"
        )
    return _AVOIDED[target]


def staying_inside(tactics: Iterable[Tactic], kinds: Sequence[str]) -> list[Tactic]:
    """The tactics, of which those that search avoid some kinds of collectives."""
    return [
        dataclasses.replace(each, avoid=tuple(dict.fromkeys((*each.avoid, *kinds))))
        if isinstance(each, AutomaticPartition) and kinds
        else each
        for each in tactics
    ]


def refusals(collectives: Iterable[Collective]) -> tuple[str, ...]:
    """Returns what DTensor cannot do of a plan, with reasons and the nearest plan that it can."""
    kinds, found = avoided("dtensor"), dict[tuple[str, ...], Collective]()
    for each in collectives:
        if each.kind in kinds:
            found.setdefault(each.axes, each)
    return tuple(_refusal(each) for each in found.values())


def _refusal(each: Collective) -> str:
    axes = list(each.axes)
    return (
        f"along {', '.join(axes)} devices hand shards of {each.value} on to each other "
        f"({each.kind}), which DTensor cannot; for the nearest plan that it can, have "
        f"AutomaticPartition(axes={axes}) decide in place of the tactic that splits it so, with "
        'target="dtensor"'
    )
