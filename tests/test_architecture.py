"""The architecture: layers that only look down, no circles, and the picture of them in the docs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import architecture

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LINT = Path(sys.executable).with_name("lint-imports")


def lint(source):
    """The import contracts of `pyproject.toml`, on the package in a folder."""
    return subprocess.run(
        [LINT, "--no-cache", "--config", ROOT / "pyproject.toml"],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_imports_upward_or_in_a_circle():
    found = lint(ROOT / "src")
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("cost/model.py", "from partita.plan import Plan", "Nothing imports upward"),
        (
            "mesh.py",
            "def late():\n    from partita.search import Problem",
            "Nothing imports upward",
        ),
        (
            "text.py",
            "import typing\nif typing.TYPE_CHECKING:\n    from partita.mesh import Mesh",
            "Nothing imports upward",
        ),
        (
            "tiling/tiling.py",
            "def late():\n    from partita.tiling.forms import Forms",
            "No import circle",
        ),
    ],
)
def test_a_wrong_import_is_found_wherever_it_hides(tmp_path, file, line, broken):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    with (tmp_path / "src" / "partita" / file).open("a") as module:
        module.write(f"\n\n{line}\n")
    found = lint(tmp_path / "src")
    assert found.returncode == 1
    assert f"{broken} BROKEN" in found.stdout


def test_the_page_shows_the_layers_as_the_sources_have_them():
    text = PAGE.read_text("utf-8")
    shown = "\n\n".join(architecture.page())
    made = re.search(r"<!-- from the sources -->\n(.*)\n<!-- end -->", text, re.S)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(text[: made.start(1)] + shown + text[made.end(1) :], "utf-8")
    assert made[1] == shown, "UPDATE_DOCS=1 pytest tests/test_architecture.py writes it"
