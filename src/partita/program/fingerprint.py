"""Fingerprints of programs: equal for programs that are the same to a plan, wherever written.

A program counts as its module's text without locations and without the name of the module; the
sharding rules of its operations; and all other facts that are not in the text, such as donation.
Fingerprints depend neither on the process, nor on the machine, nor on where the code is stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from partita.program.ir import Program
from partita.text import relative

_DEFINITION = re.compile(r"(#loc\d*) = (.*)")
_AT_THE_END = re.compile(r" loc\((?:#loc\d*|unknown)\)\Z")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"| *\bloc\(|[()]')
_MODULE_NAME = re.compile(r'\Amodule @(?:"[^"]*"|[\w$.-]+)')
_VALUE = re.compile(r"%[\w$.#:-]+")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+)')

_IN_TEXT = {
    "name",
    "values",
    "operations",
    "changed",
    "arguments",
    "results",
    "argument_names",
    "result_names",
    "body",
    "regions",
    "module",
    "constants",
    "roles",
    "argument_memory",
    "result_memory",
    "hosted",
    "partitioned",
    "platform",
}
"""Fields of a program that its text says, or that only name things."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

MOST = 3
"""Lines that are shown from where programs differ."""

SHOWN = 160
"""Characters of a line that are kept to show it."""


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """A program, in short: whether two are the same, and where they first differ."""

    digest: str
    """SHA-256 of all that counts, in hexadecimal."""
    lines: tuple[str, ...]
    """The lines of the text, without the names of values, the long ones cut."""
    checks: str
    """Two letters for each line, of the whole of it."""


def fingerprint(program: Program) -> Fingerprint:
    """Returns the fingerprint of a program, equal in every process."""
    lines = _lines(program.module)
    digest = hashlib.sha256()
    for part in (*lines, *_rules(program), *_facts(program)):
        digest.update(part.encode())
        digest.update(b"\n")
    shown = _VALUE.sub("%", "\n".join(lines)).split("\n")
    return Fingerprint(
        digest.hexdigest(),
        tuple(_cut(line.strip()) for line in shown),
        "".join(map(_check, lines)),
    )


def digest_of(array: Any) -> str:
    """Returns the SHA-256 of a numpy array's contents, in hexadecimal."""
    return hashlib.sha256(array.tobytes()).hexdigest()


def differences(was: Fingerprint, now: Fingerprint, program: Program) -> list[str]:
    """Describes the change of a program in words: the first operations that differ.

    Args:
      was: the fingerprint that it had.
      now: the one that it has, another one.
      program: as it is now.
    """
    before, after = list(_pairs(was)), list(_pairs(now))
    if before == after:
        return ["the sharding rules of its operations, its donation, or its given shardings"]
    place = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    found = [f"line {place + 1} of its StableHLO is the first that differs"]
    if len(before) != len(after):
        found[0] += f"; it had {len(before)} lines, now {len(after)}"
    old = [line for line, _ in before[place : place + MOST]]
    new = [line for line, _ in after[place : place + MOST]]
    sources = [_source(program.module, place + n) for n in range(len(new))]
    shown = [
        f"{line}  ({source})" if source else line for line, source in zip(new, sources, strict=True)
    ]
    if old[:1] == new[:1]:
        return [*found, f"  {shown[0]}: reads other values"]
    found += [f"  was {line}" for line in old or ["nothing"]]
    return found + [f"  now {line}" for line in shown or ["nothing"]]


def _pairs(fingerprint: Fingerprint) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(fingerprint.lines):
        yield line, fingerprint.checks[2 * number : 2 * number + 2]


def _lines(text: str) -> list[str]:
    """Returns the lines of a module that define the program."""
    lines = [_without_locations(line) for line in _body(text)]
    lines[0] = _MODULE_NAME.sub("module", lines[0])
    return lines


def _without_locations(line: str) -> str:
    line = _AT_THE_END.sub("", line) if line.endswith(")") else line
    if "loc(" not in line:
        return line
    kept, depth, end = [], 0, 0
    for token in _TOKEN.finditer(line):
        if depth:  # inside a location
            depth += token[0].endswith("(") - (token[0] == ")")
            end = token.end()
        elif token[0].endswith("loc("):
            kept.append(line[end : token.start()])
            depth = 1
    return "".join([*kept, line[end:]])


def _body(text: str) -> list[str]:
    """Returns the lines of a module except those that define locations."""
    return [line for line in text.rstrip().split("\n") if not _DEFINITION.match(line)]


def _cut(line: str) -> str:
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def _check(line: str) -> str:
    number = zlib.crc32(line.encode())
    return _LETTERS[number & 63] + _LETTERS[number >> 6 & 63]


def _rules(program: Program) -> Iterator[str]:
    """Yields the sharding rules, each different one once, then which operation has which."""
    numbers: dict[Any, int] = {}
    known: dict[int, int] = {}  # many operations share one object, which is quicker to look up
    order = []
    tests = {loop.choose for loop in program.loops}  # they say nothing that the text does not
    for op in program.operations:
        if op.index in tests:
            continue
        number = known.get(id(op.rule))
        if number is None:
            number = known[id(op.rule)] = numbers.setdefault(op.rule, len(numbers))
        order.append(number)
    yield from map(repr, numbers)
    yield repr(order)


def _facts(program: Program) -> Iterator[str]:
    """Yields the other facts of a program: donation, random keys, shardings that it comes with."""
    for field in dataclasses.fields(program):
        if field.name not in _IN_TEXT:
            yield f"{field.name}: {_ordered(getattr(program, field.name))}"


def _ordered(fact: Any) -> Any:
    if isinstance(fact, dict):
        return sorted(fact.items())
    return sorted(fact) if isinstance(fact, frozenset) else fact


def _source(text: str, place: int) -> str:
    """Returns `file:line` of a line of a module, or of the next one that has a location."""
    definitions = {
        found[1]: found[2] for line in text.split("\n") if (found := _DEFINITION.match(line))
    }
    for line in _body(text)[place:]:
        if references := re.findall(r"#loc\d*", line):
            return _resolved(references[-1:], definitions)
    return ""


def _resolved(references: Iterable[str], definitions: dict[str, str]) -> str:
    """Returns the first file and line that locations lead to."""
    waiting, seen = list(references), set[str]()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        definition = definitions.get(name, "")
        if found := _FILE.search(definition):
            return f"{relative(found[1])}:{found[2]}"
        waiting[:0] = re.findall(r"#loc\d*", definition)
    return ""
