"""Conversion of a plan to data: the output of `--json`, and the further details of the page."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.cost import Estimate
from partita.cost.memory.footprint import Footprint
from partita.cost.timeline.intervals import Timeline
from partita.explain import explain
from partita.explain.collectives import CollectiveExplanation
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled, TacticReport, argument_groups
from partita.report import data, notes
from partita.report.decision import decision, purposes_of
from partita.report.meshes import rows
from partita.search.record import SearchRecord
from partita.tactics import Refusal
from partita.text import plain
from partita.tiling import local_type, spec
from partita.version import __version__

INTERVALS, ITERATIONS = 8000, 16
"""About how many intervals a page has, and how many iterations of a loop one by one."""

POSITIONS = 1200
"""Largest number of positions at which a page shows the contents of memory."""

ALIVE = 60
"""Number of kinds of values live at the peak that a page lists individually."""

_KINDS = ("compute", "wait", "exposed", "hidden")


def collect(
    plan: Scheduled,
    meshes: Sequence[MeshCandidate] = (),
    details: bool = False,
    verified: Sequence[dict[str, Any]] = (),
) -> data.PlanData:
    """The data of a plan.

    Args:
      plan: to look at.
      meshes: those that were planned to choose that of the plan.
      details: whether to find out why each collective is there, what memory holds, and so on.
      verified: what compilers have confirmed.
    """
    arguments = _arguments(plan)
    return data.PlanData(
        schema=data.SCHEMA,
        partita=__version__,
        program=plan.program.name,
        mesh=dict(plan.mesh),
        hardware=plan.hardware.name,
        decision=decision(plan, arguments),
        estimate=estimate_data(plan.estimate),
        most_memory=plan.most_memory,
        meshes=rows(meshes),
        idle_axes=[dataclasses.asdict(idle) for idle in plan.idle_axes],
        history=[_tactic(plan, entry) for entry in plan.history],
        colors=[dataclasses.asdict(color) for color in plan.colors.colors],
        conflicts=[dataclasses.asdict(conflict) for conflict in plan.colors.conflicts],
        collectives=_collectives(plan),
        arguments=arguments,
        verified=list(verified),
        details=_details(plan) if details else None,
    )


def summary(plan: Scheduled, meshes: Sequence[MeshCandidate] = ()) -> dict[str, Any]:
    """Returns the report as data for JSON. Times in seconds, sizes in bytes."""
    found = dataclasses.asdict(collect(plan, meshes))
    del found["details"]
    return found


def estimate_data(estimate: Estimate) -> data.EstimateData:
    """An estimate."""
    names = [field.name for field in dataclasses.fields(data.EstimateData)]
    found = {name: getattr(estimate, name) for name in names}
    found["link_times"] = list(estimate.link_times)
    found["offloaded"] = dataclasses.asdict(estimate.offloaded)
    return data.EstimateData(**found)


def _collectives(plan: Scheduled) -> list[data.TrafficData]:
    found = []
    for (kind, axes), traffic in sorted(plan.estimate.traffic.items()):
        together = plan.combined.get((kind, axes))
        combined = None if together is None else dataclasses.asdict(together)
        figures = dataclasses.asdict(traffic)
        found.append(data.TrafficData(kind, list(axes), **figures, combined=combined))
    return found


def _arguments(plan: Scheduled) -> list[data.ArgumentData]:
    program, layouts = plan.program, plan.spmd.argument_layouts
    purposes, found = purposes_of(plan), []
    for label, numbers in argument_groups(program, layouts).items():
        type_, layout = program.values[program.arguments[numbers[0]]].type, layouts[numbers[0]]
        shard = local_type(type_, layout, plan.mesh)
        found.append(
            data.ArgumentData(
                label,
                len(numbers),
                str(type_),
                data.listed(spec(layout, plan.mesh)),
                list(type_.shape),
                list(shard.shape),
                shard.bytes,
                purposes[numbers[0]],
            )
        )
    return found


def _tactic(plan: Scheduled, entry: TacticReport) -> data.TacticData:
    suggestions = (str(each) for refusal in entry.refused for each in refusal.suggestions)
    return data.TacticData(
        name=entry.name,
        decisions=list(entry.decisions),
        tiled={label: data.listed(found) for label, found in entry.tiled.items()},
        actions=[str(action) for action in entry.actions],
        refused=[str(refusal) for refusal in entry.refused],
        alternatives=list(dict.fromkeys(suggestions)),
        blocked=[str(blocked) for blocked in entry.blocked],
        conflicts=list(entry.conflicts),
        resolved=list(entry.resolved),
        warnings=list(entry.warnings),
        replicated=[str(use) for use in entry.replicated_uses],
        collectives=dict(entry.collectives),
        before=estimate_data(entry.before),
        estimate=estimate_data(entry.estimate),
        refusals=[_refusal(refusal) for refusal in entry.refused],
        search=None if entry.search is None else _search(plan, entry.search),
    )


def _refusal(refusal: Refusal) -> data.RefusalData:
    found = []
    for each in refusal.suggestions:
        e = each.estimate
        figures = (None, None, None) if e is None else (e.step_time, e.peak_memory, e.fits)
        found.append(data.SuggestionData(each.text, *figures))
    return data.RefusalData(refusal.what, refusal.reason, refusal.instead, found)


def _search(plan: Scheduled, record: SearchRecord) -> data.SearchData:
    groups = argument_groups(plan.program, plan.spmd.argument_layouts)
    shown = {
        label: numbers[0]
        for label, numbers in groups.items()
        if any(any(proposal.layouts[numbers[0]]) for proposal in record.proposals)
    }
    proposals = [
        data.ProposalData(
            list(each.decisions),
            each.time.step_time,
            each.time.compute_time,
            each.time.exposed_time,
            each.time.hidden_time,
            round(each.peak_memory),
            each.fits,
            dict(sorted(each.collectives.items())),
            {
                label: data.listed(spec(each.layouts[number], plan.mesh))
                for label, number in shown.items()
            },
        )
        for each in record.proposals
    ]
    curve = [[float(f.evaluations), f.step_time, f.peak_memory] for f in record.curve]
    return data.SearchData(record.evaluations, curve, proposals)


def _details(plan: Scheduled) -> data.DetailsData:
    found = explain(plan, "collectives", 0)
    timeline = plan.timeline_of(ITERATIONS, INTERVALS)
    busy = _busy(timeline)
    moves = [_move(each, busy) for each in found if isinstance(each, CollectiveExplanation)]
    told = [plain(each) for each in (*notes.constants(plan), *notes.notes(plan))]
    return data.DetailsData(
        sorted(moves, key=lambda each: -(each.exposed_seconds + each.hidden_seconds)),
        timeline_data(timeline),
        memory_data(plan.footprint),
        told,
    )


def _busy(timeline: Timeline) -> Mapping[tuple[int, str], float]:
    """Seconds of each collective on all links, by its number and whether it is exposed."""
    found: dict[tuple[int, str], float] = {}
    for each in timeline.intervals:
        if each.collective is not None and each.kind in ("exposed", "hidden"):
            key = each.collective, each.kind
            found[key] = found.get(key, 0.0) + each.busy
    return found


def _move(found: CollectiveExplanation, busy: Mapping[tuple[int, str], float]) -> data.MoveData:
    return data.MoveData(
        found.index,
        found.kind,
        list(found.axes),
        found.bytes,
        found.count * len(found.alike),
        found.seconds,
        sum(busy.get((number, "exposed"), 0.0) for number in found.alike),
        sum(busy.get((number, "hidden"), 0.0) for number in found.alike),
        found.value,
        found.type,
        found.made_by,
        list(found.uses),
        list(found.reasons),
        [str(each) for each in found.decisions],
    )


def timeline_data(timeline: Timeline) -> data.TimelineData:
    """A timeline as tables."""
    names, sources = dict[str, int](), dict[str, int]()
    rows = [
        [
            each.lane,
            _KINDS.index(each.kind),
            _short(each.start * 1e6, 3),
            _short((each.end - each.start) * 1e6, 3),
            names.setdefault(each.name, len(names)),
            sources.setdefault(each.source, len(sources)),
            -1 if each.collective is None else each.collective,
            each.times,
        ]
        for each in timeline.intervals
    ]
    iterations = timeline.iterations
    return data.TimelineData(
        list(timeline.lanes), list(_KINDS), list(names), list(sources), rows, iterations
    )


def memory_data(footprint: Footprint) -> data.MemoryData:
    """Memory over the step, at no more positions than can be drawn, the peak among them."""
    total = np.sum([bytes_ for bytes_ in footprint.timeline.values()], axis=0)
    length = len(total)
    edges = np.unique(np.linspace(0, length, min(length, POSITIONS) + 1).astype(int))
    chosen = [
        int(first + np.argmax(total[first:last])) for first, last in itertools.pairwise(edges)
    ]
    alive = [data.AliveData(**dataclasses.asdict(each)) for each in footprint.alive]
    if rest := alive[ALIVE:]:
        total_rest, count = sum(each.bytes for each in rest), sum(each.count for each in rest)
        alive = [*alive[:ALIVE], data.AliveData("smaller values", "", "other", total_rest, count)]
    last = max(length - 1, 1)
    return data.MemoryData(
        footprint.peak,
        _short(footprint.at / last, 5),
        footprint.where,
        footprint.capacity,
        dict(footprint.breakdown),
        alive,
        [_short(position / last, 5) for position in chosen],
        {
            kind: [round(float(bytes_[position])) for position in chosen]
            for kind, bytes_ in footprint.timeline.items()
            if bytes_.any()
        },
    )


def _short(value: float, digits: int) -> float:
    """Rounded, since each digit is there thousands of times."""
    found = round(float(value), digits)
    return int(found) if found == int(found) else found
