"""The decision of a plan in the field's words: what each axis does, and what binds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from partita.analysis.purpose import purposes
from partita.planning.schedule import Scheduled
from partita.report.data import ArgumentData, DecisionData, named
from partita.text import seconds, size

_MOST = 0.5
"""Share of the elements of a kind from which an axis counts as sharding it."""


def purposes_of(plan: Scheduled) -> list[str]:
    """Returns the purpose of every argument of the program."""
    analysis = plan.stage.context.analysis
    found = purposes(plan.program, analysis.uses)
    return [found[value] for value in plan.program.arguments]


def decision(plan: Scheduled, arguments: list[ArgumentData]) -> DecisionData:
    """The decision in words."""
    idle = {each.name for each in plan.idle_axes}
    roles: dict[str, list[str]] = {}
    for axis, devices in plan.mesh:
        roles.setdefault(_role(axis, arguments, axis in idle), []).append(f"{axis}={devices}")
    strategy = [f"{', '.join(axes)}: {role}" for role, axes in roles.items()]
    e, binds = plan.estimate, _binds(plan)
    fits = "It fits" if e.fits else "It does NOT fit"
    idle_text = f" Idle: {', '.join(sorted(idle))}." if idle else ""
    text = (
        f"{plan.program.name} on {plan.mesh.devices} {plan.hardware.name}, as "
        f"{'; '.join(strategy)}. A step is predicted to take {seconds(e.step_time)}: "
        f"{seconds(e.compute_time)} of compute, {seconds(e.exposed_time)} waiting for collectives, "
        f"and {seconds(e.hidden_time)} of collectives under compute. {fits}: "
        f"{size(e.peak_memory)} of {size(e.capacity)} per device.{idle_text} {binds}"
    )
    return DecisionData(text, strategy, binds)


def _role(axis: str, arguments: list[ArgumentData], idle: bool) -> str:
    """Describes the role of an axis, from the arguments that it shards."""
    said = list(_roles(axis, arguments))
    if not said:
        said = ["idle, all its devices do the same"] if idle else ["activations only"]
    return " with ".join(said)


def _roles(axis: str, arguments: list[ArgumentData]) -> Iterator[str]:
    dims = {d for a in arguments if a.purpose == "inputs" for d in _dims(a, axis)}
    share = {kind: _share(axis, arguments, kind) for kind in ("parameters", "optimizer state")}
    if 0 in dims:
        yield "data parallelism"
        if share["parameters"] >= _MOST:
            yield "fully sharded parameters and optimizer state (FSDP, ZeRO-3)"
        elif share["optimizer state"] >= _MOST:
            yield "sharded optimizer state (ZeRO)"
        elif share["parameters"]:
            yield "some parameters sharded too"
    elif share["parameters"] or share["optimizer state"]:
        yield "tensor parallelism"
    if dims - {0}:
        yield "inputs split along the sequence"


def _dims(argument: ArgumentData, axis: str) -> list[int]:
    """The dimensions of an argument that an axis splits."""
    return [dim for dim, entry in enumerate(argument.sharding) if axis in named(entry)]


def _share(axis: str, arguments: list[ArgumentData], purpose: str) -> float:
    """Returns the share of elements that an axis shards, among all arguments of a kind."""
    total = split = 0.0
    for each in arguments:
        if each.purpose == purpose:
            elements = each.count * float(math.prod(each.shape))
            total += elements
            split += elements if _dims(each, axis) else 0.0
    return split / total if total else 0.0


def _binds(plan: Scheduled) -> str:
    """Describes what limits the step."""
    e = plan.estimate
    if not e.fits:
        return "Memory binds: the plan needs more than there is."
    busiest = max(e.link_times)
    if busiest > e.compute_time:
        return "A link binds: it moves data for longer than there is compute to hide that."
    if e.exposed_time > e.compute_time:
        return "Exposed collectives bind: compute waits for longer than it works."
    share = e.compute_time / e.step_time if e.step_time else 1.0
    return f"Compute binds: it is {share:.0%} of the step."
