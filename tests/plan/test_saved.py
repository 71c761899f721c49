"""Plans are kept: saved, loaded again without a search, refused where they do not fit."""

import contextlib
import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import partita as pt
from checks import array, planner
from partita import models
from partita.cost.devices.files import FOLDER
from partita.decisions.layouts import from_runs, runs
from partita.saved.schema import PlanTable, encode
from partita.stablehlo.rules import registry as custom

MESH = "data=2,model=4"
BATCH = pt.ManualPartition({"x": 0}, axis="data")
HIDDEN = pt.ManualPartition({"*w1*": 1}, axis="model")
SEARCH = pt.AutomaticPartition(axes=["model"], budget=30)


def mlp(w1, w2, x):
    return (jax.nn.relu(x @ w1) @ w2).sum()


ARGS = array(16, 32), array(32, 16), array(8, 16)
FEATURES = np.arange(64.0, dtype=np.float32).reshape(16, 4)


def step(params, x):
    loss, grads = jax.value_and_grad(lambda p: ((x @ p["w1"]) ** 2).mean())(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def layers(w1, x):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, w1)


def drops(key, x):
    return x * jax.random.bernoulli(key, 0.5, x.shape)


def closes_over(x):
    return x @ FEATURES


def by_keyword(x, *, w1):
    return x @ w1


PROGRAMS = {
    "a function": (mlp, ARGS, {}, [BATCH, HIDDEN, SEARCH], {}),
    "a train step": (
        step,
        ({"w1": array(16, 32)}, ARGS[2]),
        {},
        [BATCH, HIDDEN],
        {"donate_argnums": 0},
    ),
    "a loop": (layers, (array(3, 16, 16), ARGS[2]), {}, [BATCH], {}),
    "random keys": (drops, (jax.random.key(0), ARGS[2]), {}, [BATCH], {}),
    "hoisted constants": (closes_over, (ARGS[2],), {}, [BATCH], {"hoist_constants": 64}),
    "keywords": (by_keyword, (ARGS[2],), {"w1": array(16, 32)}, [BATCH, HIDDEN], {}),
    "pins": (mlp, ARGS, {}, [pt.ManualPartition({"w2": "replicate"}, axis="model"), HIDDEN], {}),
    "no tactic": (mlp, ARGS, {}, [], {}),
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "plan.json"


def planned(fn=mlp, args=ARGS, kwargs=None, tactics=(BATCH, HIDDEN), **options):
    return planner(mesh=MESH, tactics=tactics)(fn, *args, **(kwargs or {}), **options)


close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def concrete(tree):
    key = jax.random.key(1)
    return jax.tree.map(
        lambda leaf: (
            leaf
            if not isinstance(leaf, jax.ShapeDtypeStruct)
            else jax.random.normal(key, leaf.shape)
        ),
        tree,
    )


def refusal(file, fn, *args, **options):
    with pytest.raises(pt.PartitaError) as caught:
        pt.load(file, fn, *args, **options)
    return str(caught.value)


# -------------------------------------------------------------------------------- loaded again


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_is_taken_up_as_it_was(name, file):
    fn, args, kwargs, tactics, options = PROGRAMS[name]
    made = planned(fn, args, kwargs, tactics, **options)
    made.save(file)
    kept = pt.load(file, fn, *args, **kwargs)
    assert kept.assignment == made.assignment
    assert kept.history == made.history
    assert kept.estimate == made.estimate
    assert kept.collectives == made.collectives
    assert kept.donate_argnums == made.donate_argnums
    assert str(kept) == str(made)
    written = file.read_bytes()
    kept.save(file)
    assert file.read_bytes() == written


@pytest.mark.parametrize("name", ["a train step", "random keys", "hoisted constants", "keywords"])
def test_a_plan_that_is_taken_up_runs(name, file):
    fn, args, kwargs, tactics, options = PROGRAMS[name]
    planned(fn, args, kwargs, tactics, **options).save(file)
    args, kwargs = concrete(args), concrete(kwargs)
    wanted = fn(*args, **kwargs)
    got = pt.load(file, fn, *args, **kwargs).jit(donate_argnums=())(*args, **kwargs)
    jax.tree.map(close, got, wanted)


def test_tactics_go_on_from_a_plan_that_is_taken_up(file):
    planned(tactics=[BATCH]).save(file)
    further = pt.load(file, mlp, *ARGS).then(HIDDEN)
    assert further.history == planned().history
    assert further.collectives == planned().collectives


def test_a_plan_is_loaded_by_its_class_too(file):
    planned().save(file)
    assert pt.Plan.load(file, mlp, *ARGS).assignment == pt.load(file, mlp, *ARGS).assignment


def test_no_tactic_runs(file, monkeypatch):
    planned(tactics=[BATCH, SEARCH]).save(file)
    for tactic in (pt.ManualPartition, pt.AutomaticPartition):
        monkeypatch.setattr(tactic, "apply", lambda self, stage: pytest.fail("a tactic ran"))
    pt.load(file, mlp, *ARGS)


def test_a_plan_can_be_priced_for_other_hardware(file):
    made = planned()
    made.save(file)
    other = pt.load(file, mlp, *ARGS, hardware="h100")
    assert other.hardware.name == "h100"
    assert other.estimate == planned(hardware="h100").estimate
    assert other.history == planned(hardware="h100").history
    assert pt.load(file, mlp, *ARGS, memory="1KiB").estimate.capacity == 1024


def test_memory_that_the_plan_may_use_is_kept(file):
    planned(memory="1MiB").save(file)
    assert pt.load(file, mlp, *ARGS).estimate.capacity == 2**20


def test_hardware_from_a_file_of_the_user_has_to_be_given_again(file, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text((FOLDER / "tpu_v5e.toml").read_text())
    planned(hardware=str(mine)).save(file)
    assert "hardware 'mine', which is no device type that partita knows; say hardware=" in refusal(
        file, mlp, *ARGS
    )
    assert pt.load(file, mlp, *ARGS, hardware=str(mine)).hardware.name == "mine"


def test_a_program_from_a_file(file, tmp_path):
    program = tmp_path / "step.mlir"
    fn, args, _, tactics, _ = PROGRAMS["a train step"]
    text = jax.jit(fn, donate_argnums=0).lower(*args).compiler_ir("stablehlo")
    program.write_text(text.operation.get_asm(enable_debug_info=True))
    made = pt.plan(program, mesh=MESH, hardware="tpu_v5e", tactics=tactics)
    made.save(file)
    assert made.donate_argnums
    for again in (program, pt.read(program)):
        kept = pt.load(file, again)
        assert str(kept) == str(made)
        assert kept.program.aliases == made.program.aliases


def test_jit_takes_a_plan_up(file):
    planned(step, ({"w1": array(16, 32)}, ARGS[2]), donate_argnums=0).save(file)
    args = concrete(({"w1": array(16, 32)}, ARGS[2]))
    wanted = step(*args)
    run = pt.jit(step, saved=file)
    got = run(*args)
    jax.tree.map(close, got, wanted)
    (kept,) = run.plans.values()
    assert [entry.name for entry in kept.history] == [BATCH.name, HIDDEN.name]
    with pytest.raises(pt.FileError, match="argument x was f32"):
        run(concrete({"w1": array(16, 32)}), jnp.ones((4, 16)))


def test_jit_needs_a_mesh_or_a_plan_and_no_tactics_with_one(file):
    with pytest.raises(pt.MeshError, match=r"mesh=.*saved="):
        pt.jit(mlp)
    with pytest.raises(pt.TacticError, match="leave tactics= out"):
        pt.jit(mlp, saved=file, tactics=[BATCH])


def test_a_file_grows_little_with_the_program(file, tmp_path):
    sizes = {}
    for count in (1, 3):
        model = models.build("gpt-tiny", layers=count)
        made = planned(
            model.fn,
            model.args,
            tactics=[pt.ManualPartition({"batch*": 0}, axis="data")],
        )
        made.save(file)
        sizes[len(made.program.operations)] = file.stat().st_size
    (few, small), (many, large) = sorted(sizes.items())
    assert (large - small) / (many - few) < 40  # bytes for each operation more


def test_networks_of_the_mesh_are_kept(file):
    made = planned(mesh="data=2@dcn,model=4@ici")
    made.save(file)
    kept = pt.load(file, mlp, *ARGS)
    assert str(kept.mesh) == "data=2@dcn,model=4@ici"
    assert kept.estimate == made.estimate
    moved = pt.load(file, mlp, *ARGS, mesh="data=2@ici,model=4@dcn")
    assert moved.estimate == planned(mesh="data=2@ici,model=4@dcn").estimate != made.estimate


# ----------------------------------------------------------------------------------- other programs


def test_arguments_that_differ_are_listed(file):
    planned().save(file)

    def wider(w1, w3, x, y):
        return (jax.nn.relu(x @ w1) @ w3).sum() + y

    text = refusal(file, wider, array(16, 64), array(64, 16), ARGS[2], array())
    assert f"the plan in {str(file)!r} is for another program than wider" in text
    for line in (
        "argument w2 (f32[32,16]) is gone",
        "argument w3 (f32[64,16]) is new",
        "argument y (f32[]) is new",
        "argument w1 was f32[16,32], now f32[16,64]",
        "plan again, and save that",
    ):
        assert line in text


def test_the_first_operation_that_differs_is_shown_with_its_line(file):
    planned().save(file)

    def other(w1, w2, x):
        hidden = x @ w1
        hidden = jnp.tanh(hidden)
        return (hidden @ w2).sum()

    text = refusal(file, other, *ARGS)
    line = other.__code__.co_firstlineno + 2
    assert "line 4 of its StableHLO is the first that differs; it had 12 lines, now 10" in text
    assert "was % = stablehlo.constant dense<0.000000e+00> : tensor<f32>\n" in text
    assert "was % = stablehlo.maximum %, % : tensor<8x32xf32>\n" in text
    assert re.search(rf"now % = stablehlo.tanh .*  \(\S+test_saved.py:{line}\)\n", text)


def test_operations_that_read_other_values_are_shown(file):
    planned(lambda w1, w2, x: w1 * w1 + w2.T, tactics=[]).save(file)
    text = refusal(file, lambda w1, w2, x: w1 * w2.T + w2.T, *ARGS)
    assert "is the first that differs" in text
    planned(lambda w1, w2, x: w1 * 2 - w1, tactics=[]).save(file)
    changed = lambda w1, w2, x: w1 - w1 * 2  # noqa: E731
    text = refusal(file, changed, *ARGS)
    assert f"test_saved.py:{changed.__code__.co_firstlineno}): reads other values" in text


@pytest.mark.parametrize(
    ("fn", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x @ FEATURES, lambda x: x @ (FEATURES + 1)),
        (lambda x: x[:4], lambda x: x[4:]),
        (lambda x: x.sum(0), lambda x: x.sum(0).astype(jnp.bfloat16)),
        (lambda x: jnp.dot(x, x.T), lambda x: jnp.dot(x, x.T, precision="highest")),
    ],
    ids=["a constant", "an array", "an attribute", "a type", "a precision"],
)
def test_every_change_of_the_program_is_noticed(fn, other, file):
    planned(fn, (ARGS[2],), tactics=[]).save(file)
    assert "is for another program" in refusal(file, other, ARGS[2])


def test_hoisted_constants_have_to_hold_the_same(file):
    fn = lambda features: lambda x: x @ features  # noqa: E731
    planned(fn(FEATURES), (ARGS[2],), tactics=[], hoist_constants=64).save(file)
    pt.load(file, fn(FEATURES.copy()), ARGS[2])
    assert "constants[0] holds other numbers" in refusal(file, fn(FEATURES + 1), ARGS[2])


def test_donation_has_to_be_the_same(file):
    fn, args, *_ = PROGRAMS["a train step"]
    planned(fn, args).save(file)
    assert "donated arguments: were none, now (0,)" in refusal(file, fn, *args, donate_argnums=0)
    assert "donated arguments: were none, now (0,)" in refusal(
        file, jax.jit(fn, donate_argnums=0), *args
    )


def test_rules_have_to_be_the_same(file, monkeypatch):
    monkeypatch.setattr(custom, "RULES", {})
    call = lambda x: jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)  # noqa: E731
    planned(call, (ARGS[2],), tactics=[]).save(file)
    pt.load(file, call, ARGS[2])
    pt.register_rule("mine", "a b -> a b")
    assert "the sharding rules of its operations" in refusal(file, call, ARGS[2])


def test_the_mesh_is_that_of_the_plan(file):
    planned().save(file)
    assert pt.load(file, mlp, *ARGS, mesh={"data": 2, "model": 4}).mesh == pt.Mesh.of(MESH)
    text = refusal(file, mlp, *ARGS, mesh="data=8")
    assert "is for mesh data=2,model=4, the mesh given is data=8" in text


# ------------------------------------------------------------------------------------ damaged files


def edited(file, change, summed=True):
    """Changes the JSON of a plan file; with `summed`, gives it the checksum of that."""
    raw = json.loads(file.read_text())
    raw = change(raw) or raw
    if summed:
        file.write_bytes(encode(msgspec.convert(raw, PlanTable)))
    else:
        file.write_text(json.dumps(raw))


DAMAGED = {
    "empty": (b"", "truncated"),
    "no JSON": (b"module {}", "malformed"),
    "another JSON": (b"[1, 2]", "`partita_plan`"),
    "not text": (b"\xff\xfe{}", "can be read"),
    "nested": (b"[" * 100_000, "nested too deeply"),
    "newer": (b'{"partita_plan": 6, "more": 1}', "is of format 6.*use a newer partita"),
    "a huge version": (b'{"partita_plan": 1' + b"0" * 9999 + b"}", "out of range"),
    "not a number": (b'{"partita_plan": NaN}', "malformed"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_plan_is_refused(name, file):
    data, message = DAMAGED[name]
    file.write_bytes(data)
    with pytest.raises(pt.FileError, match=message):
        pt.load(file, mlp, *ARGS)


def test_a_missing_file(file):
    with pytest.raises(pt.FileError, match=r"cannot read the plan file .*No such file"):
        pt.load(file, mlp, *ARGS)


def test_an_edited_file_is_refused(file):
    planned().save(file)
    edited(file, lambda raw: raw.update(capacity=1), summed=False)
    assert "its checksum is that of other contents" in refusal(file, mlp, *ARGS)


def test_the_layout_of_the_text_does_not_count(file):
    made = planned()
    made.save(file)
    edited(file, lambda raw: dict(reversed(raw.items())), summed=False)
    assert str(pt.load(file, mlp, *ARGS)) == str(made)


def decided(number=0, **fields):
    """Changes fields of a decision of the first tactic."""
    return lambda raw: raw["history"][0]["decided"][number].update(fields)


def request(**fields):
    return lambda raw: raw["history"][0]["decided"][0]["requests"][0].update(fields)


LATER = {
    "an axis that is not there": (decided(axis="rows"), "no axis 'rows'"),
    "a value that is not there": (request(value=9999), "there is no value 9999"),
    "a dimension that is not there": (request(dims=[2]), "no dimension 2 of a value"),
    "a role that is not there": (decided(roles=[[0, 7]]), "there is no role 7 of a conflict 0"),
    "a field that is not there": (decided(axis=None), "a decision cannot be read"),
    "another kind of decision": (
        decided(decision="guess"),
        "one of gather_again, group, keep_given, layouts",
    ),
    "other shardings": (
        lambda raw: raw["program"]["arguments"][0].update(sharding=["data"]),
        "are not those that its tactics led to",
    ),
    "a size that does not divide": (
        lambda raw: raw["mesh"].update(data=3),
        "are not those that its tactics led to",
    ),
    "other layouts inside": (
        lambda raw: raw.update(layouts="0" * 64),
        "lead to other layouts inside than they did in partita",
    ),
    "other lines": (
        lambda raw: raw["program"]["text"]["kinds"].__setitem__(1, "no"),
        "lists other operations",
    ),
    "a mesh without axes": (lambda raw: raw["mesh"].clear(), "a mesh needs at least one axis"),
}


@pytest.mark.parametrize("name", LATER)
def test_what_is_not_possible_is_refused(name, file):
    change, message = LATER[name]
    planned(tactics=[BATCH]).save(file)
    edited(file, change)
    with pytest.raises(pt.FileError, match=message):
        pt.load(file, mlp, *ARGS)


# ------------------------------------------------------------------------------ layouts alone


@dataclasses.dataclass(frozen=True)
class Computed:
    """A user's tactic that returns layouts, and no decisions."""

    tactic: pt.ManualPartition
    name: str = "Computed"

    def apply(self, stage):
        return pt.Outcome(self.tactic.apply(stage).assignment)


def test_what_no_decision_leads_to_is_kept_as_layouts(file):
    made = planned(tactics=[Computed(BATCH), HIDDEN])
    made.save(file)
    (row,) = json.loads(file.read_text())["history"][0]["decided"]
    assert row["decision"] == "layouts"
    assert pt.load(file, mlp, *ARGS).assignment == made.assignment


def layout(**fields):
    return lambda row: row["layouts"][0].update(fields)


NOT_LAYOUTS = {
    "an axis twice": (layout(axes=[["data"], ["data"]]), "uses an axis twice"),
    "an axis that is not there": (layout(axes=[["rows"]]), "no axis 'rows'"),
    "too many dimensions": (layout(axes=[[]] * 9 + [["data"]]), "is sharded along 10"),
    "a number that is not there": (lambda row: row.update(values="99"), "no number 99"),
    "no runs": (lambda row: row.update(operations="1*x"), "is no run"),
    "a huge run": (lambda row: row.update(operations="999999999999*0"), "there are more than"),
    "too few": (lambda row: row.update(operations="0"), "there are 1, and should be"),
    "an operation with pins": (layout(pinned=["model"]), "only values can"),
}


@pytest.mark.parametrize("name", NOT_LAYOUTS)
def test_layouts_that_are_not_possible_are_refused(name, file):
    change, message = NOT_LAYOUTS[name]
    planned(tactics=[Computed(BATCH)]).save(file)
    edited(file, lambda raw: change(raw["history"][0]["decided"][0]))
    with pytest.raises(pt.FileError, match=message):
        pt.load(file, mlp, *ARGS)


def relaid(file, kind, index, count, axes):
    """Gives an operation or a value another layout in a file that says layouts."""

    def change(raw):
        row = raw["history"][0]["decided"][0]
        row["layouts"].append({"axes": axes})
        codes = from_runs(row[kind], count, 99, "")
        codes[index] = len(row["layouts"]) - 1
        row[kind] = runs(codes)

    edited(file, change)


def test_a_factor_that_cannot_be_split_is_refused(file):
    args = (array(8, 8),)
    fn = lambda x: jnp.sort(x, axis=0)  # noqa: E731
    made = planned(fn, args, tactics=[Computed(pt.ManualPartition({"x": 1}, axis="data"))])
    made.save(file)
    op = next(op for op in made.program.operations if op.short == "sort")
    blocked = [factor.kind == "blocked" for factor in op.rule.factors]
    assert any(blocked)
    axes = [["data"] if b else [] for b in blocked]
    relaid(file, "operations", op.index, len(made.program.operations), axes)
    assert "cannot be sharded: sort" in refusal(file, fn, *args)


def test_a_donated_argument_is_split_like_the_result_in_its_buffer(file):
    fn, args, _, _, options = PROGRAMS["a train step"]
    made = planned(fn, args, tactics=[Computed(HIDDEN)], **options)
    made.save(file)
    relaid(file, "values", made.program.arguments[0], len(made.program.values), [])
    assert "takes over the buffer of params['w1'], and is sharded otherwise" in refusal(
        file, fn, *args
    )


@given(st.lists(st.none() | st.integers(0, 9)))
def test_runs_say_what_they_stand_for(codes):
    assert from_runs(runs(codes), len(codes), 10, "") == codes


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.sampled_from([2**53, 2**64, 10**400, -1.5, 1e308, 1e-320]),
    st.sampled_from(["", "data", "model", "3*0", "-", "*", "9" * 40, "\x1b[31m", "0" * 64]),
    st.lists(st.sampled_from(["data", "model", 0, None]), max_size=3),
    st.just({}),
)


def nodes(value, path=()):
    """The path of everything in a JSON value."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from nodes(item, (*path, key))


def mutated(draw, raw):
    """Drops, replaces, copies or inserts some of a JSON value."""
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from([p for p in nodes(raw) if p]))
        inside = functools.reduce(lambda node, key: node[key], path, raw)
        what = draw(st.sampled_from(["drop", "replace", "copy", "insert"]))
        other = draw(st.sampled_from(list(nodes(raw))))
        if what == "drop":
            del inside[last]
        elif what == "replace":
            inside[last] = draw(JUNK)
        elif what == "copy":
            found = functools.reduce(lambda node, key: node[key], other, raw)
            inside[last] = json.loads(json.dumps(found))
        elif isinstance(inside, list):
            inside.insert(last, draw(JUNK))
        else:
            inside[draw(st.sampled_from(["more", "data", "name"]))] = draw(JUNK)
    return raw


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A plan of a file program, so that nothing has to be traced: program, file, plan."""
    folder = tmp_path_factory.mktemp("kept")
    text = jax.jit(mlp).lower(*ARGS).compiler_ir("stablehlo")
    (folder / "mlp.mlir").write_text(text.operation.get_asm(enable_debug_info=True))
    module = pt.read(folder / "mlp.mlir")
    pin = pt.ManualPartition({"x": "replicate"}, axis="model")
    plan = pt.plan(module, mesh=MESH, hardware="tpu_v5e", tactics=[pin, BATCH, SEARCH])
    plan.save(folder / "plan.json")
    return module, (folder / "plan.json").read_text(), plan, folder / "mutated.json"


MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@MANY
@given(st.data())
def test_a_damaged_file_gives_the_plan_or_an_error_of_ours(kept, data):
    module, text, plan, file = kept
    if data.draw(st.booleans()):
        file.write_text(json.dumps(mutated(data.draw, json.loads(text))))
    else:
        raw = bytearray(text.encode())
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3)):
            raw[place] ^= data.draw(st.integers(1, 255))
        file.write_bytes(raw[: data.draw(st.integers(0, 2 * len(raw)))])
    try:
        loaded = pt.load(file, module)
    except pt.PartitaError:
        return
    assert (loaded.assignment, loaded.history) == (plan.assignment, plan.history)


@MANY
@given(st.data())
def test_a_forged_file_gives_a_plan_that_holds_together_or_an_error_of_ours(kept, data):
    module, text, _, file = kept
    raw = mutated(data.draw, json.loads(text))
    try:
        file.write_bytes(encode(msgspec.convert(raw, PlanTable)))
    except msgspec.ValidationError:
        file.write_text(json.dumps(raw))
    try:
        loaded = pt.load(file, module)
    except pt.PartitaError:
        return
    assert str(loaded) and str(loaded.spmd)
    loaded.save(file)
    assert pt.load(file, module).history == loaded.history


@settings(MANY, max_examples=60)
@given(st.data())
def test_a_forged_file_that_is_rebased_gives_a_plan_or_an_error_of_ours(kept, data):
    module, text, _, file = kept
    raw = mutated(data.draw, json.loads(text))
    with contextlib.suppress(msgspec.ValidationError):
        file.write_bytes(encode(msgspec.convert(raw, PlanTable)))
        with contextlib.suppress(pt.PartitaError):
            plan = pt.load(file, module, mesh="model=2,data=4", rebase=True)
            assert str(plan) and str(plan.spmd)
