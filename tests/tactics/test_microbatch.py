"""`Microbatch`: a step runs in parts, one after the other, with the results that it had at once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import partita as pt
from checks import array, numbers, runs_as_the_original
from partita import models
from partita.search import EnoughError

LAYERS, WIDTH, ROWS = 3, 16, 32


def example(key, params, tokens):
    """Mean loss of a small network with dropout and positions, layers unrolled."""
    x = params["embed"][tokens] + jnp.arange(tokens.shape[1])[None, :, None] / 8
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["w"]) + layer["b"]
        x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)
    return jnp.mean(x**2)


def scanned(key, params, tokens):
    """The same with its layers in a loop, each computed again in the backward pass."""
    x = params["embed"][tokens]

    @jax.checkpoint
    def block(x, layer):
        return jnp.tanh(x @ layer["w"]) + layer["b"], None

    return jnp.mean(jax.lax.scan(block, x, params["layers"])[0] ** 2)


TX = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3))


def step(loss, params, opt_state, tokens):
    """A train step; its gradients, too, large: clipping and AdamW would hide a wrong factor."""
    value, grads = jax.value_and_grad(functools.partial(loss, jax.random.key(3)))(params, tokens)
    updates, opt_state = TX.update(grads, opt_state, params)
    large = jax.tree.map(lambda g: 1000 * g, grads)
    return optax.apply_updates(params, updates), opt_state, value, large


def layer(*stack):
    return {"w": array(*stack, WIDTH, WIDTH), "b": array(*stack, WIDTH)}


def arguments(layers):
    params = {"embed": array(64, WIDTH), "layers": layers}
    tokens = jax.ShapeDtypeStruct((ROWS, 8), jnp.int32)
    return params, jax.eval_shape(TX.init, params), tokens


UNROLLED = functools.partial(step, example), arguments([layer()] * LAYERS)
SCANNED = functools.partial(step, scanned), arguments(layer(LAYERS))


def planned(case, *tactics, mesh="data=4,model=2", **options):
    fn, args = case
    return pt.plan(fn, *args, mesh=mesh, hardware="tpu_v5e", tactics=tactics, **options)


def concrete(case):
    params, _, tokens = case[1]
    leaves, tree = jax.tree.flatten(params)
    made = jax.tree.unflatten(tree, [numbers(*a.shape, seed=n) for n, a in enumerate(leaves)])
    return made, TX.init(made), jnp.arange(tokens.size).reshape(tokens.shape) * 7 % 64


@pytest.mark.parametrize("steps", [2, 4, 8])
@pytest.mark.parametrize("case", [UNROLLED, SCANNED], ids=["unrolled", "scanned"])
def test_it_computes_what_the_whole_step_does(case, steps):
    plan = planned(case, pt.Microbatch(steps), pt.DataParallel("data"))
    runs_as_the_original(plan, *concrete(case), tolerance=1e-5)


@pytest.mark.parametrize("case", [UNROLLED, SCANNED], ids=["unrolled", "scanned"])
@pytest.mark.parametrize(
    "tactics",
    [
        [pt.FullyShardedDataParallel("data")],
        [pt.DataParallel("data"), pt.ZeRO(2, "data")],
        [pt.DataParallel("data"), pt.ManualPartition({"*['w']": -1}, axis="model")],
        [pt.AutomaticPartition(budget=200)],
    ],
    ids=["fsdp", "zero", "tensor", "search"],
)
def test_any_tactics_partition_the_program_in_steps(case, tactics):
    plan = planned(case, pt.Microbatch(4), *tactics)
    runs_as_the_original(plan, *concrete(case), tolerance=1e-5)


@pytest.mark.parametrize("case", [UNROLLED, SCANNED], ids=["unrolled", "scanned"])
def test_gradients_are_reduced_once_after_the_last(case):
    whole, parts = (
        planned(case, *first, pt.DataParallel("data"), mesh="data=4").estimate.traffic
        for first in ([], [pt.Microbatch(4)])
    )
    assert {kind for kind, _ in parts} == {"all_reduce"}
    assert parts["all_reduce", ("data",)].bytes == whole["all_reduce", ("data",)].bytes
    assert parts["all_reduce", ("data",)].count <= whole["all_reduce", ("data",)].count


def test_activations_take_a_part_of_the_memory():
    def deep(w, x):
        for _ in range(20):
            x = jnp.tanh(x @ w)
        return jnp.mean(x)

    fn, args = jax.value_and_grad(deep), (array(64, 64), array(4096, 64))
    peaks = [
        pt.plan(
            fn, *args, mesh="data=2", hardware="tpu_v5e", tactics=[each, pt.DataParallel()]
        ).estimate.peak_memory
        for each in map(pt.Microbatch, (1, 2, 4, 8))
    ]
    for more, fewer in zip(peaks[1:], peaks, strict=False):
        assert more < 0.7 * fewer


def test_examples_stay_on_the_devices_that_have_them():
    plan = planned(UNROLLED, pt.Microbatch(2), pt.DataParallel("data"))
    kinds = {each.kind for each in plan.collectives}
    assert kinds == {"all_reduce"}


def test_sums_of_narrow_floats_are_carried_wide():
    def fn(w, x):
        return jnp.mean((x @ w).astype(jnp.float32) ** 2)

    narrow = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    plan = pt.plan(
        jax.grad(fn),
        narrow,
        jax.ShapeDtypeStruct((1024, 64), jnp.bfloat16),
        mesh="data=2",
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(64), pt.DataParallel()],
    )
    program = plan.program
    carried = [op for op in program.operations if op.short == "carry"]
    assert {program.values[op.results[0]].type.dtype for op in carried if op.rule.factors} == {
        "f32"
    }
    assert program.values[program.results[0]].type.dtype == "bf16"


def test_it_goes_first_wherever_it_stands():
    ahead = planned(UNROLLED, pt.Microbatch(2), pt.DataParallel("data"))
    behind = planned(UNROLLED, pt.DataParallel("data"), pt.Microbatch(2))
    assert ahead.assignment == behind.assignment
    assert behind.history[0].name == "Microbatch(2)"
    with pytest.raises(pt.TacticError, match="before all layouts"):
        planned(UNROLLED, pt.DataParallel("data")).then(pt.Microbatch(2))


def test_a_batch_norm_is_refused_with_the_lines_that_couple_examples():
    def fn(w, x):
        y = x @ w
        return jnp.sum((y - jnp.mean(y, axis=0)) ** 2)

    with pytest.raises(pt.TacticError, match=r"all examples together, and .* needs it for each"):
        pt.plan(
            jax.grad(fn),
            array(16, 16),
            array(32, 16),
            mesh="data=4",
            hardware="tpu_v5e",
            tactics=[pt.Microbatch(2), pt.DataParallel()],
        )


@pytest.mark.parametrize(
    ("tactic", "message"),
    [
        (pt.Microbatch(5), r"tokens has 32 examples, which 5 micro-batches do not divide"),
        (pt.Microbatch(2, "nothing*"), "nothing\\*"),
        (pt.Microbatch(2, {"tokens": "rows"}), "which dimension of an argument counts examples"),
        (pt.Microbatch(3, "params*layers*b*"), r"has 16 examples, which 3 micro-batches do not"),
    ],
)
def test_what_cannot_be_divided_is_named(tactic, message):
    with pytest.raises(pt.PartitaError, match=message):
        planned(UNROLLED, tactic, pt.DataParallel("data", "tokens"))


def test_steps_are_a_positive_number():
    with pytest.raises(pt.TacticError, match="steps"):
        pt.Microbatch(0)


def test_results_of_examples_are_stacked_in_order():
    def fn(w, x):
        return (
            jnp.cumsum(x @ w, axis=1),
            jnp.max(x),
            jnp.argmax(x, axis=1),
            jnp.arange(ROWS) + x[:, 0],
        )

    args = array(16, 16), array(ROWS, 16)
    plan = pt.plan(
        fn,
        *args,
        mesh="data=4",
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(4), pt.DataParallel()],
    )
    runs_as_the_original(plan, numbers(16, 16), numbers(ROWS, 16, seed=1), tolerance=1e-5)


def test_what_depends_on_the_positions_of_examples_is_theirs():
    def fn(w, x, first):
        y = x @ w * jnp.tri(ROWS, 8)
        return jnp.mean(jnp.where(jnp.arange(ROWS)[:, None] < first[:, None], y, 0))

    args = array(16, 8), array(ROWS, 16), jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    plan = pt.plan(
        jax.value_and_grad(fn),
        *args,
        mesh="data=4",
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(4, ["x", "first"]), pt.DataParallel("data", ["x", "first"])],
    )
    first = jnp.arange(ROWS) * 5 % ROWS
    runs_as_the_original(plan, numbers(16, 8), numbers(ROWS, 16, seed=1), first, tolerance=1e-5)


def test_a_constraint_on_examples_is_refused_by_its_line():
    def fn(w, x):
        return jnp.mean(pt.constrain(jnp.tanh(x @ w), jax.sharding.PartitionSpec("data")) ** 2)

    with pytest.raises(pt.TacticError, match=r"sharding_constraint at .*test_microbatch.py"):
        pt.plan(
            jax.value_and_grad(fn),
            array(16, 16),
            array(ROWS, 16),
            mesh="data=2",
            hardware="tpu_v5e",
            tactics=[pt.Microbatch(4), pt.DataParallel()],
        )


def test_a_plan_is_saved_loaded_and_rebased(tmp_path):
    fn, args = UNROLLED
    plan = planned(UNROLLED, pt.Microbatch(4), pt.FullyShardedDataParallel("data"))
    plan.save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", fn, *args)
    assert again.assignment == plan.assignment
    assert again.estimate == plan.estimate
    assert str(again.history[0].decided) == str(plan.history[0].decided)
    other = pt.load(tmp_path / "plan.json", fn, *args, mesh="data=8", rebase=True)
    assert other.history[0].name == "Microbatch(4)"
    assert other.history[0].context is not None
    assert other.not_kept == ()


def test_a_rebased_plan_says_that_micro_batches_no_longer_divide(tmp_path):
    fn, args = UNROLLED
    planned(UNROLLED, pt.Microbatch(4), pt.DataParallel("data")).save(tmp_path / "plan.json")
    fewer = (*args[:2], jax.ShapeDtypeStruct((6, 8), jnp.int32))
    other = pt.load(tmp_path / "plan.json", fn, *fewer, rebase=True)
    (lost,) = (each for each in other.not_kept if each.what == "Microbatch(4)")
    assert "6 examples" in lost.reason


def test_reports_and_explanations_know_it():
    plan = planned(UNROLLED, pt.Microbatch(4), pt.DataParallel("data"))
    assert "4 micro-batches of 8 examples" in str(plan)
    assert plan.verify().passed
    assert plan.timeline.intervals
    assert "history[1], DataParallel(data)" in str(plan.explain("tokens"))
    assert plan.check_numbers().ok


def test_meshes_are_tried_with_it():
    fn, args = UNROLLED
    plan = pt.plan(
        fn,
        *args,
        devices=4,
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(2), pt.AutomaticPartition(budget=40)],
    )
    assert plan.history[0].name == "Microbatch(2)"
    runs_as_the_original(plan, *concrete(UNROLLED), tolerance=1e-5)


# ----------------------------------------------------------------------------------- chosen steps


def test_a_search_takes_as_many_as_the_plan_needs_to_fit():
    fn, args = SCANNED
    wide = (*args[:2], jax.ShapeDtypeStruct((4096, 8), jnp.int32))
    whole = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", budget=50)
    assert [entry.name for entry in whole.history] == ["AutomaticPartition(all axes)"]
    held = whole.estimate.argument_memory
    room = held + (whole.estimate.peak_memory - held) // 3
    small = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", budget=50, memory=room)
    assert small.estimate.fits
    assert small.history[0].name.startswith("Microbatch(")
    assert "which does not fit" in small.history[0].decisions[0]
    layouts = pt.AutomaticPartition(budget=50, layouts_only=True)
    only = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", memory=room, tactics=layouts)
    assert not only.estimate.fits


def test_whoever_ends_a_search_gets_its_plan_without_further_ones():
    fn, args = SCANNED
    wide = (*args[:2], jax.ShapeDtypeStruct((4096, 8), jnp.int32))
    asked = []

    def enough(done, total, text):
        asked.append(text)
        raise EnoughError

    fits = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", budget=1).estimate
    room = (fits.argument_memory + fits.peak_memory) // 4
    options = {"mesh": "data=4", "hardware": "tpu_v5e", "budget": 50, "memory": room}
    assert pt.plan(fn, *wide, **options).history[0].name.startswith("Microbatch(")
    plan = pt.plan(fn, *wide, progress=enough, **options)
    assert not plan.estimate.fits
    assert [entry.name for entry in plan.history] == ["AutomaticPartition(all axes)"]
    assert len(asked) == 1


def test_a_schedule_by_hand_gets_the_steps_it_asks_for():
    fn, args = SCANNED
    wide = (*args[:2], jax.ShapeDtypeStruct((4096, 8), jnp.int32))
    by_hand = [pt.Microbatch(), pt.DataParallel("data", "tokens")]
    ample = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", tactics=by_hand)
    assert [entry.name for entry in ample.history] == ["DataParallel(data)"]
    room = ample.estimate.peak_memory // 2
    tight = pt.plan(fn, *wide, mesh="data=4", hardware="tpu_v5e", tactics=by_hand, memory=room)
    assert tight.estimate.fits
    assert tight.history[0].name in ("Microbatch(2)", "Microbatch(4)")


@pytest.mark.parametrize("preset", ["gpt-tiny", "llama-tiny", "vit-tiny", "t5-tiny", "dit-tiny"])
def test_families_of_models_run_in_micro_batches(preset):
    model = models.build(preset)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=2",
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(2), pt.DataParallel()],
    )
    assert {kind for kind, _ in plan.estimate.traffic} == {"all_reduce"}
    assert any(loop.trips == 2 for loop in plan.program.loops)


@pytest.mark.parametrize("preset", ["resnet-tiny", "moe-tiny"])
def test_models_that_couple_examples_say_so(preset):
    model = models.build(preset)
    with pytest.raises(pt.TacticError, match="cannot run in micro-batches"):
        pt.plan(
            model.fn,
            *model.args,
            mesh="data=2",
            hardware="tpu_v5e",
            tactics=[pt.Microbatch(2), pt.DataParallel()],
        )


# ------------------------------------------------------------------------ what couples examples

APART = "per_microbatch"


def normalised(w, scale, x):
    """A loss with batch normalisation, and a second loss that is not linear in sums."""
    y = x @ w
    mean = jnp.mean(y, axis=0)
    y = (y - mean) * jax.lax.rsqrt(jnp.var(y, axis=0) + 1e-3) * scale
    share = jnp.mean(jax.nn.softmax(y), axis=0)
    return jnp.mean(jnp.tanh(y) ** 2) + 0.1 * jnp.sum(share**2)


def normalised_layers(w, scale, x):
    """The same losses, of layers in a loop."""

    def block(carry, layer):
        x, balance = carry
        y = x @ layer[0]
        y = jnp.tanh((y - jnp.mean(y, axis=0)) * layer[1])
        share = jnp.mean(jax.nn.softmax(y), axis=0)
        return (y, balance + jnp.sum(share**2)), None

    (x, balance), _ = jax.lax.scan(block, (x, 0.0), (w, scale))
    return jnp.mean(x**2) + 0.1 * balance


@pytest.mark.parametrize(
    ("loss", "layers"),
    [(normalised, ()), (normalised_layers, (3,)), (jax.checkpoint(normalised_layers), (3,))],
    ids=["unrolled", "scanned", "checkpointed"],
)
def test_examples_may_be_coupled_in_each_micro_batch_alone(loss, layers):
    width = 16 if layers else 8
    args = array(*layers, 16, width), array(*layers, width), array(ROWS, 16)
    w, scale, x = (numbers(*each.shape, seed=n) for n, each in enumerate(args))
    grad = jax.value_and_grad(loss, argnums=(0, 1))
    tactics = [pt.Microbatch(4, "x", coupled=APART), pt.DataParallel("data", "x")]
    plan = pt.plan(grad, *args, mesh="data=2", hardware="tpu_v5e", tactics=tactics)
    found = jax.tree.leaves(plan.jit()(*plan.shard(w, scale, x)))
    # With two devices, examples of a micro-batch come from both halves of the batch.
    parts = x.reshape(2, 4, ROWS // 8, 16).swapaxes(0, 1).reshape(4, ROWS // 4, 16)
    by_hand = [jax.tree.leaves(grad(w, scale, part)) for part in parts]
    for number, (got, *each) in enumerate(zip(found, *by_hand, strict=True)):
        if number:  # the loss is reported of the whole batch where it can be
            assert jnp.allclose(got, sum(each) / 4, atol=2e-6), (number, got, sum(each) / 4)


@pytest.mark.parametrize("preset", ["resnet-tiny", "moe-tiny"])
def test_models_run_with_examples_coupled_in_micro_batches(preset):
    model = models.build(preset)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=2",
        hardware="tpu_v5e",
        tactics=[pt.Microbatch(2, coupled=APART), pt.DataParallel()],
    )
    assert "coupled=per_microbatch" in plan.history[0].name
    assert plan.verify().passed
