"""Views of a plan: text, explanations, a page, a trace, a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cost.timeline.intervals import ITERATIONS, Timeline
from partita.errors import TacticError
from partita.escape import printed
from partita.options import integer, wrong
from partita.planning.meshes import MeshCandidate
from partita.planning.one_thread import alone
from partita.planning.schedule import Scheduled
from partita.spmd import Collective

if TYPE_CHECKING:
    from partita.explain import Explanation
    from partita.planning.diff import PlanDiff
    from partita.verify import Verification
    from partita.verify.compiled_shardings import AsCompiled

# How each is made is loaded when it is used, as for all that only some plans need.


class Shown:
    """The ways to look at a plan, which `Plan` inherits."""

    done: Scheduled
    meshes: tuple[MeshCandidate, ...]
    compiled: AsCompiled | None

    @property
    @alone
    def timeline(self) -> Timeline:
        """One step in time: predicted start and end of every operation and collective."""
        return self.done.timeline

    @alone
    def explain(self, what: str | int | Collective, alternatives: int = 6) -> Explanation:
        """Explains the shardings of values, or a collective's purpose and its alternatives' cost.

        Args:
          what: the name of an argument, result or tagged value, or a pattern with `*` and `?`;
            `%12`, a value as `print(plan.program)` shows it; `file.py:12`, a source line;
            an element of `collectives` or its number; or `"collectives"` for all of them.
          alternatives: how many changes may be tried and estimated, for all collectives together;
            each takes about as long as `then`.

        Raises:
          UnknownNameError: there is no such value or collective.
        """
        from partita.explain import explain

        integer(alternatives, "alternatives", 0)
        return explain(self.done, what, alternatives)

    def diff(self, other: Shown) -> PlanDiff:
        """Compares this plan with another one of the same program; meshes and hardware may differ.

        Raises `TacticError` if the programs have other arguments or results.
        """
        from partita.planning.diff import diff

        if not isinstance(other, Shown):
            raise wrong("other", other, "another plan", TacticError)
        return diff(self.done, other.done)

    @alone
    def trace(self, path: str | Path, iterations: int = ITERATIONS) -> None:
        """Writes `timeline` as a trace, which https://ui.perfetto.dev and chrome://tracing open.

        Args:
          path: of the file, which is compressed if its name ends in `.gz`.
          iterations: how many iterations of each loop are drawn one by one, as far as there is
            room; all others of a loop are drawn as one.

        Raises:
          FileError: the file cannot be written.
        """
        from partita.report.trace import write_trace

        integer(iterations, "iterations", 1)
        write_trace(self.done, self.done.timeline_of(iterations), path)

    @alone
    def report(
        self, path: str | Path, verified: Verification | Sequence[Verification] = ()
    ) -> None:
        """Writes a report: a self-contained page for any browser, or all its data, or text.

        Args:
          path: of the file; `.html` is the page, `.json` its data, and `.txt` what `print` shows.
          verified: results of `verify`, to compare with the prediction.

        Raises:
          FileError: the file cannot be written, or its name ends in something else.
        """
        from partita.report.write import write_report

        several = [verified] if hasattr(verified, "as_dict") else list(verified)
        if self.compiled is not None:
            several = [self.compiled.verification, *several]
        write_report(self.done, self.meshes, path, [each.as_dict() for each in several])

    @alone
    def _repr_html_(self) -> str:
        from partita.report.notebook import cell

        return cell(self.done, self.meshes)

    @printed
    @alone
    def __str__(self) -> str:
        from partita.report.plan import view
        from partita.text import plain

        return plain(view(self.done, meshes=self.meshes, compiled=self.compiled))
