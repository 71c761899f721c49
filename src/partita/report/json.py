"""A plan as plain data, for `--json`: names, numbers and lists only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled
from partita.report.collect import collect
from partita.report.data import as_json


def summary(plan: Scheduled, meshes: Sequence[MeshCandidate] = ()) -> dict[str, Any]:
    """Returns the report as data for JSON. Times in seconds, sizes in bytes."""
    found: dict[str, Any] = as_json(collect(plan, meshes))
    del found["details"]
    return found
