"""Options of all public functions and tactics: what they are not is said where they come in."""

import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array, planner
from partita.cost.calibrate import calibrate
from partita.cost.devices.stopwatch import Budget

X = array(8, 8)
BASE = {"mesh": "data=2", "hardware": "cpu"}
made = planner(mesh="data=2")(jnp.sin, X)


def plan(**options):
    return pt.plan(jnp.sin, X, **{**BASE, **options})


def jit(**options):
    return pt.jit(jnp.sin, **{**BASE, **options})


def simulate(**options):
    return pt.simulate(jnp.sin, X, **{**BASE, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    made.save(file)
    return file


class Named:
    """A class that has what a tactic has, but is none."""

    name = "named"

    def apply(self, stage):
        raise AssertionError


BATCH = pt.ManualPartition({"x": 0}, axis="data")
TACTICS = [
    (3, r"tactics=3: expected tactics, such as ManualPartition"),
    ([{}], r"tactics=\{\}: expected tactics"),
    ({"x": 0}, r"tactics=\{'x': 0\}: expected tactics"),
    (["data"], "tactics='data': expected tactics"),
    ("data", "tactics='data': expected tactics"),
    ([Named], r"tactics=<class .*Named'>: expected a tactic, such as Named\(\.\.\.\)"),
    (pt.DataParallel, r"expected a tactic, such as DataParallel\(\.\.\.\)"),
    ([BATCH, None], "tactics=None: expected tactics"),
    ([[BATCH]], r"tactics=\[ManualPart.*\]: expected tactics"),
]
MEMORY = [
    (0, "memory=0: expected bytes, from 1 to"),
    (-1, "memory=-1: expected bytes"),
    (math.nan, "memory=nan: expected bytes"),
    (math.inf, "memory=inf: expected bytes"),
    (1e300, r"memory=1e\+300: expected bytes"),
    (True, "memory=True: expected bytes"),
    ([], r"memory=\[\]: expected bytes"),
    ("0", 'memory="0": expected bytes'),
    ("0GiB", 'memory="0GiB": expected bytes'),
    ("9999999999TiB", 'memory="9999999999TiB": expected bytes'),
    ("-1GiB", 'cannot read memory="-1GiB"; expected bytes'),
    ("", 'cannot read memory=""'),
]
DONATED = [
    ("x", "donate_argnums='x': expected the position of an argument, or several"),
    (-1, "donate_argnums=-1: expected the position"),
    (1.5, "donate_argnums=1.5: expected the position"),
    ([0, "x"], r"donate_argnums=\(0, 'x'\): expected the position"),
    (True, "donate_argnums=True: expected the position"),
]
MESH = [
    (3, "cannot read a mesh from int"),
    ("", "cannot read '' in mesh"),
    ({}, "a mesh needs at least one axis"),
    ({"data": 0}, "size 0; expected an integer >= 1"),
    ({"data": "2"}, "size '2'; expected an integer >= 1"),
    ({3: 2}, "an axis 3; expected a name"),
    ("data=100000000", "mesh data=100000000 has more than 1,048,576 devices, the most for one"),
    ({"data": 2**20, "model": 2}, "has more than 1,048,576 devices"),
]
DEVICES = [
    (0, "devices=0: expected an integer of at least 1"),
    (-8, "devices=-8: expected an integer of at least 1"),
    (8.0, "devices=8.0: expected an integer"),
    ("8", "devices='8': expected an integer"),
    (True, "devices=True: expected an integer"),
    (2, "give either, not both: mesh=..., such as"),
]
HARDWARE = [
    (3, "hardware=3: expected a device type, a path ending in .toml, or Hardware"),
    ("", "unknown device type ''"),
    ([], r"hardware=\[\]: expected a device type"),
]
SEARCH = {
    "budget": [
        ("x", "budget='x': expected an integer of at least 1"),
        (0, "budget=0: expected an integer of at least 1"),
        (1.5, "budget=1.5: expected an integer"),
        (True, "budget=True: expected an integer"),
        (None, "budget=None: expected an integer"),
    ],
    "seed": [("x", "seed='x': expected an integer"), (0.5, "seed=0.5: expected an integer")],
}
HOISTED = [
    (0, "hoist_constants=0: expected bytes"),
    ("x", 'cannot read hoist_constants="x"'),
    (None, "hoist_constants=None: expected bytes"),
]
NAMES = [
    (value, rf"{re.escape(repr(value))}: expected the name of an argument, or several")
    for value in (3, "", ["x", 1], True)
]
MARKS = {
    "donate_argnums": DONATED,
    "donate_argnames": NAMES,
    "static_argnums": [
        ("x", "static_argnums='x': expected the position of an argument, or several"),
        (1.5, r"static_argnums=1\.5: expected the position"),
    ],
    "static_argnames": NAMES,
}
COMPILE = [
    (3, "compile=3: expected True, False, or a topology"),
    (None, "compile=None: expected True, False, or a topology"),
    ("nine", "unknown topology 'nine'"),
]
STRICT = [
    (3, "strict=3: expected True, or some of"),
    ("idel", "strict='idel': expected one of .*did you mean 'idle'"),
    ({"idle": 1}, r"strict\['idle'\]=1: expected True or False"),
]
OF_PLANS = {
    "tactics": TACTICS,
    "hoist_constants": HOISTED,
    "devices": DEVICES,
    "strict": STRICT,
    **SEARCH,
}
OF_ALL = {"memory": MEMORY, "mesh": MESH, "hardware": HARDWARE, **MARKS}
OPTIONS = {
    plan: {
        **OF_ALL,
        **OF_PLANS,
        "progress": [(3, "progress=3: expected a function")],
        "broadcast": [(1, "broadcast=1: expected True or False")],
    },
    simulate: {**OF_ALL, "tactics": TACTICS, "compile": COMPILE},
    jit: {**OF_PLANS, **OF_ALL},
}


@pytest.mark.parametrize(
    ("call", "option", "value", "message"),
    [
        pytest.param(call, option, value, message, id=f"{call.__name__}-{option}-{value!r:.30}")
        for call, options in OPTIONS.items()
        for option, cases in options.items()
        for value, message in cases
    ],
)
def test_an_option_that_is_wrong(call, option, value, message):
    """Of `pt.jit`, when the function is made: not at its first call."""
    if call is jit and option == "hardware":
        with pytest.raises(pt.PartitaError, match=message):
            jit(hardware=value)(jnp.ones((8, 8)))
        return
    with pytest.raises(pt.PartitaError, match=message):
        call(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (option, value, message)
        for option in ("memory", "hardware", *MARKS)
        for value, message in OF_ALL[option]
    ],
)
def test_an_option_of_load_that_is_wrong(saved, option, value, message):
    with pytest.raises(pt.PartitaError, match=message):
        pt.load(saved, jnp.sin, X, **{option: value})


@pytest.mark.parametrize("call", [pt.plan, pt.simulate, pt.jit])
def test_every_option_is_in_the_table(call):
    """So that a new option comes with what it must not be."""
    named = {
        p.name for p in inspect.signature(call).parameters.values() if p.kind == p.KEYWORD_ONLY
    }
    known = set(next(o for f, o in OPTIONS.items() if f.__name__ == call.__name__))
    assert named - known <= {"lift_constants", "saved", "in_shardings", "out_shardings"}


@pytest.mark.parametrize("path", [3, None, "", ".", "a\0b", b"x", ["x"]])
@pytest.mark.parametrize(
    "use",
    [
        pt.read,
        lambda path: pt.load(path, jnp.sin, X),
        lambda path: pt.jit(jnp.sin, saved=path or 0)(jnp.ones((8, 8))),
        made.save,
    ],
    ids=["read", "load", "jit", "save"],
)
def test_what_is_no_path(use, path):
    with pytest.raises(pt.FileError, match=r"cannot (read|write)"):
        use(path)


# ---------------------------------------------------------------------------- tactics

AXIS = [(3, "axis=3: expected the name of a mesh axis"), ("", "axis=''"), (["data"], "axis=")]
PATTERNS = [
    (3, "patterns=3: expected a pattern of names, several, or a dict"),
    ([3], r"patterns=\[3\]: expected a pattern"),
    ({3: 0}, r"patterns=\{3: 0\}: expected a pattern"),
    ("", "patterns='': expected a pattern"),
]
ROLE = [("x", "resolve='x': expected an integer of at least 0"), (-1, "resolve=-1")]


def renamed(cases, name):
    return [(value, message.replace("patterns", name)) for value, message in cases]


OPTIONAL = {"axis": AXIS, "patterns": PATTERNS}
OF_TACTICS = {
    pt.DataParallel: OPTIONAL,
    pt.FullyShardedDataParallel: {
        **OPTIONAL,
        "optimizer": renamed(PATTERNS, "optimizer"),
        "batch": renamed(PATTERNS, "batch"),
    },
    pt.Megatron: {**OPTIONAL, "vocabulary": [(1, "vocabulary=1: expected True or False")]},
    pt.ExpertParallel: OPTIONAL,
    pt.SequenceParallel: {
        **OPTIONAL,
        "vocabulary": [("no", "vocabulary='no': expected True or False")],
        "batch": renamed(PATTERNS, "batch"),
        "resolve": ROLE,
    },
    pt.AutomaticPartition: {
        **SEARCH,
        "axes": [
            (3, "axes=3: expected names of mesh axes"),
            ([3], r"axes=\[3\]: expected names"),
        ],
        "memory": MEMORY,
        "allow": renamed(PATTERNS, "allow"),
        "pinned": renamed(PATTERNS, "pinned"),
        "search": [("best", "there is no search 'best'"), (3, "there is no search 3")],
        "workers": [(0, "workers=0: expected an integer of at least 1"), ("2", "workers='2'")],
        "avoid": [
            (3, "avoid=3: expected kinds of collectives"),
            ("allgather", "avoid='allgather' is no kind of collective; did you mean 'all_gather'"),
        ],
        "layouts_only": [(1, "layouts_only=1: expected True or False")],
    },
    pt.Microbatch: {
        "steps": [
            (0, "Microbatch: steps=0: expected an integer of at least 1"),
            ("4", "steps='4': expected an integer"),
        ],
        "patterns": PATTERNS,
        "coupled": [("mean", "coupled='mean': expected 'refuse' or 'per_microbatch'")],
    },
    pt.LogicalAxes: {
        "rules": [
            (3, "rules=3: expected a dict of names and mesh axes, or pairs"),
            ("mlp", "rules='mlp': expected a dict"),
            (["mlp"], "cannot read the rule 'mlp'"),
            ({"mlp": 3}, r"cannot read the rule \('mlp', 3\)"),
        ]
    },
}


@pytest.mark.parametrize(
    ("tactic", "option", "value", "message"),
    [
        pytest.param(tactic, option, value, message, id=f"{tactic.__name__}-{option}-{value!r:.30}")
        for tactic, options in OF_TACTICS.items()
        for option, cases in options.items()
        for value, message in cases
    ],
)
def test_an_option_of_a_tactic_that_is_wrong(tactic, option, value, message):
    """Said when the tactic is made, with the name of its class where an option is of several."""
    with pytest.raises(pt.PartitaError, match=message):
        tactic(**{option: value})


@pytest.mark.parametrize("tactic", OF_TACTICS)
def test_every_option_of_a_tactic_is_in_the_table(tactic):
    assert set(inspect.signature(tactic).parameters) - {"freeze"} == set(OF_TACTICS[tactic])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pt.ManualPartition("x", axis="data"), "patterns='x': expected a dict of patterns"),
        (lambda: pt.ManualPartition({}, axis="data"), r"patterns=\{\}: expected a dict"),
        (lambda: pt.ManualPartition({3: 0}, axis="data"), r"patterns=\{3: 0\}: expected a pattern"),
        (lambda: pt.ManualPartition({"x": 0}, axis=None), "dimensions need an axis"),
        (lambda: pt.ManualPartition({"x": 0}, axis="data", resolve="a"), "resolve='a'"),
        (lambda: pt.ZeRO("3"), "stages 1, 2 and 3, not '3'"),
        (lambda: pt.ZeRO(True), "stages 1, 2 and 3, not True"),
        (lambda: pt.ZeRO(3, axis=3), "axis=3: expected the name"),
        (lambda: pt.ZeRO(3, patterns=3), "patterns=3: expected a pattern"),
        (lambda: plan(tactics=pt.ManualPartition({"x": "0"}, "data")), "expected a dimension"),
        (lambda: plan(tactics=pt.ManualPartition({"x": 1.0}, "data")), "expected a dimension"),
        (lambda: plan(tactics=pt.ManualPartition({"x": True}, "data")), "expected a dimension"),
    ],
)
def test_tactics_that_cannot_be(make, message):
    with pytest.raises(pt.TacticError, match=message):
        make()


def test_the_name_of_one_axis_is_one_axis():
    """It used to be read letter by letter."""
    tactic = pt.AutomaticPartition(axes="data", budget=5)
    assert tactic.axes == ("data",) and tactic.name == "AutomaticPartition(data)"
    assert plan(tactics=tactic).history[0].name == "AutomaticPartition(data)"


def test_numbers_of_numpy_are_numbers():
    assert pt.AutomaticPartition(budget=np.int64(3), seed=np.int32(1)).budget == 3
    assert plan(tactics=(), donate_argnums=np.int64(0)).donate_argnums == (0,)
    assert plan(tactics=(), memory=np.float32(2**30)).estimate.capacity == 2**30


# ------------------------------------------------------------------------ methods and the rest


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: made.then("x"), "tactics='x': expected tactics"),
        (lambda: made.then(pt.DataParallel), "expected a tactic, such as DataParallel"),
        (lambda: made.diff(3), "other=3: expected another plan"),
        (lambda: made.suggestions("x"), "number='x': expected an integer"),
        (lambda: made.explain("x", alternatives=-1), "alternatives=-1: expected an integer of at"),
        (lambda: made.explain("x", alternatives="a"), "alternatives='a': expected an integer"),
        (lambda: made.explain(1.5), "1.5"),
        (lambda: made.export("x.mlir", form=3), "there is no form 3"),
        (lambda: made.export(3), "what should '3' be"),
        (
            lambda: pt.plan(3, X, **BASE),
            "int cannot be called so: Expected a callable",
        ),
        (lambda: pt.jit(3, **BASE), "fn=3: expected a function"),
        (lambda: pt.constrain(jnp.ones(4), "data"), "data"),
        (lambda: pt.register_rule(3, "a -> a"), "target=3: expected the name"),
        (lambda: pt.register_rule("x", 3), "rule=3: expected a rule"),
        (lambda: simulate(in_shardings={"x": "data"}), "x"),
        (lambda: simulate(in_shardings=3), "x: expected a PartitionSpec, got 3"),
        (lambda: Budget(seconds=math.nan), "seconds=nan: expected a time above 0"),
        (lambda: Budget(seconds=-1), "seconds=-1: expected a time above 0"),
        (lambda: Budget(seconds="x"), "seconds='x': expected a time above 0"),
        (lambda: Budget(runs=0), "runs=0: expected an integer of at least 1"),
        (lambda: calibrate(3), "a hardware file ends in .toml"),
        (lambda: calibrate("x.toml", devices=[]), "no devices"),
        (lambda: calibrate("x.toml", jax.devices(), like=3), "hardware=3"),
    ],
)
def test_other_calls_with_what_they_do_not_take(use, message):
    with pytest.raises(pt.PartitaError, match=message):
        use()
