"""`strict=`: what a report only mentions is an error, each kind by itself."""

import sys

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, planner
from partita import cli
from partita.planning.strict import KINDS
from partita.tactics import Outcome
from partita.tiling import replicated

# JAX warns of lost donation; these tests are about the error that it can be.
pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")

ROWS = pt.ManualPartition({"x": 0}, axis="data")
planned = planner(mesh="data=4,model=2")


def product(w, x):
    return x @ w


def step(w, x):
    return w - x.sum(0)[:, None], x.sum()


ARGS = array(64, 128), array(32, 64)


class Forget:
    """A tactic that replicates everything, whatever the program says."""

    name = "Forget"

    def apply(self, stage):
        return Outcome(replicated(stage.context.analysis.program))


def constrained(w, x):
    return pt.constrain(x @ w, P("data", None))


CASES = {
    "refused": (
        (product, array(64, 127), ARGS[1]),
        {"tactics": [ROWS, pt.ManualPartition({"w": 1}, axis="model")]},
        "ManualPartition(w: 1 -> model): w dimension 1: 127 is not divisible by model=2",
    ),
    "donation": (
        (step, *ARGS),
        {"tactics": [ROWS], "donate_argnums": (0, 1)},
        "x: no result that is free is a f32[32,64]",
    ),
    "constraints": (
        (constrained, *ARGS),
        {"tactics": [Forget()]},
        "is to be (data, -) and is replicated",
    ),
    "replicated": (
        (product, *ARGS),
        {"tactics": [ROWS], "strict": {"replicated": "32KiB"}},
        "w: f32[64,128], 32.0 KiB",
    ),
    "idle": ((product, *ARGS), {"tactics": [ROWS]}, "model: its 2 devices do the same work"),
    "memory": (
        (product, *ARGS),
        {"tactics": [ROWS], "memory": "16KiB"},
        " at the peak, of 16.0 KiB",
    ),
}


def test_there_is_a_case_of_every_kind():
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_is_an_error_that_names_what(kind):
    (fn, *args), options, message = CASES[kind]
    with pytest.raises(pt.StrictError) as caught:
        planned(fn, *args, **{"strict": kind, **options})
    title, first, *_ = str(caught.value).splitlines()
    assert title == f"{fn.__name__} is not what strict= asks for:"
    assert first.startswith(f"  {kind}: ") and message in first


@pytest.mark.parametrize("kind", CASES)
def test_without_it_the_plan_is_made(kind):
    (fn, *args), options, message = CASES[kind]
    plan = planned(fn, *args, **{**options, "strict": False})
    found = [p for p in plan.problems(options.get("strict", True)) if p.kind == kind]
    assert any(message in problem.what for problem in found)


def test_a_plan_without_problems_passes_all_of_it():
    tactics = [ROWS, pt.ManualPartition({"w": 1}, axis="model")]
    plan = planned(product, *ARGS, tactics=tactics, strict=True)
    assert plan.problems() == ()


def test_all_problems_are_named_in_one_error():
    with pytest.raises(pt.StrictError) as caught:
        planned(step, *ARGS, donate_argnums=1, memory="16KiB", strict=["donation", "memory"])
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "donation",
        "memory",
    ]


def test_donation_counts_leaves_and_not_positions():
    def update(scale, params, x, *, key):
        return {"a": params["a"] * scale + key}, x.sum()

    args = array(), {"a": array(8), "b": array(9)}, array(4)
    plan = planned(update, *args, key=array(8), donate_argnums=1, donate_argnames="key")
    found = plan.problems("donation")
    assert [problem.what.partition(":")[0] for problem in found] == ["params['b']", "key"]


def test_jit_is_strict_at_its_first_call():
    run = pt.jit(step, mesh="data=8", tactics=[], hardware="cpu", strict=["idle"])
    with pytest.raises(pt.StrictError, match="idle: data: its 8 devices do the same work"):
        run(jnp.ones((64, 128)), jnp.ones((32, 64)))


@pytest.mark.parametrize(
    ("strict", "message"),
    [
        ("idel", r"strict='idel': expected one of refused, .*did you mean 'idle'"),
        (3, "strict=3: expected True, or some of refused, donation"),
        ({"idle": "1GiB"}, r"strict\['idle'\]='1GiB': expected True or False"),
        ({"replicated": "much"}, r"cannot read strict\['replicated'\]=\"much\""),
    ],
)
def test_what_is_no_strictness(strict, message):
    for make in (planned, lambda *args, **options: pt.jit(product, mesh="data=8", **options)):
        with pytest.raises(pt.PartitaError, match=message):
            make(product, *ARGS, strict=strict)


PROGRAM = """
import jax


def make():
    return (lambda x: x * 2), [jax.ShapeDtypeStruct((64, 8), "float32")]
"""


@pytest.mark.parametrize(
    ("strict", "problems"),
    [
        ("idle", ["idle: data: its 4 devices do the same work"]),
        ("replicated", []),
        ("replicated=1KiB", ["replicated: x: f32[64,8], 2.0 KiB"]),
        (
            "all",
            ["idle: data: its 4 devices do the same work"],
        ),
    ],
)
def test_the_command_prints_the_plan_and_then_what_is_wrong(
    strict, problems, monkeypatch, capsys, tmp_path
):
    (tmp_path / "model.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    options = ["--mesh=data=4", "--hardware=tpu_v5e", "--axes=none", "--strict", strict]
    monkeypatch.setattr(sys, "argv", ["partita", "plan", "model.py:make", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output = capsys.readouterr()
    assert "step time" in output.out
    assert output.err.splitlines() == [f"error: {problem}" for problem in problems]
    assert (ended.value.code or 0) == (1 if problems else 0)
