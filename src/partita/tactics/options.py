"""Options of tactics, checked when a tactic is made; and what is a tactic at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partita.errors import TacticError
from partita.options import boolean, integer, one_or_several, text, texts, wrong
from partita.tactics.protocol import Tactic, changes_program
from partita.text import parse_size


def _axis(value: Any, what: str) -> None:
    text(value, what, "the name of a mesh axis", TacticError)


def _steps(value: Any, what: str) -> None:
    if value is not None:
        integer(value, what, 1, TacticError)


def _role(value: Any, what: str) -> None:
    if value is not None:
        integer(value, what, 0, TacticError)


def _patterns(value: Any, what: str) -> None:
    if value is not None:
        expected = "a pattern of names, several, or a dict of patterns and dimensions"
        texts(value, what, expected, TacticError)


def _truth(value: Any, what: str) -> None:
    boolean(value, what, TacticError)


def _memory(value: Any, what: str) -> None:
    if value is not None:
        parse_size(value, what)


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    "axis": _axis,
    "steps": _steps,
    "resolve": _role,
    "patterns": _patterns,
    "optimizer": _patterns,
    "batch": _patterns,
    "allow": _patterns,
    "pinned": _patterns,
    "at": _patterns,
    "vocabulary": _truth,
    "memory": _memory,
    "layouts_only": _truth,
}
"""Checks of the fields of tactics, by name: a name means the same in all of them."""


def check(tactic: Any) -> None:
    """Raises `TacticError` for a field that is not what its name says."""
    for field in dataclasses.fields(tactic):
        left_out = field.default is None and getattr(tactic, field.name) is None
        if field.name in _CHECKS and not left_out:
            try:
                _CHECKS[field.name](getattr(tactic, field.name), field.name)
            except TacticError as error:
                raise TacticError(f"{type(tactic).__name__}: {error}") from None


def check_dims(tactic: Any) -> None:
    """The same, where patterns have to come with dimensions."""
    if not isinstance(tactic.patterns, Mapping) or not tactic.patterns:
        raise wrong(
            f"{type(tactic).__name__}: patterns",
            tactic.patterns,
            'a dict of patterns and dimensions, such as {"batch*": 0}',
            TacticError,
        )
    check(tactic)


def as_tactics(value: Any) -> list[Tactic]:
    """One tactic or several, as a list.

    Raises:
      TacticError: something is no tactic.
    """
    tactics = one_or_several(value)
    for each in tactics:
        if isinstance(each, type):
            raise wrong("tactics", each, f"a tactic, such as {each.__name__}(...)", TacticError)
        if not isinstance(getattr(each, "name", None), str) or not callable(
            getattr(each, "apply", None)
        ):
            expected = 'tactics, such as ManualPartition({"batch*": 0}, axis="data")'
            raise wrong("tactics", each, expected, TacticError)
    return tactics


def changing_first(tactics: Sequence[Tactic]) -> tuple[list[Tactic], list[Tactic]]:
    """The tactics that change the program, and the others, which are applied after them."""
    changing = [each for each in tactics if changes_program(each)]
    return changing, [each for each in tactics if not changes_program(each)]


def named_axes(tactic: Tactic) -> tuple[str, ...]:
    """The mesh axes that a tactic names, as far as it says so by `axis` or `axes`."""
    named = getattr(tactic, "axes", None) or getattr(tactic, "axis", None) or ()
    return (named,) if isinstance(named, str) else tuple(named)
