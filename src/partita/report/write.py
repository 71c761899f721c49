"""Reports in files: as a page, as data, or as text, by the ending of the name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.errors import FileError
from partita.files import write
from partita.planning.meshes import MeshCandidate
from partita.planning.schedule import Scheduled
from partita.report.collect import collect
from partita.report.page import page
from partita.report.plan import view
from partita.text import plain

ENDINGS = (".html", ".json", ".txt")


def ending(path: str | Path) -> str:
    """Returns the suffix of a report's name.

    Raises:
      FileError: the suffix is not one of `ENDINGS`.
    """
    found = Path(path).suffix
    if found not in ENDINGS:
        raise FileError(
            f"cannot write a report to {str(path)!r}: expected a name that ends in "
            f"{', '.join(ENDINGS)}"
        )
    return found


def write_report(
    plan: Scheduled,
    meshes: Sequence[MeshCandidate],
    path: str | Path,
    verified: Sequence[dict[str, Any]] = (),
) -> None:
    """Writes the report of a plan.

    Raises:
      FileError: it cannot be written, or its name ends in nothing that is known.
    """
    kind = ending(path)
    if kind == ".txt":
        text = plain(view(plan, meshes=meshes)) + "\n"
    else:
        found = collect(plan, meshes, details=True, verified=verified)
        text = (
            page(found)
            if kind == ".html"
            else json.dumps(dataclasses.asdict(found), indent=1) + "\n"
        )
    write(path, text.encode())
