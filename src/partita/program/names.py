"""Names of arguments, results and tagged values: patterns that select them, and what they share.

A user's pattern has `*` and `?` as wildcards. For print, names that differ in list indices only
are written once: `layers[0]['w']` and `layers[1]['w']` are `layers[*]['w']`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from partita.errors import UnknownNameError, closest
from partita.program.ir import Program


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
        raise UnknownNameError(
            f"{pattern!r} matches no argument, result or tagged value of {program.name}"
            f"{closest(pattern, names)}; names are pytree paths as JAX prints them, such as "
            f"{names[0]!r}, or what jax.ad_checkpoint.checkpoint_name says, and * and ? are "
            "wildcards"
        )
    return found


def matches(pattern: str, name: str) -> bool:
    """Whether a name is as a pattern says, `*` and `?` standing for anything."""
    expression = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(expression, name) is not None


def pattern(name: str) -> str:
    """A name with its list indices replaced by `*`, so that repeated structure reads alike."""
    return re.sub(r"\[\d+\]", "[*]", name)


def shared_pattern(names: Sequence[str], all_alike: bool = True) -> str:
    """What names that differ in list indices only have in common.

    Indices that differ read `[*]`, or are listed if the names are not all there are.
    """
    columns = list(zip(*(re.split(r"(\[\d+\])", name) for name in names), strict=True))
    return "".join(
        column[0] if len(set(column)) == 1 else "[*]" if all_alike else _indices(column)
        for column in columns
    )


def _indices(column: Sequence[str]) -> str:
    """`[0,2,3,...]` for the indices of a column."""
    numbers = sorted({int(part[1:-1]) for part in column})
    shown = ",".join(map(str, numbers[:4]))
    return f"[{shown},...]" if len(numbers) > 4 else f"[{shown}]"
