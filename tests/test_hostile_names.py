"""Names and messages of users are data: nothing in them reaches a terminal or a page as code."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import partita as pt
from partita import cli, cost
from partita.errors import PartitaWarning, warn
from partita.escape import one_line, printable
from partita.text import Text, lines, new_table, plain

EVIL = "[/nope][bold]w[/bold]\x1b[31m\x9b31m\r\b\x00\u202e\u2066:boom:<script>alert(1)</script>"
"""Markup of rich, escape sequences of two kinds, control characters, marks that turn the direction
of text, the name of an emoji, and HTML."""

SHOWN = (
    "[/nope][bold]w[/bold]\\x1b[31m\\x9b31m\\r\\x08\\x00\\u202e\\u2066:boom:"
    "<script>alert(1)</script>"
)


def safe(text):
    """Asserts that a text shows what it is, and gives it back."""
    assert printable(text) == text
    return text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w", "w"),
        ("params['é']", "params['é']"),
        (EVIL, SHOWN),
        ("a\nb\tc", "a\nb\tc"),
        ("\ud800", "\\ud800"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_does_not_print_is_written_as_in_a_string(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_a_line_stays_one_line():
    assert one_line("a\nstep time 1 us") == "a\\nstep time 1 us"
    table = new_table("title", "name")
    table.add_row("a\nb")
    assert plain(table) == "title\nname\na\\nb"


def test_cells_and_lines_are_no_markup():
    table = new_table(EVIL, EVIL)
    table.add_row(EVIL)
    assert plain(table) == "\n".join([SHOWN] * 3)
    assert plain(Text(EVIL).append(EVIL)) == 2 * SHOWN
    assert plain(lines(f"{EVIL}\n{EVIL}")) == f"{SHOWN}\n{SHOWN}"


def test_no_line_of_a_long_name_is_wrapped():
    table = new_table("", "name", "other")
    table.add_row("n" * 20_000, "o" * 20_000)
    assert plain(table).splitlines()[-1] == f"{'n' * 20_000}  {'o' * 20_000}"


def step(params, **others):
    """A layer whose parameters, tag and keyword argument users have named."""
    x = others[EVIL]
    return {EVIL: checkpoint_name(jnp.tanh(x @ params[EVIL]), EVIL), "sum": x.sum()}


step.__name__ = EVIL


def shapes():
    return {EVIL: jax.ShapeDtypeStruct((32, 16), jnp.float32)}, {
        EVIL: jax.ShapeDtypeStruct((64, 32), jnp.float32)
    }


@pytest.fixture(scope="module")
def hardware(tmp_path_factory):
    """A device type of the user's, with a name that is as bad."""
    path = tmp_path_factory.mktemp("types") / f"{EVIL.replace('/', '|')}.toml".replace("\x00", "")
    source = Path(cost.__file__).parent / "devices" / "device_types" / "cpu.toml"
    _, rest = source.read_text().split("\n", 1)
    path.write_text(f"description = {json.dumps(EVIL)}\n{rest}")
    return path


@pytest.fixture(scope="module")
def plan(hardware):
    params, others = shapes()
    tactics = [
        pt.ManualPartition({EVIL: 0}, axis=EVIL),
        pt.ManualPartition({f"*{EVIL}*": 1}, axis="y"),
        pt.AutomaticPartition(budget=20),
    ]
    mesh = {EVIL: 2, "y": 2}
    return pt.plan(step, params, mesh=mesh, hardware=str(hardware), tactics=tactics, **others)


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        lambda plan: plan.explain(f"*{EVIL}*"),
        lambda plan: plan.explain("*"),
        lambda plan: plan.explain("collectives"),
        lambda plan: plan.diff(plan),
        lambda plan: plan.memory(),
        lambda plan: plan.memory().table,
        lambda plan: plan.core,
        lambda plan: plan.spmd,
        lambda plan: plan.program,
        lambda plan: plan.colors,
        lambda plan: plan.history,
        lambda plan: plan.mesh,
        lambda plan: "\n".join(map(str, plan.problems(True))),
    ],
)
def test_all_that_a_plan_prints(plan, show):
    shown = show(plan)
    safe(str(shown))
    safe(repr(shown))


def test_a_plan_keeps_names_as_they_are(plan, tmp_path):
    assert plan.mesh.names == (EVIL, "y")
    assert plan.program.argument_names[1] == f"others['{EVIL}']"
    plan.save(tmp_path / "plan.json")
    again = pt.load(
        tmp_path / "plan.json", step, shapes()[0], hardware=plan.hardware, **shapes()[1]
    )
    assert again.in_shardings == plan.in_shardings
    assert SHOWN in str(plan)


class _Page(HTMLParser):
    """The scripts of a page, and the names of its elements."""

    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes).get("type")))


def test_pages_escape_them(plan, tmp_path):
    plan.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = _Page()
    page.feed(text)
    assert [kind for tag, kind in page.tags if tag == "script"] == ["application/json", None]
    assert "<script>alert" not in text and "\x1b" not in text and "\u202e" not in text
    assert "<script>alert" not in plan._repr_html_()
    plan.report(tmp_path / "page.txt")
    safe((tmp_path / "page.txt").read_text())


def test_errors_and_warnings(plan):
    for error in (
        pt.MeshError(EVIL),
        pt.UnknownNameError(EVIL),
        pickle.loads(pickle.dumps(pt.TraceError(EVIL))),
    ):
        assert str(error) == SHOWN

    def fails(x):
        raise ValueError(EVIL)

    with pytest.raises(pt.TraceError) as found:
        pt.plan(fails, jnp.ones(4), mesh={EVIL: 2}, hardware="cpu")
    assert SHOWN in safe(str(found.value))
    with pytest.raises(pt.AxisError) as found:
        plan.then(pt.ManualPartition({"*": 0}, axis=f"{EVIL}2"))
    safe(str(found.value))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn(EVIL, PartitaWarning)
    assert str(told[0].message) == SHOWN


@pytest.mark.parametrize("name", ["é", "\u202edata", "back\\slash"])
def test_an_axis_that_would_end_the_process_is_an_error(name):
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    made = pt.plan(jnp.sin, x, mesh={name: 2}, hardware="cpu", tactics=pt.DataParallel(name))
    with pytest.raises(pt.MeshError, match="XLA cannot compile for a mesh axis named"):
        made.jit()(jnp.ones((8, 8)))


@pytest.mark.parametrize("name", ["a b", 'quo"te', "new\nline", "[/nope]", "\x1b[31m"])
def test_any_other_axis_runs(name):
    x = jnp.arange(64.0).reshape(8, 8)
    made = pt.plan(jnp.sin, x, mesh={name: 2}, hardware="cpu", tactics=pt.DataParallel(name))
    assert made.in_shardings[0] == jax.P(name)
    assert jnp.array_equal(made.jit()(x), jnp.sin(x))
    safe(str(made.verify()))


PROGRAM = f"""
import jax, jax.numpy as jnp
EVIL = {EVIL!r}


def model():
    def step(params, x):
        return {{EVIL: jnp.tanh(x @ params[EVIL])}}

    step.__name__ = EVIL
    shapes = {{EVIL: jax.ShapeDtypeStruct((32, 16), jnp.float32)}}
    return step, (shapes, jax.ShapeDtypeStruct((64, 32), jnp.float32))


def fails():
    raise RuntimeError(EVIL)


def untraceable():
    def step(x):
        raise RuntimeError(EVIL)
    return step, (jax.ShapeDtypeStruct((64, 32), jnp.float32),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Programs and plans in files whose names are as bad."""
    folder = tmp_path_factory.mktemp("files") / "[bold]\x1b[31m\u202e"
    folder.mkdir()
    (folder / "[b]\x1b.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def command(folder, hardware, monkeypatch, capfd):
    """Runs a command, of whose arguments `MODEL`, `PLAN` and `HARDWARE` are files."""
    monkeypatch.chdir(folder)
    shutil.copy(hardware, folder / "[i]\x1b.toml")

    def run(*args, model="model", code=0):
        names = {"MODEL": f"[b]\x1b.py:{model}", "PLAN": "[b]\x1b.json", "HARDWARE": "[i]\x1b.toml"}
        monkeypatch.setattr(sys, "argv", ["partita", *(names.get(arg, arg) for arg in args)])
        with pytest.raises(SystemExit) as ended:
            cli.run(cli.app)
        out, err = capfd.readouterr()
        assert ended.value.code == code, out + err
        return safe(out + err)

    return run


OVER = ("--mesh", "data=2,model=2", "--hardware", "HARDWARE", "--axes", "none")


def test_every_command(command):
    manual = ("--manual", "params*nope*:0@model", "--manual", "x:0@data")
    assert EVIL[:20] in command("plan", "MODEL", *OVER, *manual, "--save", "PLAN")
    command("plan", "MODEL", *OVER, *manual, "--html", "[b]\x1b.html")
    command("plan", "MODEL", *OVER, "--sweep", "tactics=none data@data data@nope", code=1)
    command("show", "PLAN", "MODEL", "--hardware", "HARDWARE")
    command("compare", "PLAN", "PLAN")
    command("check", "PLAN", "MODEL", "--hardware", "HARDWARE")
    command("explain", "MODEL", *OVER[:-2], "*", "--axes", "none", *manual)
    command("simulate", "MODEL", *OVER[:-2])
    command("verify", "MODEL", *OVER, *manual)
    command("hardware", "HARDWARE")
    command("hardware", "HARDWARE", "--json")


@pytest.mark.parametrize(
    ("args", "model"),
    [
        (("plan", "MODEL", *OVER), "fails"),
        (("plan", "MODEL", *OVER), "untraceable"),
        (("plan", "MODEL", *OVER), EVIL.replace("\x00", "")),
        (("plan", "MODEL", *OVER[:2], "--hardware", EVIL.replace("\x00", "")), "model"),
        (("plan", "MODEL", "--mesh", EVIL.replace("\x00", ""), *OVER[2:]), "model"),
        (("plan", "MODEL", *OVER, "--manual", f"{EVIL[:20]}\x1b:0@data"), "model"),
        (("plan", "MODEL", *OVER, f"--{EVIL[3:20]}\x1b"), "model"),
        (("show", "\x1b[31m", "MODEL"), "model"),
        (("explain", "MODEL", *OVER, "\x1b[31m"), "model"),
    ],
)
def test_errors_of_commands(command, args, model):
    command(*args, model=model, code=2)


SOURCES = Path(pt.__file__).parent

TYPES = {"rich.console": {"Console", "Group", "RenderableType"}}
"""What may be imported of rich anywhere: types, and what holds others together."""

OTHERS = {
    "report/progress.py": {"rich.progress"},
    "cli/confirm.py": {"rich.markup"},  # typer takes the help of options as markup
    "cli/options.py": {"rich.markup"},
}

OF_NO_NAMES = {"TensorType", "Reach", "Rule", "Tiling", "UnknownNameError"}
"""Classes whose text holds nothing of the user's, or only what is escaped already."""


def offences(name, tree):
    """What a file prints by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich":
            known = TYPES.get(node.module, set())
            free = name == "text.py" or node.module in OTHERS.get(name, set())
            if not free and not {each.name for each in node.names} <= known:
                yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Console" and name != "text.py":
            yield ast.unparse(node)
        if isinstance(node, ast.ClassDef) and node.name not in OF_NO_NAMES:
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            for method in methods:
                decorated = "printed" in map(ast.unparse, method.decorator_list)
                if method.name in ("__str__", "__repr__") and not decorated:
                    yield f"{node.name}.{method.name}"


def test_all_that_is_printed_goes_through_one_place():
    found = [
        (name, offence)
        for path in SOURCES.rglob("*.py")
        for name in [str(path.relative_to(SOURCES))]
        for offence in offences(name, ast.parse(path.read_text("utf-8")))
    ]
    assert found == []
