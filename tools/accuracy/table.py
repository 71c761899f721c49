"""The accuracy table, and what it comes to."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from scipy.stats import spearmanr

from partita.text import seconds, size
from partita.verify.backends import backend_for
from tools.accuracy.cells import CANDIDATES, SCHEDULES
from tools.accuracy.run import Result

SPARE = 0.9
"""Of the memory, what plans take that are predicted to fit with some to spare."""

FEWEST = 3
"""Plans of a model that are needed to speak of their order."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the results come to."""

    outcomes: dict[str, int]
    median_memory_error: float | None
    """Of the magnitudes of the relative errors."""
    worst_memory_error: float | None
    """The largest in magnitude, with its sign."""
    false_fits: int
    """Plans predicted to fit, those with 10 % to spare where compilers refuse nothing, that do not
    fit as they were compiled."""
    false_misfits: int
    """Plans predicted not to fit that the compiler fits."""
    collectives: dict[str, int]
    """Cells by how near their collectives are."""
    rewrites: dict[str, int]
    """Collectives that the compiler has rewritten, by the name of the rewrite."""
    orders: list[Order]
    confirmed: list[Confirmed]


@dataclasses.dataclass(frozen=True)
class Order:
    """Whether the plans of one model on one topology come in the right order."""

    model: str
    topology: str
    candidates: bool
    """Whether the plans are the candidates of a search."""
    plans: int
    correlation: float | None
    """Spearman's, of predicted and compiled step times; None if either are all the same."""
    regret: float
    """How much longer than the best the plan takes that was predicted to be best."""


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """The candidate of a search that is quickest as compiled, of one model on one topology."""

    model: str
    topology: str
    candidates: int
    """How many were compiled."""
    place: str
    seconds: float
    """Of a step, as it was compiled."""
    gain: float
    """How much less that is than of the first, as a share of it."""
    by_hand: str
    """The schedule written by hand that is quickest as compiled; empty if none was compiled."""
    less: float
    """How much less than of that one, as a share of it."""


def summarise(results: Sequence[Result]) -> Summary:
    """What results come to."""
    errors = [r.memory_error for r in results if r.memory_error is not None]
    return Summary(
        dict(Counter(r.outcome for r in results)),
        statistics.median(map(abs, errors)) if errors else None,
        max(errors, key=abs) if errors else None,
        sum(map(_falsely_fits, results)),
        sum(r.outcome == "compiled" and not r.fits and not _exceeds(r) for r in results),
        dict(Counter(r.collectives for r in results if r.collectives)),
        dict(sum((Counter(r.rewrites) for r in results), Counter())),
        orders(results),
        confirmed(results),
    )


def _falsely_fits(r: Result) -> bool:
    if r.outcome == "out of memory":
        return r.fits
    return _exceeds(r) and r.predicted_memory <= SPARE * r.capacity


def _exceeds(r: Result) -> bool:
    """Whether what was compiled needs more than it may, by a compiler that does not say so."""
    backend = backend_for(r.cell.topology)
    return not backend.refuses and (r.compiled_memory or 0) > r.capacity


def orders(results: Sequence[Result]) -> list[Order]:
    """The order of plans, for every model and topology that has enough of them; the
    candidates of a search apart."""
    groups: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    for r in results:
        if r.predicted_time is not None and r.compiled_time is not None:
            pair = r.predicted_time.step, r.compiled_time.step
            group = r.cell.model, r.cell.topology, r.cell.schedule in CANDIDATES
            groups.setdefault(group, []).append(pair)
    return [
        _order(*names, np.array(pairs)) for names, pairs in groups.items() if len(pairs) >= FEWEST
    ]


def _order(model: str, topology: str, candidates: bool, pairs: np.ndarray) -> Order:
    predicted, compiled = pairs.T
    constant = np.ptp(predicted) == 0 or np.ptp(compiled) == 0
    correlation = None if constant else float(spearmanr(predicted, compiled).statistic)
    chosen = float(compiled[predicted.argmin()])
    return Order(
        model, topology, candidates, len(pairs), correlation, chosen / float(compiled.min()) - 1
    )


def confirmed(results: Sequence[Result]) -> list[Confirmed]:
    """What a compiler takes of the candidates of a search, where there are several."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for r in results:
        if r.compiled_time is not None and not _exceeds(r):
            found = times.setdefault((r.cell.model, r.cell.topology), {})
            found[r.cell.schedule] = r.compiled_time.step
    return [
        _confirmed(*names, found)
        for names, found in times.items()
        if _FIRST in found and len(found.keys() & CANDIDATES.keys()) > 1
    ]


_FIRST = next(iter(CANDIDATES))
_BY_HAND = [name for name in SCHEDULES if name != "automatic"]


def _confirmed(model: str, topology: str, times: Mapping[str, float]) -> Confirmed:
    candidates = [name for name in CANDIDATES if name in times]
    by_hand = min((n for n in _BY_HAND if n in times), key=lambda n: times[n], default="")
    place = min(candidates, key=lambda name: times[name])
    best, count = times[place], len(candidates)
    gain = 1 - best / times[_FIRST]
    less = 1 - best / times[by_hand] if by_hand else 0.0
    return Confirmed(model, topology, count, place, best, gain, by_hand, less)


def data(results: Sequence[Result]) -> dict[str, Any]:
    """Table and summary, for JSON."""
    return {
        "cells": [dataclasses.asdict(r) for r in results],
        "summary": dataclasses.asdict(summarise(results)),
    }


def view(results: Sequence[Result]) -> RenderableType:
    """Table and summary, for people."""
    table = Table(box=None, pad_edge=False)
    left = ("topology", "model", "schedule", "collectives")
    for column in (*left[:3], "memory\npredicted", "compiled", "error", left[3]):
        table.add_column(column, justify="left" if column in left else "right")
    for column in ("step time\npredicted", "compiled", "ratio", "seconds to\ncompile"):
        table.add_column(column, justify="right")
    before: tuple[str, ...] = ("", "")
    for r in results:
        names = (r.cell.topology, r.cell.model)
        table.add_row(*(n if names != before else "" for n in names), r.cell.schedule, *_cells(r))
        before = names
    return Group(table, Text(), *map(Text, _summary(results)))


def markdown(results: Sequence[Result], versions: Mapping[str, str], today: str) -> str:
    """Table and summary as Markdown, as they stand in the documentation.

    Args:
      results: the cells.
      versions: of what they were made with, by name.
      today: the date.
    """
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    columns = ["topology", "model", "schedule", "memory, predicted", "compiled", "error"]
    columns += ["collectives", "step, predicted", "compiled", "ratio", "seconds to compile"]
    rows = [columns, ["---"] * len(columns)]
    for r in results:
        cells = _cells(r)
        blank = [""] * (len(columns) - 3 - len(cells))
        rows.append([r.cell.topology, r.cell.model, r.cell.schedule, *cells, *blank])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    points = "\n".join(f"- {line.strip()}" for line in _summary(results))
    return f"Made on {today} with {made}.\n\n{points}\n\n{table}"


def _cells(r: Result) -> list[str]:
    if r.outcome in ("timeout", "failed"):
        return ["", "", "", f"{r.outcome}: {r.reason}"]
    predicted = size(r.predicted_memory) + ("" if r.fits else " !")
    if r.compiled_memory is None or r.memory_error is None:
        return [predicted, r.outcome]
    found = [predicted, size(r.compiled_memory), f"{r.memory_error:+.0%}", r.collectives]
    if r.predicted_time is None or r.compiled_time is None:
        return [*found, "", "", "", f"{r.compile_seconds:.0f}"]
    ratio = r.predicted_time.step / r.compiled_time.step
    times = [seconds(r.predicted_time.step), seconds(r.compiled_time.step), f"{ratio:.2f}"]
    return [*found, *times, f"{r.compile_seconds:.0f}"]


def _summary(results: Sequence[Result]) -> list[str]:
    """What they come to, line by line."""
    summary = summarise(results)
    rules: dict[str, str] = {}
    for topology in dict.fromkeys(r.cell.topology for r in results):
        rules.update(backend_for(topology).rewrites)

    def counts(of: dict[str, int]) -> str:
        return ", ".join(f"{count} {name}" for name, count in of.items()) or "none"

    lines = [f"Cells: {counts(summary.outcomes)}"]
    if summary.median_memory_error is not None and summary.worst_memory_error is not None:
        lines.append(
            f"Peak memory: median error {summary.median_memory_error:.1%}, worst "
            f"{summary.worst_memory_error:+.1%}"
        )
    lines += [
        f"False 'fits': {summary.false_fits}; false 'does not fit': {summary.false_misfits}",
        f"Collectives: {counts(summary.collectives)}",
    ]
    lines += [
        f"  {times} x {name}: {rules[name]}" for name, times in sorted(summary.rewrites.items())
    ]
    for order in summary.orders:
        known = "all alike" if order.correlation is None else f"{order.correlation:.2f}"
        plans = f"{order.plans} {'candidates' if order.candidates else 'plans'}"
        lines.append(
            f"Order of {plans} of {order.model} on {order.topology}: Spearman {known}, regret of "
            f"the first {order.regret:.1%}"
        )
    return lines + [_told(each) for each in summary.confirmed]


def _told(each: Confirmed) -> str:
    hand = f", {-each.less:+.1%} beside {each.by_hand}" if each.by_hand else ""
    return (
        f"Confirmed of {each.candidates} candidates of {each.model} on {each.topology}: "
        f"{each.place}, {seconds(each.seconds)}, {-each.gain:+.1%} beside the first{hand}"
    )
