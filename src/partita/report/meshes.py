"""The meshes that were planned to choose that of a plan, as a table and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from partita.planning.meshes import MeshCandidate
from partita.text import new_table, seconds, size


def table(meshes: Sequence[MeshCandidate]) -> RenderableType:
    """One line for each, best first."""
    columns = ["mesh", "networks", "step time", "peak memory", "plans", ""]
    made = new_table(f"Meshes of {meshes[0].mesh.devices} devices", *columns)
    for each in meshes:
        estimate = each.estimate
        notes = (["chosen"] if each.chosen else []) + ([] if estimate.fits else ["DOES NOT FIT"])
        made.add_row(
            str(each.mesh),
            _lies(each),
            seconds(estimate.step_time),
            size(estimate.peak_memory),
            "" if each.budget is None else f"up to {each.budget}",
            ", ".join(notes),
        )
    return made


def _lies(candidate: MeshCandidate) -> str:
    """The networks of the axes: one for all, or for each its own."""
    networks = {axis: network for axis, network in candidate.networks.items() if network}
    if len(set(networks.values())) <= 1:
        return next(iter(networks.values()), "")
    return ", ".join(f"{axis}: {network}" for axis, network in networks.items())


def rows(meshes: Sequence[MeshCandidate]) -> list[dict[str, Any]]:
    """The same as data that JSON can hold."""
    return [
        {
            "mesh": dict(each.mesh),
            "networks": dict(each.networks),
            "step_time": each.estimate.step_time,
            "serial_time": each.estimate.serial_time,
            "peak_memory": each.estimate.peak_memory,
            "fits": each.estimate.fits,
            "budget": each.budget,
            "chosen": each.chosen,
        }
        for each in meshes
    ]
