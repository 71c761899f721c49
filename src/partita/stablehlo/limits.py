"""Limits of the modules that are read: what MLIR, or what comes after it, could not bear.

MLIR's parser recurses as deep as a text is nested, and a few lines of names for attributes that
contain each other stand for more text than any memory holds. Both show in the text before it is
parsed.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from partita.errors import UnsupportedError

DEPTH = 400
"""Largest nesting depth of brackets, and of named attributes, types and locations."""

REGIONS = 100
"""Largest nesting depth of braces: loops in loops."""

WRITTEN_OUT = 2**24
"""Characters of all named attributes and types, written out wherever they are used."""

OPERATIONS = 500_000
"""Operations that a program may have once its calls are inlined."""

_KINDS = (b"{}", b"()", b"[]", b"<>")
_OTHERS = bytes(set(range(256)) - set(b'"' + b"".join(_KINDS)))
_COMMENT = re.compile(rb'("[^"\n]*"?)|//[^\n]*')
_STRING = re.compile(rb'(backend_config\s*=\s*)?"([^"\\\n]*(?:\\.[^"\\\n]*)+)"?')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")
_SIGNS = b"-" * 50
_NAME = re.compile(r"[#!][\w$.-]+")
_NAMED = re.compile(r"([#!][\w$.-]+)\s*=(?!=)\s*(loc\()?")
_BODY = re.compile(r'\n\s*"?(?:builtin\.)?(?:module|func\.func)\b')


def check_text(text: str) -> None:
    """Raises `UnsupportedError` for the text of a module that is nested too deeply to be parsed.

    It takes time in proportion to the text, about 10 ms for each megabyte.
    """
    bare = text.encode()
    if b"\\" in bare:
        _check_strings(bare)
        bare = bare.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b"//" in bare:
        bare = _COMMENT.sub(rb"\1", bare)
    _check_brackets(bare.replace(b"->", b""))
    # For the parser each sign is a level, without a bracket.
    if _SIGNS in bare.translate(None, b" \t\r\n"):
        raise UnsupportedError(f"it has {len(_SIGNS)} minus signs in a row")
    _check_names(text)


def _check_strings(text: bytes) -> None:
    """Finds strings that are no text; jaxlib ends the process when it is asked for such a name.

    What configures a custom call may be anything, and is not read.
    """
    for match in _STRING.finditer(text):
        try:
            _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), match[2]).decode()
        except UnicodeDecodeError:
            if not match[1]:
                shown = match[2].decode(errors="replace")
                raise UnsupportedError(f'a name in it is not UTF-8: "{shown}"') from None


def _check_brackets(text: bytes) -> None:
    """Counts how deep brackets outside of strings are in each other.

    Kinds are counted one by one, so that stray brackets of one kind hide none of another.
    """
    marks = np.frombuffer(text.translate(None, _OTHERS), np.uint8)
    quotes = marks == ord('"')
    marks = marks[(np.cumsum(quotes) % 2 == 0) & ~quotes]
    depths = {kind: _deepest(marks, *kind) for kind in _KINDS}
    if depths[b"{}"] > REGIONS or sum(depths.values()) > DEPTH:
        raise UnsupportedError(
            f"it is nested too deeply; at most {REGIONS} loops and branches may be in each other, "
            f"and at most {DEPTH} brackets"
        )


def _deepest(marks: np.ndarray, opening: int, closing: int) -> int:
    """Returns the nesting depth of brackets of a kind; ignores surplus closing ones."""
    depth = np.cumsum((marks == opening).astype(np.int8) - (marks == closing), dtype=np.int64)
    lowest = np.minimum.accumulate(np.minimum(depth, 0))
    return int(np.max(depth - lowest, initial=0))


def _check_names(text: str) -> None:
    """Looks at names for attributes, types and locations: how long is what they stand for.

    MLIR knows a name only after what it stands for, so that one pass in order sees all.
    """
    starts = list(_NAMED.finditer(text))
    ends = [*(match.start() for match in starts), len(text)][1:]
    lengths: dict[str, int] = {}
    depths: dict[str, int] = {}
    for match, end in zip(starts, ends, strict=True):
        body = _BODY.search(text, match.end(), end)
        end = body.start() if body else end
        used = [name for name in _NAME.findall(text, match.end(), end) if name in lengths]
        length = end - match.end() + sum(lengths[name] for name in used)
        lengths[match[1]] = min(max(length, lengths.get(match[1], 0)), 8 * len(text) + WRITTEN_OUT)
        depths[match[1]] = 1 + max((depths[name] for name in used), default=0)
    if max(depths.values(), default=0) > DEPTH:
        raise UnsupportedError(
            f"its attributes, types or locations are in each other more than {DEPTH} deep"
        )
    # A location is printed once, by its name; attributes and types are, wherever they are used.
    several = {match[1] for match in starts if not match[2]}
    uses = Counter(_NAME.findall(text)) if several else Counter()
    longest = max(lengths.values(), default=0)
    written = sum(lengths[name] * uses[name] for name in several)
    if longest + written > 4 * len(text) + WRITTEN_OUT:
        raise UnsupportedError(
            "its attributes, types or locations are in each other by name, and too long when "
            "they are written out"
        )
