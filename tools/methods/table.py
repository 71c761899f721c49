"""What runs of methods say: regret against the best known in a table, and pictures over time."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.text import seconds
from tools.methods.cases import Case
from tools.methods.runs import Run, best_known

SAME, CLOSE = 1e-3, 1e-2
"""Regret that the cost model cannot tell from none, and the most that a search should have."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """Several runs of a method, of one case or of many."""

    runs: tuple[Run, ...]
    regrets: tuple[float, ...]

    @property
    def text(self) -> str:
        """Median and largest regret."""
        if not self.regrets:
            return "–"
        middle, most = statistics.median(self.regrets), max(self.regrets)
        shown = _percent(middle)
        return (
            shown
            if len(self.regrets) == 1 or most - middle < SAME
            else (f"{shown}, at most {_percent(most)}")
        )

    @property
    def seconds(self) -> float:
        """Median time."""
        return statistics.median(run.seconds for run in self.runs)


def summary(runs: Iterable[Run], best: dict[Case, float]) -> Summary:
    """Of runs that were not refused."""
    done = tuple(run for run in runs if not run.refused)
    return Summary(done, tuple(run.step_time / best[run.case] - 1 for run in done))


def markdown(runs: Sequence[Run], budget: int, bounds: Mapping[Case, float]) -> str:
    """Regret of every method on every case, and over all cases, of runs with one budget.

    The best known is that of all runs, also of those with other budgets. Where there is a lower
    bound, it says how far above the best known is at most.
    """
    best = best_known(runs)
    shown = [run for run in runs if run.budget == budget]
    methods = list(dict.fromkeys(run.method for run in shown))
    cases = list(dict.fromkeys(run.case for run in shown))
    rows = [["case", "best known", "above the bound", *methods]]
    for case in cases:
        cells = [
            summary((r for r in shown if r.case == case and r.method == method), best).text
            for method in methods
        ]
        gap = _percent(best[case] / bounds[case] - 1) if bounds.get(case) else "–"
        rows.append([case.name, seconds(best[case]), gap, *cells])
    totals = {m: summary((r for r in shown if r.method == m), best) for m in methods}
    rows.append(["all", "", "", *(each.text for each in totals.values())])
    for share in (SAME, CLOSE):
        hits = (_hits(each, share) for each in totals.values())
        rows.append([f"within {_percent(share)} of the best known", "", "", *hits])
    rows.append(
        ["seconds, median", "", "", *(f"{t.seconds:.1f}" for t in totals.values() if t.runs)]
    )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _hits(of: Summary, share: float) -> str:
    return f"{sum(r < share for r in of.regrets)} of {len(of.regrets)}" if of.regrets else "–"


def _percent(regret: float) -> str:
    return "does not fit" if regret == float("inf") else f"{100 * max(regret, 0.0):.1f} %"


def draw(runs: Sequence[Run], budget: int, path: Path) -> None:
    """Draws median regret over the states evaluated, one panel a case, one line a method.

    Needs the extra `partita[plots]`.
    """
    from matplotlib.figure import Figure

    best = best_known(runs)
    shown = [run for run in runs if run.budget == budget and not run.refused]
    cases = list(dict.fromkeys(run.case for run in shown))
    methods = list(dict.fromkeys(run.method for run in shown))
    columns = min(3, len(cases))
    height = -(-len(cases) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.8 * height), layout="constrained")
    panels = figure.subplots(height, columns, squeeze=False)
    for panel in panels.flat[len(cases) :]:
        panel.set_visible(False)
    for panel, case in zip(panels.flat, cases, strict=False):
        for number, method in enumerate(methods):
            mine = [r for r in shown if r.case == case and r.method == method]
            if mine:
                _line(panel, mine, best[case], budget, method, f"C{number}")
        panel.set_title(case.name, fontsize="small")
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=0.1)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in panels[:, 0]:
        panel.set_ylabel("above the best known, %", fontsize="small")
    for panel in panels[-1, :]:
        panel.set_xlabel("plans estimated", fontsize="small")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(methods), fontsize="small")
    figure.savefig(path)


def _line(
    panel: Any, runs: Sequence[Run], best: float, budget: int, label: str, color: str
) -> None:
    """The median over seeds, at every number of states where one of them changes."""
    at = sorted({max(point.states, 1) for run in runs for point in run.curve} | {budget})
    regrets = [
        statistics.median(
            min((p.step_time for p in run.curve if p.states <= states), default=float("inf"))
            for run in runs
        )
        / best
        - 1
        for states in at
    ]
    panel.step(at, [100 * r for r in regrets], where="post", label=label, color=color, lw=1.2)
