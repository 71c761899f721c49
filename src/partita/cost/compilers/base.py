"""Compilers as data: rules, each with the experiment that showed it.

A rule is a setting of fields of a hardware file. Together, the rules of a compiler are the defaults
of files that name it. Some rules hold on some device types only; the files of these state them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Something that a compiler does, and that a plain one does not."""

    name: str
    does: str
    """What the compiler does, as a sentence without subject: `stores ...`."""
    shown_by: str
    """The experiment that showed it: a test, a command, or compiled programs."""
    since: str
    """Date on which the cost model began to count it."""
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of fields of a hardware file, by path (`kernels.costly`), as plain data."""
    stated: tuple[str, ...] = ()
    """Paths of fields that the files of some device types state."""
    off: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of fields without the rule, as plain data, where that is not their default."""
    accuracy: str = ""
    """What is on record of predictions without it next to compiled programs, if anything is."""

    def without(self, hardware: T) -> T:
        """Returns hardware whose compiler does not follow this rule."""
        for path in dict.fromkeys((*self.sets, *self.stated, *self.off)):
            hardware = _replaced(hardware, path.split("."), self.off.get(path, msgspec.NODEFAULT))
        return hardware


def _replaced(table: T, path: list[str], value: Any) -> T:
    """Returns a table with another value of a field; its default for `NODEFAULT`."""
    name, *inner = path
    field = next(field for field in msgspec.structs.fields(table) if field.name == name)
    if inner:
        value = _replaced(getattr(table, name), inner, value)
    elif value is msgspec.NODEFAULT:
        value = field.default
    else:
        value = msgspec.convert(value, field.type)
    return msgspec.structs.replace(table, **{name: value})


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A compiler, and the rules by which it differs from a plain one."""

    name: str
    description: str
    rules: tuple[Rule, ...] = ()
    sources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of `source` fields: where settings that are no figures come from."""

    def table(self) -> dict[str, Any]:
        """Returns what the rules set, as the plain data of a hardware file."""
        found: dict[str, Any] = {"compiler": self.name}
        settings = (rule.sets for rule in self.rules)
        for path, value in (pair for each in (self.sources, *settings) for pair in each.items()):
            *outer, name = path.split(".")
            table = found
            for each in outer:
                table = table.setdefault(each, {})
            table[name] = value
        return found


def figure(value: float, source: str) -> dict[str, Any]:
    """Returns a figure as the plain data of a hardware file."""
    return {"value": value, "source": source}


NONE = figure(1, "without the rule")
"""Figure that switches off rules that count something."""
