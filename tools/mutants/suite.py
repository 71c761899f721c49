"""`python -m tools.mutants.suite FOLDER RESULT FIRST TESTS...`: tests of the package in a folder.

Some test files run before all others. The first test that fails ends it, and its name is written
to the file RESULT.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WRONG = 70
"""The exit status if the package that was tested is another one."""


class _Watch:
    """A pytest plugin: brings tests forward, and notes the first that fails."""

    def __init__(self, first: tuple[str, ...], result: Path) -> None:
        self.first, self.result = first, result

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Brings tests forward."""
        items.sort(key=lambda item: not item.nodeid.startswith(self.first))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test that fails."""
        if report.failed:
            self.result.write_text(report.nodeid)


def strangers(folder: Path) -> Iterator[str]:
    """The modules of the package that were not loaded from a folder."""
    for name, module in sys.modules.items():
        file = getattr(module, "__file__", None)
        ours = name.partition(".")[0] == "partita"
        if ours and file and not Path(file).resolve().is_relative_to(folder.resolve()):
            yield f"{name} is {file}"


def main(folder: Path, result: Path, first: tuple[str, ...], tests: list[str]) -> int:
    """The exit status of pytest; `WRONG` if what was tested is not what is in the folder."""
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header"]
    status = int(pytest.main([*options, *tests], plugins=[_Watch(first, result)]))
    wrong = ["partita was not loaded"] if "partita" not in sys.modules else [*strangers(folder)]
    if wrong:
        print(f"not the package in {folder}:", *wrong, sep="\n  ")
        return WRONG
    return status


if __name__ == "__main__":
    folder, result, first, *tests = sys.argv[1:]
    sys.exit(main(Path(folder), Path(result), tuple(first.split()), tests))
