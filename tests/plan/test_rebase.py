"""A saved plan for a program or a mesh that has changed: what is decided again, and what is not."""

import jax
import jax.numpy as jnp
import msgspec
import pytest
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, planner, runs_as_the_original
from partita import models
from partita.frontend.calling import Marked
from partita.planning.prepare import prepare, targeted
from partita.saved.anchors import aligned
from partita.saved.rebase import rebase
from partita.saved.restore import read_plan
from partita.saved.schema import AnchorRow, decode, encode

MESH = "data=4,model=2"
ROWS = pt.ManualPartition({"x": 0}, axis="data")
HIDDEN = pt.ManualPartition({"w1": 1}, axis="model")


def feed_forward(w1, w2, x):
    return jax.nn.relu(x @ w1) @ w2


ARGS = array(64, 128), array(128, 64), array(32, 64)
planned = planner(mesh=MESH)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.json"
    planned(feed_forward, *ARGS, tactics=[ROWS, HIDDEN]).save(path)
    return path


def rebased(file, fn, *args, **options):
    return pt.load(file, fn, *args, rebase=True, **options)


def shardings(plan):
    names = plan.program.argument_names
    return dict(zip(names, map(tuple, jax.tree.leaves(plan.in_shardings)), strict=True))


def lost(plan):
    return [str(each) for each in plan.not_kept]


# ------------------------------------------------------------------------------------- kept


def test_the_program_of_the_file_needs_no_rebase(file):
    kept, plan = pt.load(file, feed_forward, *ARGS), rebased(file, feed_forward, *ARGS)
    assert (plan.assignment, plan.history) == (kept.assignment, kept.history)


def test_new_arguments_and_operations_are_reached_by_propagation(file):
    def gated(w1, gate, w2, x):
        return (jax.nn.relu(x @ w1) * jnp.tanh(x @ gate)) @ w2

    plan = rebased(file, gated, ARGS[0], ARGS[0], *ARGS[1:])
    assert shardings(plan) == {
        "w1": (None, "model"),
        "gate": (None, "model"),
        "w2": ("model",),
        "x": ("data",),
    }
    assert lost(plan) == []
    assert [entry.name for entry in plan.history] == [ROWS.name, HIDDEN.name]


def test_it_is_what_the_same_tactics_decide_of_the_new_program(file):
    def deeper(w1, w2, x):
        return jnp.tanh(feed_forward(w1, w2, x)).sum(0)

    sizes = array(64, 256), array(256, 64), array(64, 64)
    plan, anew = rebased(file, deeper, *sizes), planned(deeper, *sizes, tactics=[ROWS, HIDDEN])
    assert plan.assignment == anew.assignment
    assert plan.estimate == anew.estimate


def test_it_runs_and_is_saved_as_any_other(file, tmp_path):
    def scaled(w1, w2, x):
        return 2 * feed_forward(w1, w2, x)

    plan = rebased(file, scaled, *ARGS)
    runs_as_the_original(plan, *(jnp.ones(a.shape) for a in ARGS))
    plan.save(tmp_path / "again.json")
    assert str(pt.load(tmp_path / "again.json", scaled, *ARGS)) == str(plan)


@pytest.mark.parametrize("mesh", ["data=2,model=4", "data=2,model=2", "model=2,data=4"])
def test_another_mesh_with_the_same_axes(mesh, file):
    plan = rebased(file, feed_forward, *ARGS, mesh=mesh)
    assert shardings(plan) == {"w1": (None, "model"), "w2": ("model",), "x": ("data",)}
    assert str(plan.mesh) == mesh
    assert lost(plan) == []


SEARCHES = {
    "by colors": [pt.AutomaticPartition(budget=60)],
    "after tactics": [ROWS, pt.AutomaticPartition(axes=["model"], budget=60)],
    "with pins": [ROWS, pt.AutomaticPartition(axes=["model"], budget=60, pinned=["w2"])],
    "ready-made": [pt.DataParallel("data"), pt.ZeRO(3, "data", patterns=["w?"], optimizer=[])],
}


@pytest.mark.parametrize("name", SEARCHES)
def test_decisions_of_a_search_are_found_again_where_colors_have_other_numbers(name, tmp_path):
    big = array(1024, 4096), array(4096, 1024), array(256, 1024)
    was = planned(feed_forward, *big, tactics=SEARCHES[name])
    was.save(tmp_path / "plan.json")

    def behind(scale, shift, w1, w2, x):
        return feed_forward(w1, w2, x) * scale + shift

    plan = rebased(tmp_path / "plan.json", behind, array(1024), array(1024), *big)
    assert shardings(was).items() <= shardings(plan).items()
    assert lost(plan) == []
    assert plan.history[-1].decisions == was.history[-1].decisions


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A plan of a GPT by a search that has changed single classes at its end, and its file."""
    tactics = [pt.AutomaticPartition(budget=300)]
    plan = planned(*_gpt(layers=1), tactics=tactics, donate_argnums=0, memory="700KiB")
    path = tmp_path_factory.mktemp("searched") / "plan.json"
    plan.save(path)
    return plan, path


def _gpt(layers):
    model = models.build("gpt-tiny", layers=layers)
    return model.fn, *model.args


def test_of_the_same_program_all_is_decided_again(searched):
    plan, path = searched
    saved, (fn, *args) = read_plan(path), _gpt(layers=1)
    marked = Marked.of(donate_argnums=0)
    prepared = prepare(fn, tuple(args), {}, saved.mesh, targeted("tpu_v5e", "700KiB"), marked)
    done, not_kept = rebase(saved, prepared)
    assert done.stage.assignment == plan.assignment
    assert not_kept == ()


def test_more_layers_are_sharded_as_those_that_there_were(searched):
    plan, path = searched
    more = rebased(path, *_gpt(layers=2))
    assert shardings(plan).items() <= shardings(more).items()
    layers = [f"['layers'][{number}]" for number in (0, 1)]
    first, second = (
        {name.replace(layer, ""): v for name, v in shardings(more).items() if layer in name}
        for layer in layers
    )
    assert first == second


# --------------------------------------------------------------------------------- not kept


def test_an_argument_that_is_gone(file):
    plan = rebased(file, lambda w2, x: x @ w2.T, *ARGS[1:])
    name = plan.program.name
    assert lost(plan)[:1] == [f"{HIDDEN.name}: w1 dim 1 -> model: {name} has no w1"]
    assert "w1 as (-, model): it is gone" in lost(plan)
    assert f"refused w1 dim 1 -> model: not kept: {name} has no w1" in str(plan)


def test_a_size_that_does_not_divide(file):
    odd = array(64, 129), array(129, 64), array(32, 64)
    (w1, w2) = lost(rebased(file, feed_forward, *odd))
    assert w1 == "w1 as (-, model), now replicated: 129 is not divisible by model=2"
    assert w2.startswith("w2 as (model), now replicated: ")


def test_a_dimension_that_is_not_there(file):
    plan = rebased(file, lambda w1, w2, x: x @ w2.T + w1, array(128), *ARGS[1:])
    assert lost(plan)[0] == f"{HIDDEN.name}: w1 dim 1 -> model: it is f32[128], of 1 dimensions"


def test_an_axis_that_the_mesh_does_not_have(file):
    plan = rebased(file, feed_forward, *ARGS, mesh="data=8")
    assert shardings(plan) == {"w1": (), "w2": (), "x": ("data",)}
    why = "everything along model: mesh data=8 has no axis model"
    assert lost(plan)[0] == f"{HIDDEN.name}: {why}"


def test_a_color_that_only_a_result_shows(tmp_path):
    rows = array(64, 512)
    search = pt.AutomaticPartition(axes=["model"], budget=60, allow={"result": 1})
    was = planned(lambda x: jnp.tanh(x[:, :1] * jnp.ones(8192)), rows, tactics=[search])
    assert was.out_shardings == P(None, "model")
    was.save(tmp_path / "plan.json")
    plan = rebased(tmp_path / "plan.json", lambda x: jnp.sin(x @ jnp.ones((512, 4096))), rows)
    assert plan.out_shardings == P(None, "model")


def test_a_color_that_is_gone(tmp_path):
    big = array(1024, 4096), array(4096, 1024), array(256, 1024)
    search = pt.AutomaticPartition(axes=["model"], budget=60, allow={"w1": 1})
    planned(feed_forward, *big, tactics=[ROWS, search]).save(tmp_path / "plan.json")
    plan = rebased(tmp_path / "plan.json", lambda x: x * 2, big[2])
    assert any(text.endswith("no such dimension is left") for text in lost(plan))


def test_without_rebase_it_is_refused_with_a_hint(file):
    with pytest.raises(pt.FileError, match="rebase=True, which keeps what still fits"):
        pt.load(file, lambda w1, w2, x: x, *ARGS)
    with pytest.raises(pt.OptionError, match="rebase=1: expected True or False"):
        pt.load(file, feed_forward, *ARGS, rebase=1)


def test_a_file_that_lists_more_operations_than_there_can_be_is_refused(file):
    table = decode(file.read_bytes(), file)
    listed = msgspec.structs.replace(table.program.operations, order="999999999999*0")
    program = msgspec.structs.replace(table.program, operations=listed)
    huge = msgspec.structs.replace(table, program=program)
    color = {"decision": "shard_color", "color": 0, "axis": "data"}
    entry = msgspec.structs.replace(huge.history[0], decided=(color,))
    anchors = (AnchorRow((("op", 0, 0),), color=0),)
    forged = msgspec.structs.replace(huge, history=(entry,), anchors=anchors)
    file.write_bytes(encode(forged))
    with pytest.raises(
        pt.FileError, match=r"cannot be rebased: there are 9{12} operations or values"
    ):
        rebased(file, lambda w1, w2, x: x @ w2.T, *ARGS)


def test_operations_are_aligned_in_order():
    assert aligned("abcd", "axbcd") == {0: 0, 1: 2, 2: 3, 3: 4}
    assert aligned("abc", "a") == {}
