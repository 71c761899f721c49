"""A plan as plain data, for `--json`: names, numbers and lists only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.cost import Estimate
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled, TacticReport, argument_groups
from partita.report.meshes import rows
from partita.tiling import spec


def summary(plan: Scheduled, meshes: Sequence[MeshCandidate] = ()) -> dict[str, Any]:
    """What a report shows, as data that JSON can hold. Times in seconds, sizes in bytes."""
    program, layouts = plan.program, plan.spmd.argument_layouts
    return {
        "program": program.name,
        "mesh": dict(plan.mesh),
        "hardware": plan.hardware.name,
        "estimate": _estimate(plan.estimate),
        "most_memory": plan.most_memory,
        "meshes": rows(meshes),
        "idle_axes": [dataclasses.asdict(idle) for idle in plan.idle_axes],
        "history": [_tactic(entry) for entry in plan.history],
        "colors": [dataclasses.asdict(color) for color in plan.colors.colors],
        "conflicts": [dataclasses.asdict(conflict) for conflict in plan.colors.conflicts],
        "collectives": [
            {
                "kind": kind,
                "axes": list(axes),
                **dataclasses.asdict(traffic),
                **_combined(plan, (kind, axes)),
            }
            for (kind, axes), traffic in sorted(plan.estimate.traffic.items())
        ],
        "arguments": [
            {
                "name": label,
                "count": len(numbers),
                "type": str(program.values[program.arguments[numbers[0]]].type),
                "sharding": list(spec(layouts[numbers[0]], plan.mesh)),
            }
            for label, numbers in argument_groups(program, layouts).items()
        ],
    }


def _combined(plan: Scheduled, key: tuple[str, tuple[str, ...]]) -> dict[str, Any]:
    together = plan.combined.get(key)
    return {} if together is None else {"combined": dataclasses.asdict(together)}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "step_time": estimate.step_time,
        "serial_time": estimate.serial_time,
        "compute_time": estimate.compute_time,
        "exposed_time": estimate.exposed_time,
        "hidden_time": estimate.hidden_time,
        "peak_memory": estimate.peak_memory,
        "argument_memory": estimate.argument_memory,
        "constant_memory": estimate.constant_memory,
        "host_memory": estimate.host_memory,
        "offloaded": dataclasses.asdict(estimate.offloaded),
        "capacity": estimate.capacity,
        "fits": estimate.fits,
    }


def _tactic(entry: TacticReport) -> dict[str, Any]:
    return {
        "name": entry.name,
        "decisions": list(entry.decisions),
        "tiled": {label: list(entries) for label, entries in entry.tiled.items()},
        "actions": [str(action) for action in entry.actions],
        "refused": [str(refusal) for refusal in entry.refused],
        "alternatives": list(
            dict.fromkeys(str(each) for refusal in entry.refused for each in refusal.suggestions)
        ),
        "blocked": [str(blocked) for blocked in entry.blocked],
        "conflicts": list(entry.conflicts),
        "resolved": list(entry.resolved),
        "warnings": list(entry.warnings),
        "replicated": [str(use) for use in entry.replicated_uses],
        "collectives": dict(entry.collectives),
        "before": _estimate(entry.before),
        "estimate": _estimate(entry.estimate),
    }
