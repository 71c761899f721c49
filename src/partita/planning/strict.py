"""Strictness: what a report only mentions, as errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from partita.errors import StrictError, closest
from partita.escape import printed
from partita.options import boolean, wrong
from partita.planning.schedule import Scheduled, argument_groups
from partita.tactics.given import given_layouts
from partita.text import parse_size, show_entries, size, times
from partita.tiling import entries

REPLICATED = 2**30
"""Bytes from which on something replicated is a problem, unless it is said: 1 GiB."""

KINDS = {
    "refused": "requests of tactics that were not met",
    "donation": "donated arguments whose buffer no result takes over",
    "constraints": "shardings in the program that the plan does not keep",
    "replicated": "arrays of at least a size that every device has all of",
    "idle": "axes of the mesh along which all devices do the same work",
    "memory": "a plan that does not fit",
}
"""Kinds of strictness, and what is a problem for each."""

Strict = bool | str | Collection[str] | Mapping[str, Any]
"""All kinds; one or some, by name; or a dict of names with True, False, or, for `replicated`, a
size."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that a strict plan may not have."""

    kind: str
    """One of `partita.planning.strict.KINDS`."""
    what: str

    @printed
    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def kinds(strict: Strict) -> dict[str, int]:
    """The kinds that are wanted, each with the size that it counts from.

    Raises:
      OptionError: there is no such kind, or it cannot be read.
    """
    if isinstance(strict, bool):
        return dict.fromkeys(KINDS, REPLICATED) if strict else {}
    given: Any = (strict,) if isinstance(strict, str) else strict
    if not isinstance(given, Mapping):
        if not isinstance(given, Collection):
            raise _unreadable(strict)
        given = dict.fromkeys(given, True)
    found = {}
    for kind, value in given.items():
        if kind not in KINDS:
            hint = closest(str(kind), KINDS)
            raise wrong("strict", kind, f"one of {', '.join(KINDS)}{hint}")
        if kind == "replicated" and not isinstance(value, bool):
            found[kind] = parse_size(value, "strict['replicated']")
        elif boolean(value, f"strict[{kind!r}]"):
            found[kind] = REPLICATED
    return found


def _unreadable(strict: object) -> Exception:
    return wrong("strict", strict, f"True, or some of {', '.join(KINDS)}")


def problems(done: Scheduled, donated: Iterable[int], wanted: Mapping[str, int]) -> list[Problem]:
    """Returns what a plan has although it must not.

    Args:
      done: where its schedule has come to.
      donated: numbers of the donated arguments of the program.
      wanted: the kinds, as `kinds` gives them.
    """
    found = {
        "refused": _refused(done),
        "donation": _lost(done, donated),
        "constraints": _ignored(done),
        "replicated": _replicated(done, wanted.get("replicated", REPLICATED)),
        "idle": map(str, done.idle_axes),
        "memory": _too_large(done),
    }
    return [Problem(kind, what) for kind in KINDS if kind in wanted for what in found[kind]]


def check(found: Collection[Problem], name: str) -> None:
    """Raises `StrictError`, with all of them, if there are problems with what is called so."""
    if found:
        lines = "\n".join(f"  {problem}" for problem in found)
        raise StrictError(f"{name} is not what strict= asks for:\n{lines}")


def _refused(done: Scheduled) -> Iterator[str]:
    for entry in done.history:
        yield from (f"{entry.name}: {refusal}" for refusal in entry.refused)


def _lost(done: Scheduled, donated: Iterable[int]) -> Iterator[str]:
    program = done.program
    for number in donated:
        if number not in program.aliases:
            type_ = program.values[program.arguments[number]].type
            yield f"{program.argument_names[number]}: no result that is free is a {type_}"


def _ignored(done: Scheduled) -> Iterator[str]:
    context, lowering = done.stage.context, done.lowering
    for value, said in given_layouts(context.analysis.program, context.mesh).items():
        layout = lowering.plans[lowering.graph.value_class[value]].layout
        if any(have[: len(axes)] != axes for have, axes in zip(layout, said, strict=True)):
            want, is_ = (show_entries(entries(each, done.mesh)) for each in (said, layout))
            yield f"{done.program.describe(value)} is to be {want} and is {is_}"


def _replicated(done: Scheduled, least: int) -> Iterator[str]:
    program = done.program
    if done.mesh.devices == 1:
        return
    for label, numbers in argument_groups(program, done.spmd.argument_layouts).items():
        type_ = program.values[program.arguments[numbers[0]]].type
        if type_.bytes >= least and not any(done.spmd.argument_layouts[numbers[0]]):
            yield f"{label}{times(len(numbers))}: {type_}, {size(type_.bytes)}"
    for constant in program.constants:
        if constant.bytes >= least and not constant.hoisted:
            yield f"{constant.name}: {constant.type}, {size(constant.bytes)}"
    for use in done.replicated_uses:
        if use.bytes >= least:
            yield str(use)


def _too_large(done: Scheduled) -> Iterator[str]:
    estimate = done.estimate
    if not estimate.fits:
        peak, room = size(estimate.peak_memory), size(estimate.capacity)
        yield f"{peak} at the peak, of {room}"
