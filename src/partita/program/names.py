"""Names of arguments, results and tagged values: patterns that select them, and what they share.

JAX prints the path of a value as `params['layers'][0].mlp['kernel']`; it has parts: `params`,
`layers`, `0`, `mlp`, `kernel`. Keys that are paths themselves, as in a state dict of PyTorch or in
Haiku, have parts, too: `params['layers.0.mlp/kernel']` has the same ones. A user's pattern has `*`
and `?` as wildcards, and is compared with the name as it is printed, and with its parts joined by
dots. For print, names that differ in indices only are written once: `layers[0]['w']` and
`layers[1]['w']` are `layers[*]['w']`, and `Block_0` and `Block_1` are `Block_*`.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from partita.errors import UnknownNameError, closest
from partita.program.ir import Program

_SEPARATOR = re.compile(r"""\[?["']?\]?[./]?\[["']?|["']?\]|[./]""")
"""Separators between the parts of a path: brackets with or without quotes, dots and slashes."""

_INDEX = re.compile(r"(?<=[\[./_])(\d+)(?=[\]./'])")
"""A part that is a number, or ends in one, as Flax and Haiku number layers: `Dense_0`."""

_Told = TypeVar("_Told", bound=Hashable)

MOST_NAMED = 3
"""Names that a message suggests."""


def match(program: Program, pattern: str) -> list[tuple[str, int]]:
    """Arguments, results and tagged values whose names match a pattern, as (name, value).

    Raises:
      UnknownNameError: there are none; the message has the closest names.
    """
    named = [
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
        *program.tagged,
    ]
    found = [(name, value) for name, value in named if matches(pattern, name)]
    if not found:
        names = [name for name, _ in named]
        example = f", such as {names[0]!r}" if names else ""
        raise UnknownNameError(
            f"{pattern!r} matches no argument, result or tagged value of {program.name}"
            f"{nearest(pattern, names)}; names are pytree paths as JAX prints them{example}, or "
            "what jax.ad_checkpoint.checkpoint_name says, and * and ? are wildcards"
        )
    return found


def grouped(rows: Iterable[tuple[str, _Told]]) -> list[tuple[str, int, _Told]]:
    """Joins names of which the same is said and that differ in indices only.

    Args:
      rows: names, each with what is said of it.

    Returns:
      A pattern of the names, how many they are, and what is said of them.
    """
    groups: dict[tuple[str, _Told], list[str]] = {}
    for name, told in rows:
        groups.setdefault((pattern(name), told), []).append(name)
    return [(shared_pattern(names), len(names), told) for (_, told), names in groups.items()]


def matches(pattern: str, name: str) -> bool:
    """Returns whether a name matches a pattern; `*` and `?` are wildcards."""
    if _compiled(pattern).fullmatch(name):
        return True
    return _compiled(_dotted_pattern(pattern)).fullmatch(_dotted(name)) is not None


def nearest(pattern: str, names: Sequence[str]) -> str:
    """Returns a hint `; did you mean 'a' or 'b'?`, with the names that a pattern may be for."""
    parts: dict[str, str] = {}
    for name in names:
        for part in path(name):
            parts.setdefault(part, name)
    words = [word for word in re.split(r"[*?]", ".".join(path(pattern))) for word in path(word)]
    misspelt = [word for word in words if not any(word in part for part in parts)]
    found = {
        parts[close]: None
        for word in misspelt
        for close in difflib.get_close_matches(word, parts, n=MOST_NAMED, cutoff=0.6)
    }
    if found:
        return f"; did you mean {' or '.join(map(repr, list(found)[:MOST_NAMED]))}?"
    return closest(pattern, names)


def path(name: str) -> tuple[str, ...]:
    """Returns the parts of a name, without the `.value` at the end of a Flax variable."""
    parts = tuple(part for part in _split(name) if part)
    return parts[:-1] if name.endswith(".value") else parts


@functools.lru_cache(2**16)
def _split(name: str) -> tuple[str, ...]:
    return tuple(_SEPARATOR.split(name))


@functools.lru_cache(2**16)
def _dotted(name: str) -> str:
    """Returns the parts of a name, a dot after each."""
    return "".join(f"{part}." for part in path(name))


@functools.lru_cache(2**16)
def _dotted_pattern(pattern: str) -> str:
    """Returns a pattern for names in the form of `_dotted`."""
    joined = ".".join(part for part in _split(pattern) if part)
    return joined if joined.endswith("*") else f"{joined}."


@functools.lru_cache(2**16)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern into a regular expression that takes linear time for each of its parts.

    The text between two stars matches where it is first found, without backtracking.
    """
    first, *rest = re.split(r"\*+", pattern)
    expression = _quoted(first)
    if rest:
        *middle, last = rest
        expression += "".join(f"(?>.*?{_quoted(part)})" for part in middle) + f".*{_quoted(last)}"
    return re.compile(expression, re.DOTALL)


def _quoted(part: str) -> str:
    return "".join("." if c == "?" else re.escape(c) for c in part)


def pattern(name: str) -> str:
    """Returns a name with its indices replaced by `*`, so that repeated structure reads alike."""
    return _INDEX.sub("*", name)


def shared_pattern(names: Sequence[str], all_alike: bool = True) -> str:
    """Returns the common pattern of names that differ in indices only.

    Indices that differ read `*`, or are listed if the names are not all there are.
    """
    columns = list(zip(*(_INDEX.split(name) for name in names), strict=True))
    return "".join(
        column[0] if len(set(column)) == 1 else "*" if all_alike else _indices(column)
        for column in columns
    )


def _indices(column: Iterable[str]) -> str:
    """Formats the indices of a column as `0,2,3,...`."""
    numbers = sorted(set(map(int, column)))
    shown = ",".join(map(str, numbers[:4]))
    return f"{shown},..." if len(numbers) > 4 else shown
