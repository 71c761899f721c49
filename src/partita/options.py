"""Options that users give, checked where they come in: errors name the option and its value."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from partita.errors import OptionError, PartitaError
from partita.text import parse_size


def wrong(
    what: str, value: object, expected: str, kind: type[PartitaError] = OptionError
) -> PartitaError:
    """The error for an option that is not what is expected."""
    return kind(f"{what}={reprlib.repr(value)}: expected {expected}")


def integer(
    value: Any, what: str, least: int | None = None, kind: type[PartitaError] = OptionError
) -> int:
    """A whole number, of at least `least`; one of NumPy's, too, but no truth value."""
    at_least = "" if least is None else f" of at least {least}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        raise wrong(what, value, f"an integer{at_least}", kind)
    return number


def boolean(value: Any, what: str, kind: type[PartitaError] = OptionError) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong(what, value, "True or False", kind)
    return value


def text(value: Any, what: str, expected: str, kind: type[PartitaError] = OptionError) -> str:
    """A string that is not empty; `expected` says of what."""
    if not isinstance(value, str) or not value:
        raise wrong(what, value, expected, kind)
    return value


def texts(
    value: Any, what: str, expected: str, kind: type[PartitaError] = OptionError
) -> tuple[str, ...]:
    """One string or several, as a tuple."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Iterable) or isinstance(several, bytes):
        raise wrong(what, value, expected, kind)
    several = tuple(several)
    if not all(isinstance(each, str) and each for each in several):
        raise wrong(what, value, expected, kind)
    return several


def positions(value: Any, what: str, least: int | None = 0) -> tuple[int, ...]:
    """One position of an argument or several, as a tuple; from the end below 0, if they may be."""
    expected = "the position of an argument, or several"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        value = (value,)
    several = tuple(value)
    for each in several:
        try:
            integer(each, what, least)
        except OptionError:
            raise wrong(what, several[0] if len(several) == 1 else several, expected) from None
    return tuple(map(int, several))


def function(value: Any, what: str) -> Callable[..., Any]:
    """Something that can be called."""
    if not callable(value):
        raise wrong(what, value, "a function")
    made: Callable[..., Any] = value
    return made


def hoisting(value: Any, what: str, least: int) -> int | None:
    """Bytes of the smallest constant to hoist: `least` if it is True, None if it is False."""
    if isinstance(value, bool):
        return least if value else None
    return parse_size(value, what)


def one_or_several(value: Any) -> list[Any]:
    """A list or tuple as it is; anything else as the one element of a list."""
    return list(value) if isinstance(value, list | tuple) else [value]
