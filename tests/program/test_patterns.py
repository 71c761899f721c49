"""Names of values, and the patterns that select them, however a library nests its parameters."""

import time

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner
from partita.program.names import matches, nearest, path, pattern, shared_pattern
from partita.text import relative

NESTED = "params['h'][0].attn['c_attn']['kernel']"
FLAT = "params['h.0.attn.c_attn.kernel']"
SLASHES = "params['h/0/attn/c_attn']['kernel']"
PARTS = ("params", "h", "0", "attn", "c_attn", "kernel")


@pytest.mark.parametrize("name", [NESTED, FLAT, SLASHES])
def test_names_have_the_same_parts_however_they_are_nested(name):
    assert path(name) == PARTS


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("x", ("x",)),
        ("params['mlp/~/linear_0']['w']", ("params", "mlp", "~", "linear_0", "w")),
        ("model.layers[3].kernel.value", ("model", "layers", "3", "kernel")),
        ('params["it\'s"]', ("params", "it's")),
        ("params[<flat index 2>]", ("params", "<flat index 2>")),
    ],
)
def test_the_parts_of_a_name(name, parts):
    assert path(name) == parts


@pytest.mark.parametrize("name", [NESTED, FLAT, SLASHES])
@pytest.mark.parametrize(
    "wanted",
    [
        "*c_attn*kernel",
        "*c_attn*",
        "*.c_attn.kernel",
        "*['c_attn']['kernel']",
        "*/c_attn/kernel",
        "params.h.?.attn.*",
        "params*kernel",
        "*['c_attn']*",
        "*h[0]*",
    ],
)
def test_a_pattern_selects_names_by_their_parts(name, wanted):
    assert matches(wanted, name)


@pytest.mark.parametrize("name", [NESTED, FLAT, SLASHES])
@pytest.mark.parametrize(
    "wanted", ["kernel", "c_attn", "*c_attn", "params", "*kernel_", "*.attn.k"]
)
def test_a_pattern_is_for_whole_names(name, wanted):
    assert not matches(wanted, name)


def test_a_name_as_jax_prints_it_selects_itself():
    for name in (NESTED, FLAT, SLASHES, "x", "model.layers[3].kernel.value", 'p["it\'s"]'):
        assert matches(name, name)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("*" * 10_000 + "z", NESTED),
        ("*a" * 2000 + "z", "a" * 20_000),
        ("?*" * 2000 + "z", "a" * 5000),
    ],
)
def test_a_pattern_takes_no_longer_than_it_is(wanted, name):
    start = time.monotonic()
    assert not matches(wanted, name)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("*c_atn*kernel", f"; did you mean {NESTED!r}?"),
        ("bach*", "; did you mean 'batch'?"),
        ("*kernl", f"; did you mean {NESTED!r}?"),
        ("qqqqqq", ""),
    ],
)
def test_the_nearest_names_are_suggested(wanted, hint):
    assert nearest(wanted, [NESTED, "batch"]) == hint


def test_a_pattern_that_matches_nothing_says_which_names_are_near():
    with pytest.raises(pt.UnknownNameError) as error:
        planner()(
            lambda params, x: x @ params["mlp.up.weight"],
            {"mlp.up.weight": array(8, 8)},
            array(8, 8),
            mesh="x=2",
            tactics=[pt.ManualPartition({"*upp*weight": 0}, axis="x")],
        )
    assert "did you mean \"params['mlp.up.weight']\"?" in str(error.value)


def test_indices_are_written_once():
    assert pattern(NESTED) == "params['h'][*].attn['c_attn']['kernel']"
    assert pattern(FLAT) == "params['h.*.attn.c_attn.kernel']"
    names = [f"w['l.{n}.k'][{n}]" for n in range(6)]
    assert shared_pattern(names[:1]) == names[0]
    assert shared_pattern(names) == "w['l.*.k'][*]"
    assert shared_pattern(names[:3], False) == "w['l.0,1,2.k'][0,1,2]"
    assert shared_pattern(names, False) == "w['l.0,1,2,3,....k'][0,1,2,3,...]"


# ------------------------------------------------------------------- in ready-made tactics

LAYERS, WIDTH, HIDDEN = 2, 16, 64
SHAPES = {"gate_proj": (HIDDEN, WIDTH), "up_proj": (HIDDEN, WIDTH), "down_proj": (WIDTH, HIDDEN)}


def nested(make):
    layer = lambda: {"mlp": {name: {"weight": make(*s)} for name, s in SHAPES.items()}}  # noqa: E731
    return {"layers": [layer() for _ in range(LAYERS)], "lm_head": {"weight": make(32, WIDTH)}}


def flat(make, separator):
    found = {
        separator.join(("layers", str(n), "mlp", name, "weight")): make(*shape)
        for n in range(LAYERS)
        for name, shape in SHAPES.items()
    }
    return {**found, f"lm_head{separator}weight": make(32, WIDTH)}


def forward(weight, x):
    for n in range(LAYERS):
        up = jax.nn.silu(x @ weight(n, "gate_proj").T) * (x @ weight(n, "up_proj").T)
        x = x + up @ weight(n, "down_proj").T
    return x


def of_nested(params, x):
    x = forward(lambda n, name: params["layers"][n]["mlp"][name]["weight"], x)
    return (x @ params["lm_head"]["weight"].T).sum()


def of_flat(separator):
    def loss(params, x):
        weight = lambda n, name: params[separator.join(("layers", str(n), "mlp", name, "weight"))]  # noqa: E731
        return (forward(weight, x) @ params[f"lm_head{separator}weight"].T).sum()

    return loss


def step(loss):
    def run(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return run


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize(
    "tactics",
    [
        [pt.Megatron("x")],
        [pt.DataParallel("x")],
        [pt.DataParallel("x"), pt.FullyShardedDataParallel("x")],
        [pt.ManualPartition({"*up_proj*weight": 0}, axis="x")],
    ],
    ids=lambda tactics: "+".join(type(tactic).__name__ for tactic in tactics),
)
def test_ready_made_tactics_know_flat_names(separator, tactics):
    """They shard the same as if the parameters were nested, and cost the same."""
    plan = planner(mesh="x=4", tactics=tactics)
    theirs = plan(step(of_nested), nested(array), array(8, WIDTH))
    ours = plan(step(of_flat(separator)), flat(array, separator), array(8, WIDTH))
    assert ours.estimate.step_time == theirs.estimate.step_time
    params, of_nested_params = ours.in_shardings[0], theirs.in_shardings[0]
    for n in range(LAYERS):
        for name in SHAPES:
            key = separator.join(("layers", str(n), "mlp", name, "weight"))
            assert params[key] == of_nested_params["layers"][n]["mlp"][name]["weight"]
    assert any(any(spec) for spec in params.values()) or "DataParallel" in tactics[0].name


def test_a_report_does_not_say_where_earlier_tactics_have_the_axis():
    """That is how tactics compose; it is in the history, for who asks."""
    tactics = [pt.DataParallel("x"), pt.FullyShardedDataParallel("x")]
    plan = planner(mesh="x=4", tactics=tactics)(step(of_nested), nested(array), array(8, WIDTH))
    assert any("already used there" in str(each) for each in plan.history[1].blocked)
    assert "already used there" not in str(plan)


def test_a_report_says_so_if_it_is_why_nothing_was_tiled():
    plan = planner(mesh="x=2")(jnp.sin, array(8, 8)).then(
        pt.ManualPartition({"x": 0}, axis="x"), pt.ManualPartition({"x": 1}, axis="x")
    )
    assert "x is already used there" in str(plan)


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (["layers[0]['w']", "layers[1]['w']"], "layers[*]['w']"),
        (["p['Block_0']['kernel']", "p['Block_1']['kernel']"], "p['Block_*']['kernel']"),
        (["p['mlp/~/linear_0']['w']", "p['mlp/~/linear_1']['w']"], "p['mlp/~/linear_*']['w']"),
    ],
)
def test_names_that_differ_in_indices_are_written_once(names, shared):
    assert {pattern(name) for name in names} == {shared}
    assert shared_pattern(names) == shared


def test_a_file_of_an_installed_package_is_told_from_its_package_on():
    assert relative("/home/me/.venv/lib/python3.11/site-packages/flax/nnx/nn/linear.py") == (
        "flax/nnx/nn/linear.py"
    )
