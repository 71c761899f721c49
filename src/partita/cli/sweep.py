"""`partita plan --sweep`: one plan for each combination of some options, in one table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import partita as pt
from partita.cli.output import error
from partita.cli.planned import manual_tactic
from partita.report.compare import ComparisonData, best_first, comparison, side_of_plan

SWEPT = ("mesh", "devices", "hardware", "memory", "tactics", "search", "seed", "budget")
"""The options that can be swept; `tactics` is in place of `--manual` and `--axes`."""

READY_MADE: Mapping[str, Callable[[str], pt.Tactic]] = {
    "data": pt.DataParallel,
    "zero1": lambda axis: pt.ZeRO(1, axis),
    "zero2": lambda axis: pt.ZeRO(2, axis),
    "zero3": lambda axis: pt.ZeRO(3, axis),
    "fsdp": pt.FullyShardedDataParallel,
    "megatron": pt.Megatron,
    "sequence": pt.SequenceParallel,
    "expert": pt.ExpertParallel,
}
"""Tactics that a sweep knows by name, as `fsdp@data`."""

MOST = 200
"""Plans of one sweep."""


def swept(options: Sequence[str]) -> dict[str, list[str]]:
    """The values of every option that is swept, from `NAME=VALUE VALUE ...`.

    Raises:
      OptionError: it cannot be read, or there are too many combinations.
    """
    found: dict[str, list[str]] = {}
    number = 1
    for text in options:
        name, given, values = text.partition("=")
        if name not in SWEPT or not given or not values.split():
            raise pt.OptionError(
                f"cannot read --sweep {text!r}; expected NAME='VALUE VALUE ...' with one of "
                f"{', '.join(SWEPT)}, as in --sweep 'mesh=data=8 data=4,model=2'"
            )
        found.setdefault(name, []).extend(values.split())
    for values_ in found.values():
        number *= len(values_)
    if number > MOST:
        raise pt.OptionError(f"a sweep of {number} plans; at most {MOST}")
    return found


def tactics_of(text: str, search: Callable[[], pt.Tactic]) -> list[pt.Tactic]:
    """The tactics of `data@x+megatron@y+search`; `none` for none.

    Raises:
      TacticError: one cannot be read.
    """
    return [] if text == "none" else [_tactic(part, search) for part in _parts(text)]


def _parts(text: str) -> Iterator[str]:
    yield from re.split(r"\+(?=[\w.*'\[\]]+(?:@|:|$|\+))", text)


def _tactic(text: str, search: Callable[[], pt.Tactic]) -> pt.Tactic:
    if text == "search":
        return search()
    name, given, axis = text.partition("@")
    if given and name in READY_MADE:
        return READY_MADE[name](axis)
    if ":" in name:
        return manual_tactic(text)
    raise pt.TacticError(
        f"cannot read the tactic {text!r}; expected search, none, PATTERN:DIM@AXIS, or NAME@AXIS "
        f"with one of {', '.join(READY_MADE)}"
    )


def number(name: str, text: str) -> int:
    """The value of an option that is a whole number.

    Raises:
      OptionError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise pt.OptionError(f"expected a whole number for {name}") from None


def sweep(
    values: Mapping[str, Sequence[str]], make: Callable[..., pt.Plan]
) -> tuple[ComparisonData, bool]:
    """Plans every combination, best first, and says whether all could be planned.

    Each one that cannot is an error message that names it.

    Args:
      values: of every option that is swept.
      make: plans with the options given by name.

    Raises:
      OptionError: none can be planned.
    """
    sides, combinations = [], list(itertools.product(*values.values()))
    for combination in combinations:
        chosen = dict(zip(values, combination, strict=True))
        told = " ".join(f"{name}={value}" for name, value in chosen.items())
        try:
            sides.append(side_of_plan(told, make(**chosen).done))
        except pt.PartitaError as problem:
            error(f"{told}: {problem}")
    if not sides:
        raise pt.OptionError("no plan of the sweep could be made")
    return comparison(best_first(sides)), len(sides) == len(combinations)
