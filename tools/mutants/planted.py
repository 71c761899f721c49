"""A mutant, and a copy of the package that has it."""

from __future__ import annotations

import dataclasses
import shutil
import tomllib
from functools import cached_property
from pathlib import Path

import partita

SOURCES = Path(partita.__file__).parent
LIST = Path(__file__).with_name("mutants.toml")


class MutantError(Exception):
    """A mutant that cannot be planted or tested; the message says which, and why."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A fault, as data: in one file, one text replaced by another."""

    file: str
    """Below `src/partita`."""
    text: str
    """Occurs exactly once in the file."""
    by: str
    """The replacement."""
    breaks: str
    """One sentence on what no longer holds."""
    first: tuple[str, ...]
    """Test files that should find it; they run before all others."""

    @cached_property
    def source(self) -> str:
        """The file without the fault."""
        path = SOURCES / self.file
        if not path.is_file():
            raise MutantError(f"there is no file {self.file}; see {LIST.name}: {self.breaks}")
        return path.read_text()

    @property
    def changed(self) -> str:
        """The file with the fault.

        Raises:
          MutantError: the text does not occur exactly once, or the replacement is no Python.
        """
        count = self.source.count(self.text)
        if count != 1:
            raise MutantError(
                f"{self.file}: this text occurs {count} times instead of once; adapt {LIST.name} "
                f"to the source:\n{self.text}"
            )
        if self.text == self.by:
            raise MutantError(f"{self.file}: this text is replaced by itself:\n{self.text}")
        changed = self.source.replace(self.text, self.by)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            raise MutantError(f"{self.file}: not Python with {self.by!r}: {error}") from error
        return changed

    @property
    def line(self) -> int:
        """The number of the first line that changes."""
        return self.source[: self.source.index(self.text)].count("\n") + 1

    @property
    def function(self) -> str:
        """The innermost function or method around the change, with its class."""
        names: list[tuple[int, str]] = []
        for line in self.source[: self.source.index(self.text)].splitlines():
            indent, words = len(line) - len(line.lstrip()), line.split()
            if not words:
                continue
            names = [each for each in names if each[0] < indent or line.lstrip().startswith(")")]
            if words[0] in ("def", "class"):
                names.append((indent, words[1].partition("(")[0].rstrip(":")))
        return ".".join(name for _, name in names)


def mutants(path: Path = LIST) -> list[Mutant]:
    """All mutants of a list."""
    rows = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**row, "first": tuple(row["first"])}) for row in rows]


def planted(mutant: Mutant | None, folder: Path) -> None:
    """Copies the package into a folder, with a mutant if there is one.

    What was compiled comes along: Python compiles again what is newer.
    """
    shutil.copytree(SOURCES, folder / SOURCES.name)
    if mutant is not None:
        (folder / SOURCES.name / mutant.file).write_text(mutant.changed)
