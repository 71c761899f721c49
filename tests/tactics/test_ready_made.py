"""Ready-made tactics: what they take for what, and that their collectives are those of the papers.

The GPT has L layers and P parameter tensors; the counts follow by arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partita as pt
from checks import array
from partita import models
from partita.analysis import analyse
from partita.tactics.parts import path, train_state
from partita.tactics.products import dim_purposes

DATA = pt.DataParallel()


@functools.cache
def model(preset="gpt-tiny"):
    return models.build(preset, dtype="float32")


def plan(*tactics, preset="gpt-tiny", mesh="data=4,model=2", **more):
    m = model(preset)
    return pt.plan(m.fn, *m.args, mesh=mesh, hardware="h100", tactics=tactics, **more)


def step(state, batch):
    """An Adam step whose parameters and optimizer state are called nothing in particular."""
    params, moments = state

    def loss(params):
        hidden = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"]) ** 2)

    updates, moments = optax.adam(1e-3).update(jax.grad(loss)(params), moments)
    return optax.apply_updates(params, updates), moments


PARAMS = {"w1": array(16, 32), "b1": array(32), "w2": array(32, 8)}
STATE = (PARAMS, jax.eval_shape(optax.adam(1e-3).init, PARAMS))


ARGS = (STATE, {"x": array(64, 16)})


def small(*tactics, fn=step, args=ARGS, mesh="data=4", **more):
    return pt.plan(fn, *args, mesh=mesh, hardware="h100", tactics=tactics, **more)


LAYERS, PARAMETERS = 2, 18
STATE_BYTES = 3 * sum(4 * leaf.size for leaf in jax.tree.leaves(model().args[0]["params"]))


@pytest.mark.parametrize(
    ("tactics", "mesh", "counts"),
    [
        # The gradients, and the loss.
        ([DATA], "data=8", {"all_reduce": PARAMETERS + 1}),
        (
            [DATA, pt.ZeRO(1)],
            "data=8",
            {"all_reduce": PARAMETERS + 1, "all_gather": PARAMETERS},
        ),
        (
            [DATA, pt.ZeRO(2)],
            "data=8",
            {"all_reduce": 1, "reduce_scatter": PARAMETERS, "all_gather": PARAMETERS},
        ),
        (
            [DATA, pt.ZeRO(3)],
            "data=8",
            {"all_reduce": 1, "reduce_scatter": PARAMETERS, "all_gather": PARAMETERS},
        ),
        (
            [pt.FullyShardedDataParallel()],
            "data=8",
            {"all_reduce": 1, "reduce_scatter": PARAMETERS, "all_gather": PARAMETERS},
        ),
        ([pt.Megatron(vocabulary=False)], "model=8", {"all_reduce": 4 * LAYERS}),
        # A split vocabulary: its look-up and the way back; maximum, sum and target of a softmax.
        ([pt.Megatron()], "model=8", {"all_reduce": 4 * LAYERS + 2 + 3}),
        (
            [pt.SequenceParallel(vocabulary=False)],
            "model=8",
            {
                "reduce_scatter": 4 * LAYERS,
                "all_gather": 4 * LAYERS,
                # What is between the layers has a part of the sequence: the gradients of the norms
                # and of the embedding, and the loss.
                "all_reduce": 2 * LAYERS + 1 + 1 + 1,
            },
        ),
    ],
    ids=lambda value: value[-1].name if isinstance(value, list) else "",
)
def test_collectives(tactics, mesh, counts):
    p = plan(*tactics, mesh=mesh, donate_argnums=0)
    assert p.spmd.counts() == counts
    assert not [refusal for entry in p.history for refusal in entry.refused]


@pytest.mark.parametrize("donate", [(), 0])
@pytest.mark.parametrize(("number", "split"), [(1, 2), (2, 2), (3, 3)])
def test_a_stage_of_zero_says_what_is_split_between_steps(number, split, donate):
    p = plan(DATA, pt.ZeRO(number), mesh="data=8", donate_argnums=donate)
    step_count, batch = 4, 2 * 16 // 8 * 32 * 4
    whole = (3 - split) * STATE_BYTES // 3
    assert p.estimate.argument_memory == step_count + batch + whole + split * STATE_BYTES // 3 // 8
    assert p.in_shardings[0] == p.out_shardings[0]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_zero_runs_as_the_original(number):
    p = small(DATA, pt.ZeRO(number), donate_argnums=0)
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=leaf.shape).astype("f") for name, leaf in PARAMS.items()}
    args = (params, optax.adam(1e-3).init(params)), {"x": rng.normal(size=(64, 16)).astype("f")}
    expected = jax.jit(step)(*args)
    ours = p.jit()(*p.shard(*args))
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_zero_splits_the_largest_dimension_and_not_the_one_that_a_loop_reads():
    p = plan(DATA, pt.ZeRO(3), preset="llama-tiny", mesh="data=2")
    layers = p.in_shardings[0]["params"]["layers"]  # two of them, stacked in front
    assert layers["w_up"] == jax.P(None, None, "data")  # [2, 64, 128]
    assert layers["w_down"] == jax.P(None, "data")  # [2, 128, 64]
    assert layers["ln1"] == jax.P(None, "data")  # [2, 64]


def test_gradients_are_split_into_pieces_where_zero_comes_first_too():
    first = plan(pt.ZeRO(1), DATA, mesh="data=8")
    nothing = "nothing is computed along data yet"
    assert nothing in first.history[0].warnings[0]
    assert first.spmd.counts()["all_gather"] >= PARAMETERS
    second = plan(DATA, pt.ZeRO(1), mesh="data=8").history[1]
    assert not any(nothing in warning for warning in second.warnings)


def test_parameters_without_a_name_are_those_that_optimizer_state_mirrors():
    p = small(DATA, pt.ZeRO(2))
    assert p.history[1].decisions == (
        "state[0]['b1'] and 2 more as parameters",
        "state[1][0].mu['b1'] and 5 more as optimizer state",
    )
    assert p.in_shardings[0][1][0].mu == {
        "w1": jax.P(None, "data"),
        "b1": jax.P("data"),
        "w2": jax.P("data"),
    }
    assert p.in_shardings[0][0] == dict.fromkeys(PARAMS, jax.P())


def test_parameters_and_optimizer_state_by_patterns():
    found = small(DATA, pt.ZeRO(2, patterns="state[0]*"))
    named = small(DATA, pt.ZeRO(2, patterns=["state[0]*"], optimizer=["*.mu*", "*.nu*"]))
    assert found.in_shardings == named.in_shardings


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("state['opt'][0].mu['a']", ("state", "opt", "0", "mu", "a")),
        ("state.params['d']['kernel'].value", ("state", "params", "d", "kernel")),
        ("state[0]['mlp/~/linear_0']['w']", ("state", "0", "mlp", "~", "linear_0", "w")),
        ("p['self.value']", ("p", "self", "value")),
        ("x", ("x",)),
    ],
)
def test_the_parts_of_a_name(name, parts):
    assert path(name) == parts


def test_state_that_says_what_it_is(program):
    def fn(params, opt_state, multiplier):
        return params, opt_state, multiplier

    found = train_state(program(fn, {"mu": "f32[4]"}, {"m": "f32[4]"}, "f32[4]"))
    # `multiplier` is not `mu`; of a path with both kinds of parts, the optimizer's counts.
    assert [name for name, _ in found.parameters] == []
    assert [name for name, _ in found.optimizer] == ["params['mu']", "opt_state['m']"]


def predict(params, x):
    return jax.nn.relu(x @ params["w1"]) @ params["w2"]


WEIGHTS = {"w1": array(16, 32), "w2": array(32, 8)}


def test_examples_of_a_prediction():
    p = small(DATA, fn=predict, args=(WEIGHTS, array(64, 16)))
    assert p.in_shardings == ({"w1": jax.P(), "w2": jax.P()}, jax.P("data"))


@pytest.mark.parametrize("patterns", ["rows*", ["rows"], {"rows": 0}])
def test_examples_that_are_called_otherwise_are_named(patterns):
    def fn(params, rows):
        return predict(params, rows)

    args = (WEIGHTS, array(64, 16))
    with pytest.raises(pt.TacticError, match=r'called batch, .*patterns=\["rows"\].*Arguments are'):
        small(DATA, fn=fn, args=args)
    p = small(pt.DataParallel("data", patterns), fn=fn, args=args)
    assert p.in_shardings[1] == jax.P("data")


@pytest.mark.parametrize(
    ("data", "split"),
    [
        (dict.fromkeys(("inputs", "targets"), array(64, 16)), {"inputs", "targets"}),
        ({"tokens": array(64, 16), "mask": array(64), "rate": array()}, {"tokens", "mask"}),
        ({"images": array(64, 16), "table": array(16, 16)}, {"images"}),
    ],
)
def test_examples_are_the_usual_keys_of_an_argument_of_any_name(data, split):
    def fn(weights, data):
        return jax.tree.map(lambda w: w * sum(map(jnp.sum, data.values())), weights), data

    p = small(DATA, fn=fn, args=(WEIGHTS, data))
    assert {name for name, spec in p.in_shardings[1].items() if spec == jax.P("data")} == split
    assert set(jax.tree.leaves(p.in_shardings[0])) == {jax.P()}


@pytest.mark.parametrize(
    "tactic", [DATA, pt.FullyShardedDataParallel(), pt.SequenceParallel("data")]
)
def test_what_a_message_says_of_a_missing_batch_helps(tactic):
    def fn(params, data):
        return jnp.mean((data["rows"] @ params["w1"]) ** 2) * params["w1"]

    args = (WEIGHTS, {"rows": array(64, 16)})
    with pytest.raises(pt.TacticError) as error:
        small(tactic, fn=fn, args=args)
    option, pattern = re.search(r'as in (\w+)=\["(.*?)"\]', str(error.value)).groups()
    assert tactic.name in str(error.value)
    p = small(dataclasses.replace(tactic, **{option: [pattern]}), fn=fn, args=args)
    assert "data" in p.in_shardings[1]["rows"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            60,
            r"batch\['x'\] has 60 examples, which data=8 .* 64 .* cut .* 56, .* of 4 devices",
        ),
        (63, r"batch\['x'\] has 63 examples, which data=8 .* to 64 .* cut it to 56$"),
        (4, r"batch\['x'\] has 4 examples, which data=8 .* pad the batch to 8 .* of 4 devices"),
    ],
)
def test_a_batch_that_no_axis_divides_is_a_warning(rows, message):
    with pytest.warns(pt.PartitaWarning, match=message):
        small(DATA, args=(STATE, {"x": array(rows, 16)}), mesh="data=8")


def test_scalars_among_the_examples_are_left_out():
    def fn(batch):
        return batch["x"] * batch["scale"]

    p = small(DATA, fn=fn, args=({"x": array(64), "scale": array()},))
    assert p.in_shardings[0] == {"x": jax.P("data"), "scale": jax.P()}
    assert not p.history[0].refused


@pytest.mark.parametrize("layout", ["[D, H, K]", "[D, H*K]", "[H*K, D]"])
def test_megatron_finds_the_heads_however_a_library_orders_them(layout):
    shapes = {"[D, H, K]": (64, 8, 16), "[D, H*K]": (64, 128), "[H*K, D]": (128, 64)}

    def fn(params, x):
        def project(name):
            w = params[name]["kernel"].astype(jnp.bfloat16)
            y = jnp.einsum("bsd,fd->bsf" if layout == "[H*K, D]" else "bsd,d...->bs...", x, w)
            return y.reshape(*x.shape[:2], 8, 16)

        q, k, v = map(project, ("query", "key", "value"))
        return jnp.einsum("bhqs,bshk->bqhk", jnp.einsum("bqhk,bshk->bhqs", q, k), v)

    params = {name: {"kernel": array(*shapes[layout])} for name in ("query", "key", "value")}
    p = small(pt.Megatron(), fn=fn, args=(params, array(4, 32, 64)), mesh="model=8")
    place = {"[D, H, K]": (None, "model"), "[D, H*K]": (None, "model"), "[H*K, D]": ("model",)}
    assert {spec for spec in jax.tree.leaves(p.in_shardings[0])} == {jax.P(*place[layout])}
    assert p.spmd.counts() == {}


def test_keys_and_values_of_multi_query_attention_stay_whole():
    p = plan(pt.Megatron(), preset="decode-mq-tiny")
    layers = p.in_shardings[0]["params"]["layers"]
    assert (layers["wq"], layers["wk"], layers["wv"]) == (
        jax.P(None, None, "model"),
        *2 * [jax.P()],
    )


def test_megatron_with_matrices_named_and_with_dimensions():
    by_name = small(
        pt.Megatron("data", ["params['w1']"]), fn=predict, args=(WEIGHTS, array(64, 16))
    )
    by_dim = small(pt.Megatron("data", {"*['w1']": 1}), fn=predict, args=(WEIGHTS, array(64, 16)))
    assert by_name.in_shardings == by_dim.in_shardings
    assert by_name.in_shardings[0] == {"w1": jax.P(None, "data"), "w2": jax.P("data")}


def test_what_dimensions_are_for(program):
    def fn(table, w, experts, tokens):
        x = table[tokens].astype(jnp.float32)
        x = jnp.einsum("bsd,edf->besf", x @ w.T, experts)
        return x

    p = program(fn, "f32[32,16]", "f32[16,16]", "f32[4,16,8]", "i32[2,8]")
    analysis, (table, w, experts, _) = analyse(p), p.arguments
    assert dim_purposes(analysis, table)[0] == "looked up"
    assert dim_purposes(analysis, w) == ("own", "summed")
    assert dim_purposes(analysis, experts) == ("own", "summed", "own")


def test_weights_are_followed_through_branches_and_loops(program):
    def fn(a, b, w, x, i):
        chosen = jax.lax.switch(i, [lambda: a, lambda: b])
        return jax.lax.fori_loop(0, 3, lambda _, w: w - chosen @ (x @ w), w)

    p = program(fn, "f32[16,8]", "f32[16,8]", "f32[16,8]", "f32[8,16]", "i32[]")
    analysis, (a, b, w, _, index) = analyse(p), p.arguments
    assert dim_purposes(analysis, a) == dim_purposes(analysis, b) == ("own", "summed")
    assert dim_purposes(analysis, w) == ("summed", "own")
    assert dim_purposes(analysis, index) == ()


def test_experts_are_what_weights_share_with_their_tokens():
    p = plan(pt.ExpertParallel("model"), preset="moe-tiny")
    layers = p.in_shardings[0]["params"]["layers"]
    assert {n: s for n, s in layers.items() if "model" in s} == {
        "w_gate": jax.P(None, "model"),
        "w_up": jax.P(None, "model"),
        "w_down": jax.P(None, "model"),
        "router": jax.P(None, None, "model"),
    }


@pytest.mark.parametrize(
    ("tactic", "message"),
    [
        (pt.Megatron("data"), "Megatron.data.: no matrix of .* is called as usual .*patterns="),
        (pt.ExpertParallel("data"), "ExpertParallel.data.: no parameter .* shares .*patterns="),
        (
            pt.SequenceParallel("data", {"a": 0}),
            "SequenceParallel.data.: no argument .* dimension 1 is call",
        ),
        (pt.ZeRO(1), "ZeRO.1, data.: nothing of .* has params .* patterns="),
        (pt.ZeRO(3), "ZeRO.3, data.: nothing of .* has params .* Arguments are a, b$"),
        (pt.ZeRO(2, patterns="a"), "ZeRO.2, data.: .* has no optimizer state .* or take stage 3"),
    ],
)
def test_what_is_missing_is_said_with_how_to_name_it(tactic, message):
    with pytest.raises(pt.TacticError, match=message):
        small(tactic, fn=lambda a, b: a + b, args=(array(8), array(8)))


@pytest.mark.parametrize("tactic", [pt.DataParallel, pt.Megatron, pt.ExpertParallel])
def test_a_pattern_that_matches_nothing(tactic):
    with pytest.raises(pt.UnknownNameError, match="'nothing' matches no argument"):
        small(tactic(patterns=["nothing"], axis="data"))


def test_zero_has_three_stages():
    with pytest.raises(pt.TacticError, match="stages 1, 2 and 3, not 4"):
        pt.ZeRO(4)


def test_of_two_patterns_for_a_value_the_first_counts():
    tactic = pt.ManualPartition({"x": "replicate", "params['w1']": 1, "*": [0]}, axis="data")
    p = small(tactic, fn=predict, args=(WEIGHTS, array(64, 16)))
    assert p.in_shardings == ({"w1": jax.P(None, "data"), "w2": jax.P("data")}, jax.P())


def test_a_tactic_of_a_user():
    class LargeArguments:
        """Splits all arguments of a size or more in their largest dimension."""

        name = "LargeArguments"

        def apply(self, stage):
            program = stage.context.analysis.program
            patterns = {}
            for name, value in zip(program.argument_names, program.arguments, strict=True):
                type_ = program.values[value].type
                if type_.bytes >= 2048:
                    patterns[name] = int(np.argmax(type_.shape))
            return pt.in_turn(stage, [pt.ManualPartition(patterns, axis="data")])

    p = small(LargeArguments(), fn=predict, args=(WEIGHTS, array(64, 16)))
    assert p.history[0].name == "LargeArguments"
    assert p.in_shardings[0]["w1"] == jax.P(None, "data")


def test_both_gradients_of_a_tied_table_are_added_before_they_are_scattered():
    """One comes from the lookup, one from the product with the table, transposed twice."""

    def trained(params, tokens):
        def loss(table):
            logits = table[tokens] @ table.T
            return jnp.mean(jax.nn.logsumexp(logits, -1))

        return params - jax.grad(loss)(params)

    fsdp = pt.FullyShardedDataParallel("data", batch="tokens")
    types = array(512, 64), array(16, 32, dtype=jnp.int32)
    p = pt.plan(trained, *types, mesh="data=8", hardware="h100", tactics=[fsdp])
    (scattered,) = [c for c in p.collectives if c.kind == "reduce_scatter"]
    assert scattered.value.startswith("add at ")
    assert scattered.bytes == 512 * 64 * 4
