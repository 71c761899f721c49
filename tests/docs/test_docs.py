"""The documentation, run: every example, every printed output, every file and name it mentions.

The blocks of a page run in order and share a namespace, as if its Python blocks were one file
`example.py`. Comments before a block say what it is: `<!-- output -->`, what the block before it
prints (`...` stands for anything); `<!-- file: NAME -->`, a file that later blocks use;
`<!-- exits 1 -->`, commands whose exit status is 1;
`<!-- source: PATH -->`, a file of this repository, whole.

`UPDATE_DOCS=1 make test-docs` writes what is printed now into the pages. Outputs
with a line `...` are left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import functools
import importlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import sys
import types
from pathlib import Path

import pytest
import typer

import partita
from partita import cli
from partita.stablehlo.rules import registry as custom

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
REFERENCE = ROOT / "docs" / "reference.md"
COLUMNS = 100
"""Width of the terminal that the pages show."""

TORCH = importlib.util.find_spec("torch") is not None
"""Whether what needs PyTorch can be run."""

NEEDS_TORCH = ("docs/pytorch.md",)

METHODS = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)

# Commands that a page may show and that are not run here.
UNCHECKED = {"pip", "git", "python", "cd", "export", "gcloud", "srun", "mpirun"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    span: tuple[int, int]
    """Where its text is in the page."""
    language: str
    marker: str
    text: str


def blocks(page):
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    fence = re.compile(r"(?:^<!-- (.*?) -->\n\n?)?^```(\w*)\n(.*?)^```$", re.M | re.S)
    return [
        Block(
            text.count("\n", 0, match.start(3)) + 1,
            match.span(3),
            match[2],
            match[1] or "",
            match[3],
        )
        for match in fence.finditer(text)
    ]


def prose(page):
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)


def printed(page, monkeypatch):
    """Runs a page; for every block, what the runnable block before or at it prints."""
    namespace = {"__name__": "example"}
    lines, output = 0, None
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.marker.startswith("file: "):
            Path(block.marker.removeprefix("file: ")).write_text(block.text, "utf-8")
        elif block.marker.startswith("source: "):
            output = (ROOT / block.marker.removeprefix("source: ")).read_text("utf-8")
        elif block.language == "python":
            output = run_python(block.text, lines, namespace)
            lines += block.text.count("\n")
        elif block.language == "bash":
            status = 1 if block.marker == "exits 1" else 0
            output = "".join(
                run_command(c, where, monkeypatch, status) for c in commands(block.text)
            )
        elif block.marker == "output":
            assert output is not None, f"{where}: an output of nothing"
        else:
            assert block.language in ("text", "mermaid", "yaml"), (
                f"{where}: what is a block of {block.language!r}?"
            )
        yield block, where, output


def run_python(text, lines, namespace):
    """Runs a block whose first line is line `lines + 1` of the page's example; what it prints."""
    code = compile("\n" * lines + text, "example.py", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)
    return out.getvalue()


def commands(text):
    """The commands of a block, as lists of words."""
    joined = text.replace("\\\n", " ")
    words = (shlex.split(line, comments=True) for line in joined.splitlines())
    # Leave out settings of the environment, as in `XLA_FLAGS=... python`.
    stripped = ([w for i, w in enumerate(ws) if i or not re.match(r"[A-Z_]+=", w)] for ws in words)
    return [command for command in stripped if command]


def run_command(words, where, monkeypatch, status=0):
    """Runs a `partita` command and returns what it prints; checks the targets of `make`."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        missing = [word for word in words[1:] if "=" not in word and word not in targets]
        assert not missing, f"{where}: the Makefile has no target {missing}"
        return ""
    if words[0] != "partita":
        assert words[0] in UNCHECKED, f"{where}: what is the command {words[0]!r}?"
        return ""
    monkeypatch.setattr(sys, "argv", words)
    both = io.StringIO()
    with (
        contextlib.redirect_stdout(both),
        contextlib.redirect_stderr(both),
        pytest.raises(SystemExit) as exit_,
    ):
        cli.main()
    assert exit_.value.code == status, f"{where}: {both.getvalue()}"
    return both.getvalue()


def stripped(text):
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_and_prints_what_it_says(page, monkeypatch, tmp_path):
    if page in NEEDS_TORCH and not TORCH:
        pytest.skip("PyTorch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr(custom, "RULES", {})  # rules that a page registers stay on the page
    checker = doctest.OutputChecker()
    wrong = []
    for block, where, output in printed(page, monkeypatch):
        if block.marker == "output" or block.marker.startswith("source: "):
            want, got = stripped(block.text), stripped(output)
            if not checker.check_output(want, got, doctest.ELLIPSIS):
                wrong.append((block, got, f"{where} says\n{want}\nbut it prints\n{got}"))
    if os.environ.get("UPDATE_DOCS"):
        update(page, [(block, got) for block, got, _ in wrong])
    assert not wrong, "\n".join(message for *_, message in wrong)


def update(page, outputs):
    """Writes outputs into a page, but for those with a line `...`."""
    text = (ROOT / page).read_text("utf-8")
    for block, got in reversed(outputs):
        if "..." not in block.text.splitlines():
            start, end = block.span
            text = text[:start] + got + text[end:]
    (ROOT / page).write_text(text, "utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_page_names_only_files_and_headings_that_exist(page):
    text = prose(page)
    paths = re.findall(r"`((?:src|docs|tests|examples|tools)/[\w./-]*)`", text)
    missing = [path for path in paths if not (ROOT / path).exists()]
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = (ROOT / page).parent / path if path else ROOT / page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                missing.append(target)
    assert not missing


def anchors(file):
    """The anchors that GitHub gives the headings of a file."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", prose(file.resolve().relative_to(ROOT)), re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        before = sum(re.fullmatch(rf"{anchor}(-\d+)?", other) is not None for other in found)
        found.append(f"{anchor}-{before}" if before else anchor)
    return found


def public(thing):
    """Names of the parameters of a function, or of the public members of a class,
    those of public classes that it inherits from included."""
    if inspect.isfunction(thing):
        return set(inspect.signature(thing).parameters)
    if issubclass(thing, Exception):
        return set()
    known = [thing, *(getattr(partita, name) for name in partita.__all__)]
    ours = (each for each in inspect.getmro(thing) if each in known)
    members = (name for each in ours for name in (*vars(each), *inspect.get_annotations(each)))
    return {name for name in members if name[0] != "_"}


@pytest.mark.parametrize("name", partita.__all__)
def test_public_name_is_in_the_reference_with_all_that_it_takes_or_has(name):
    text = REFERENCE.read_text("utf-8")
    section = re.search(rf"^### `{name}`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert section, f"docs/reference.md has no section `{name}`"
    spans = " ".join(re.findall(r"`[^`\n]+`|^```.*?^```", section[1], re.M | re.S))
    told = set(re.findall(r"\w+", spans))
    assert public(getattr(partita, name)) <= told


@pytest.mark.parametrize("name", partita.__all__)
def test_public_name_has_a_docstring(name):
    thing = getattr(partita, name)
    members = [
        (f"{name}.{member}", value)
        for member, value in (vars(thing).items() if inspect.isclass(thing) else ())
        if member[0] != "_" and isinstance(value, METHODS)
    ]
    for label, value in [(name, thing), *members]:
        # Data classes without a docstring get their signature as one.
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), label


def test_command_line_options_are_in_the_reference():
    text = REFERENCE.read_text("utf-8")
    for name, command in typer.main.get_command(cli.app).commands.items():
        section = re.search(rf"^### `partita {name}`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, f"docs/reference.md has no section `partita {name}`"
        for parameter in command.params:
            for option in parameter.opts:
                assert f"`{option}" in section[1] or f"`{option.upper()}`" in section[1], option


def modules_with_examples():
    source = ROOT / "src"
    files = sorted(f for f in source.rglob("*.py") if ">>> " in f.read_text("utf-8"))
    names = (".".join(f.relative_to(source).with_suffix("").parts) for f in files)
    found = [name.removesuffix(".__init__") for name in names]
    return [name for name in found if TORCH or not name.startswith("partita.torch")]


@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted and not outcome.failed
