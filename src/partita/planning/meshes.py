"""Chooses a mesh: plans a program over several meshes of as many devices, and takes the best plan.

The program is traced and analysed once. Every mesh gets a quick look first, with a small part of
the budget of each search; the best few are then searched with all of it. Looks tell which mesh it
is: of a GPT of 24 layers over 256 devices, plans gain up to 3 % by ten times the budget, while the
ten meshes are up to 17 times apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from partita.cost import Estimate, Hardware, interconnect
from partita.decisions import Context, Progress, Stage
from partita.errors import AxisError, MeshError, UnsupportedError
from partita.garbage import paused
from partita.mesh import Mesh
from partita.planning.prepare import Prepared
from partita.planning.schedule import Scheduled, lower_and_cost, unscheduled
from partita.planning.shapes import AXES, Used, candidates, check_devices
from partita.search import EnoughError
from partita.tactics import Outcome, Tactic
from partita.tactics.given import with_facts
from partita.tactics.options import changing_first
from partita.tactics.protocol import searches
from partita.tiling import replicated

FINALISTS, CLOSE = 3, 1.1
"""The best meshes are searched with the whole budget: so many, if they are so close to the best."""

LOOK, LEAST_LOOK = 30, 100
"""A quick look has a thirtieth of the budget for every axis, but at least so many plans: there are
as many more changes to try."""

EQUAL = 1e-3
"""Two predictions that differ by less are equal: then fewer axes are better."""


@dataclasses.dataclass(frozen=True)
class MeshCandidate:
    """A mesh that was planned to find the best, and what came of it."""

    mesh: Mesh
    networks: Mapping[str, str]
    """Networks of each axis, the inner part first: `"nvlink"`, or `"nvlink 4 x infiniband 2"`."""
    estimate: Estimate
    """Estimate of the best plan over this mesh."""
    budget: int | None
    """Plans that each search could evaluate; None where tactics have no budget."""
    chosen: bool = False
    """True if it is the mesh of the plan."""


_Rank = tuple[bool, float, float]


def _rank(estimate: Estimate) -> _Rank:
    """Order of plans: those that fit by time, the others behind them by peak memory."""
    time, peak = estimate.step_time, float(estimate.peak_memory)
    return (False, time, peak) if estimate.fits else (True, peak, time)


@dataclasses.dataclass(frozen=True)
class _Tried:
    """A mesh with the tactics that were applied over it, and what they have decided."""

    mesh: Mesh
    tactics: tuple[Tactic, ...]
    applied: tuple[Tactic, ...]
    """The same, with what the program says of its shardings."""
    outcomes: tuple[Outcome, ...]
    estimate: Estimate

    @property
    def rank(self) -> _Rank:
        """Order of plans."""
        return _rank(self.estimate)

    def schedule(self, context: Context) -> Scheduled:
        """The same with all that a plan tells of it, which takes time; nothing is searched."""
        done = unscheduled(context.over(self.mesh))
        for tactic, outcome in zip(self.applied, self.outcomes, strict=True):
            done = done.decided(tactic, outcome)
        return done


class _Progress:
    """The progress of all searches as that of one, which can be ended as a search can."""

    def __init__(self, send: Progress) -> None:
        self.ended = False
        """True if the callback has asked to stop."""
        self.total = 0
        """Plans that all searches may evaluate; nothing once they are over."""
        self._send, self._before, self._plans, self._mesh = send, 0, 0, ""

    def over(self, mesh: Mesh, plans: int) -> None:
        """Begins the next mesh, which may evaluate so many plans."""
        self._before += self._plans
        self._mesh, self._plans = str(mesh), plans

    def __call__(self, done: int, total: int, text: str) -> None:
        if not self.total:
            self._send(done, total, text)
        elif not self.ended:
            try:
                done = min(self._before + done, self.total)
                self._send(done, self.total, f"{self._mesh}: {text}")
            except EnoughError:
                self.ended = True
                raise


def any_mesh(devices: object, hardware: Hardware) -> Mesh:
    """A mesh of so many devices, for what depends on their number alone; checks the number."""
    return Mesh(AXES[:1], (check_devices(devices, hardware),))


def plan_meshes(
    prepared: Prepared, tactics: Sequence[Tactic], progress: Progress
) -> tuple[Scheduled, tuple[MeshCandidate, ...]]:
    """The best plan over any mesh of as many devices, and the best over each, best first.

    Args:
      prepared: the program, over any mesh of so many devices.
      tactics: the schedule, for each mesh.
      progress: called while searches run.

    Raises:
      AxisError: tactics name axes that such meshes do not have.
      MeshError, AxisError, UnsupportedError: what the program says of its shardings fits no mesh.
    """
    program, hardware, told = prepared.program, prepared.hardware, _Progress(progress)
    used, context = Used.by(tactics), prepared.context(told)
    sizes = [color.size for color in context.colors.colors]
    names = bool(program.given or any(op.given for op in program.operations))
    meshes = candidates(prepared.mesh.devices, hardware, sizes, used, names)
    trials = _Trials(context, meshes, tuple(tactics), told)
    found = trials.run()
    best = _best(found)
    done = best.schedule(context)
    told.total = 0
    first = [best, *(tried for tried in found if tried is not best)]
    return done, tuple(_candidate(tried, tried is best, hardware) for tried in first)


def _best(found: Sequence[_Tried]) -> _Tried:
    """The best of all, or one that is as good and has fewer axes. They are in order."""
    return min(_within(found, 1 + EQUAL), key=lambda each: sum(s > 1 for s in each.mesh.sizes))


def _within(found: Sequence[_Tried], factor: float) -> list[_Tried]:
    """Returns those that take at most so much more time, or memory if none fits, than the first."""
    fits, first, _ = found[0].rank
    return [each for each in found if each.rank < (fits, first * factor, math.inf)]


def _candidate(tried: _Tried, chosen: bool, hardware: Hardware) -> MeshCandidate:
    budgets = [each for each in map(_budget, tried.tactics) if each is not None]
    networks = networks_of(tried.mesh, hardware)
    return MeshCandidate(tried.mesh, networks, tried.estimate, max(budgets, default=None), chosen)


def networks_of(mesh: Mesh, hardware: Hardware) -> dict[str, str]:
    """Returns the networks of each axis of a mesh, the inner part first.

    Of an axis that shares a side of a torus it says how far apart its devices are there.
    """
    lies = {}
    for name, parts in zip(mesh.names, interconnect(mesh, hardware).parts, strict=True):
        several = len(parts) > 1
        shown = (
            part.network.name
            + (f" {part.size}" if several else "")
            + (f" ({part.stride} apart)" if part.stride > 1 else "")
            for part in parts
        )
        lies[name] = " x ".join(shown)
    return lies


class _Trials:
    """The meshes, and how each is planned."""

    def __init__(
        self,
        context: Context,
        meshes: list[Mesh],
        tactics: tuple[Tactic, ...],
        progress: _Progress,
    ) -> None:
        self.context, self.tactics, self.progress = context, tactics, progress
        looks = len(meshes) > 1
        self.looks = [(mesh, _quick(tactics, mesh) if looks else tactics) for mesh in meshes]
        more = sum(quick != tactics for _, quick in self.looks)
        plans = sum(_plans(quick) for _, quick in self.looks)
        progress.total = max(1, plans + min(FINALISTS, more) * _plans(tactics))
        self.start = replicated(context.analysis.program)

    def run(self) -> list[_Tried]:
        """The best over each mesh, best first."""
        found = sorted(self._looked(), key=lambda tried: tried.rank)
        for number, looked in enumerate(_within(found, CLOSE)[:FINALISTS]):
            if self.progress.ended:
                break
            if looked.tactics != self.tactics:
                whole = self.plan(looked.mesh, self.tactics)
                found[number] = min(whole, looked, key=lambda each: each.rank)
        return sorted(found, key=lambda tried: tried.rank)

    def _looked(self) -> list[_Tried]:
        """Plans each mesh quickly; leaves out those that do not fit the program."""
        found: list[_Tried] = []
        problems: list[Exception] = []
        for mesh, quick in self.looks:
            try:
                found.append(self.plan(mesh, quick))
            except (MeshError, AxisError, UnsupportedError) as problem:
                problems.append(problem)
            if self.progress.ended:
                break
        if not found:
            raise _unfit(problems[0]) from problems[0]
        return found

    def plan(self, mesh: Mesh, tactics: tuple[Tactic, ...]) -> _Tried:
        """Applies tactics over a mesh."""
        self.progress.over(mesh, _plans(tactics))
        outcomes = list[Outcome]()
        stage = Stage(self.context.over(mesh), self.start)
        changing, others = changing_first(tactics)
        with paused():
            for tactic in changing:
                outcomes.append(tactic.apply(stage))
                stage = stage.after(outcomes[-1])
            facts = with_facts(stage.context.analysis.program, mesh, others)
            for tactic in facts:
                outcomes.append(tactic.apply(stage))
                stage = stage.after(outcomes[-1])
            _, estimate = lower_and_cost(stage)
        return _Tried(mesh, tactics, (*changing, *facts), tuple(outcomes), estimate)


def _budget(tactic: Any) -> int | None:
    """Plans that a tactic may evaluate, if it searches and says how many."""
    budget = getattr(tactic, "budget", None)
    return budget if searches(tactic) and isinstance(budget, int) else None


def _plans(tactics: Sequence[Tactic]) -> int:
    """Plans that tactics may evaluate together."""
    return sum(_budget(each) or 0 for each in tactics)


def _quick(tactics: Sequence[Tactic], mesh: Mesh) -> tuple[Tactic, ...]:
    """The same tactics with a small part of their budgets, and without workers."""
    axes = sum(size > 1 for size in mesh.sizes) or 1

    def quick(tactic: Any) -> Tactic:
        budget = _budget(tactic)
        if budget is None or not dataclasses.is_dataclass(tactic):
            return tactic  # type: ignore[no-any-return]
        small = min(budget, axes * max(budget // LOOK, LEAST_LOOK))
        alone = {"workers": 1} if hasattr(tactic, "workers") else {}  # starting them takes longer
        return dataclasses.replace(tactic, budget=small, **alone)  # type: ignore

    return tuple(map(quick, tactics))


def _unfit(problem: Exception) -> Exception:
    """The same error, with what the axes are called."""
    axes = ", ".join(AXES)
    hint = f"devices= tries meshes with the axes {axes}; give mesh= for others"
    return type(problem)(f"{problem}; {hint}")
