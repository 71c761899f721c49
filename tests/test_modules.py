"""Modules of libraries as arguments: what they train is what they train on one device."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import partita as pt
from checks import assert_same, numbers

BATCH = {"x": numbers(64, 8), "y": numbers(64, 4, seed=1)}
DATA = (pt.DataParallel(),)
TENSOR = (pt.DataParallel(), pt.ManualPartition({"*up.kernel": 1}, axis="model"))
KEY = jax.random.key(0)


def jit(fn, mesh="data=2,model=4", tactics=DATA, **more):
    return pt.jit(fn, mesh=mesh, hardware="cpu", tactics=tactics, **more)


def plan(fn, *args, mesh="data=2,model=4", tactics=DATA, **more):
    return pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=tactics, **more)


# ------------------------------------------------------------------------------------- Flax NNX


class Block(nnx.Module):
    """All kinds of variables: parameters, statistics, counters and keys of random numbers."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.down(nnx.relu(self.up(self.norm(x)))))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Block(rngs), nnx.Linear(8, 4, rngs=rngs)])
        self.head = self.layers[1]  # a shared reference

    def __call__(self, x):
        return self.head(self.layers[0](x))


def make(key):
    model = Net(nnx.Rngs(key))
    return model, nnx.Optimizer(model, optax.adamw(1e-2, eps=1e-2), wrt=nnx.Param)


def step(model, optimizer, batch):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(batch["x"]) - batch["y"]) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def trained(run, model, optimizer, steps=3):
    losses = [run(model, optimizer, BATCH) for _ in range(steps)]
    return losses, nnx.to_pure_dict(nnx.state((model, optimizer)))


@pytest.fixture(scope="module")
def expected():
    return trained(nnx.jit(step), *make(KEY))


def same(ours, theirs):
    assert ours[0][0] > ours[0][-1]  # it trains
    assert_same(ours, theirs, 1e-4)


@pytest.mark.parametrize(
    "run",
    [
        lambda: jit(step, tactics=TENSOR),
        lambda: jit(nnx.jit(step, donate_argnums=(0, 1))),
        lambda: jit(jax.jit(step)),
    ],
    ids=["plain", "nnx.jit", "jax.jit"],
)
def test_a_module_that_is_changed_in_place_trains(run, expected):
    model, optimizer = make(KEY)
    run = run()
    same(trained(run, model, optimizer), expected)
    assert model.head is model.layers[1]
    assert len(run.plans) == 1


def test_state_is_made_and_placed_as_the_plan_takes_it(expected):
    p = plan(step, *nnx.eval_shape(make, KEY), BATCH, tactics=TENSOR)
    model, optimizer = p.init(make, KEY)
    for placed in (model, p.shard(*make(KEY))[0], p.abstract()[0]):
        assert placed.layers[0].up.kernel.get_value().sharding.spec == jax.P(None, "model")
    assert p.in_shardings[0].layers[0].up.kernel.get_value() == jax.P(None, "model")
    assert p.out_shardings == jax.P()
    assert {"model.layers[0].up.kernel", "optimizer.opt_state[0].mu.head.bias", "batch['x']"} <= {
        *p.program.argument_names
    }
    assert "result.model.layers[0].up.kernel" in p.program.result_names
    same(trained(p.jit(), model, optimizer), expected)


def linear(key, rate=1e-2):
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(key))
    return model, nnx.Optimizer(model, optax.adamw(rate), wrt=nnx.Param)


def test_optimizers_of_equal_options_have_one_plan():
    run = jit(step)
    for rate, plans in ((1e-2, 1), (1e-2, 1), (1e-3, 2)):
        run(*linear(KEY, rate), BATCH)
        assert len(run.plans) == plans


def test_tactics_know_parameters_and_optimizers():
    p = plan(step, *linear(KEY), BATCH, tactics=pt.FullyShardedDataParallel())
    assert p.in_shardings[0].kernel.get_value() == jax.P("data")
    assert p.in_shardings[1].opt_state[0].mu["kernel"].get_value() == jax.P("data")
    optimizer = p.init(lambda key: linear(key)[1], KEY)  # one argument of several
    assert optimizer.opt_state[0].mu["kernel"].get_value().sharding.spec == jax.P("data")


class Counter(nnx.Module):
    def __init__(self):
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.weight = nnx.Param(jnp.ones(8))

    def __call__(self, x):
        self.calls[...] += 1
        return x * self.weight


def counted(models, x):
    return models["one"](x) + models["two"](x)


def with_more(counter, x):
    counter.mean = nnx.Variable(x.mean())
    return counter(x)


def returned(counter, x):
    return counter, counter(x)


def random(rngs, x):
    return x * jax.random.bernoulli(rngs(), 0.5, x.shape)


@pytest.mark.parametrize(
    ("fn", "make_argument"),
    [
        (counted, lambda: {"one": Counter(), "two": Counter()}),
        (counted, lambda: dict.fromkeys(("one", "two"), Counter())),
        (with_more, Counter),
        (returned, Counter),
        (random, lambda: nnx.Rngs(0)),
        (
            lambda variable, x: (variable.set_value(variable + 1), x)[1],
            lambda: nnx.Param(BATCH["x"]),
        ),
        (
            lambda dropout, x: (dropout.eval(), dropout(x))[1],
            lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)),
        ),
    ],
    ids=["dict", "shared", "new variable", "returned", "rngs", "variable", "eval"],
)
def test_what_changes_is_what_nnx_jit_changes(fn, make_argument):
    ours, theirs = make_argument(), make_argument()
    run, reference = jit(fn), nnx.jit(fn)
    for _ in range(2):
        made, wanted = run(ours, BATCH["x"]), reference(theirs, BATCH["x"])
        assert_same(
            *(nnx.to_pure_dict(nnx.state((m, a))) for m, a in ((made, ours), (wanted, theirs)))
        )
    if fn is returned:
        assert made[0] is ours


@pytest.mark.parametrize(
    ("donate", "names"),
    [
        ((), ("result", "result.counter.calls")),
        (0, ("result", "result.counter.calls", "result.counter.weight")),
    ],
)
def test_what_does_not_change_is_no_result_unless_its_buffer_is_given_away(donate, names):
    p = plan(lambda counter, x: counter(x), Counter(), BATCH["x"], donate_argnums=donate)
    assert p.program.result_names == names
    if donate != 0:
        with pytest.raises(pt.OptionError, match=r"counter of .* cannot be donated .*partita.plan"):
            p.jit(donate_argnums=0)


COUNTER = Counter()


def changes_a_global(x):
    return COUNTER(x)


@pytest.mark.parametrize("fn", [changes_a_global, COUNTER], ids=["global", "module"])
def test_a_variable_that_is_changed_without_being_an_argument_is_named(fn):
    with pytest.raises(
        pt.TraceError, match=r"changes C\w+\.calls, which it does not take as an arg"
    ):
        plan(fn, BATCH["x"])


def test_a_module_that_is_only_read_may_be_closed_over():
    linear = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    assert_same(jit(lambda x: linear(x))(BATCH["x"]), linear(BATCH["x"]))


def test_modules_that_do_not_fit_a_plan_are_named():
    run = plan(lambda linear, x: linear(x), nnx.Linear(8, 4, rngs=nnx.Rngs(0)), BATCH["x"]).jit()
    with pytest.raises(pt.ArgumentError, match=r"linear of .* \.kernel: float32\[8,4\].* came"):
        run(nnx.Linear(8, 4, use_bias=False, rngs=nnx.Rngs(0)), BATCH["x"])


def test_a_plan_of_modules_is_kept_simulated_and_transformed(tmp_path):
    linear = nnx.Linear(8, 4, rngs=nnx.Rngs(0))

    def loss(linear, x):
        return jnp.mean(linear(x) ** 2)

    p = plan(loss, linear, BATCH["x"])
    p.save(tmp_path / "plan.json")
    loaded = pt.load(tmp_path / "plan.json", loss, linear, BATCH["x"])
    assert loaded.in_shardings[1] == jax.P("data")
    p.export(tmp_path / "loss.jaxexport")
    simulated = pt.simulate(
        loss, linear, BATCH["x"], mesh="data=2,model=4", hardware="cpu", in_shardings=p.in_shardings
    )
    assert [c.kind for c in simulated.collectives] == ["all_reduce"]
    assert_same(p.core.run(linear, BATCH["x"]), loss(linear, BATCH["x"]))
    assert p.jit().eval_shape(linear, BATCH["x"]).shape == ()
    gradient = jax.grad(lambda x: p.jit()(linear, x))(jnp.asarray(BATCH["x"]))
    assert_same(gradient, jax.grad(lambda x: loss(linear, x))(jnp.asarray(BATCH["x"])))


def test_a_state_is_passed_and_returned_as_a_tree():
    graph, state = nnx.split(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))
    p = plan(lambda state, x: nnx.merge(graph, state)(x), state, BATCH["x"])
    assert p.program.argument_names == ("state['bias'].value", "state['kernel'].value", "x")


# -------------------------------------------------------------------------------------- Equinox


class Model(eqx.Module):
    """Functions, numbers and a state among its leaves."""

    layers: list
    norm: eqx.nn.BatchNorm
    scale: float = 2.0

    def __init__(self, key):
        first, second = jax.random.split(key)
        linear = eqx.nn.Linear(16, 4, key=second)
        self.layers = [eqx.nn.MLP(8, 16, 16, 1, key=first), jax.nn.relu, linear]
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")

    def __call__(self, x, state):
        for layer in self.layers:
            x = layer(x)
        x, state = self.norm(x, state)
        return self.scale * x, state


adamw = optax.adamw(1e-2, eps=1e-2)  # magnifies no rounding


def make_equinox(key):
    model, state = eqx.nn.make_with_state(Model)(key)
    return model, state, adamw.init(eqx.filter(model, eqx.is_array))


def equinox_step(model, state, opt_state, batch):
    @eqx.filter_value_and_grad(has_aux=True)
    def loss_fn(model, state):
        apply = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        made, state = apply(batch["x"], state)
        return jnp.mean((made - batch["y"]) ** 2), state

    (loss, state), grads = loss_fn(model, state)
    updates, opt_state = adamw.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, opt_state, loss


def trained_equinox(run):
    *state, loss = run(*make_equinox(KEY), BATCH)
    for _ in range(2):
        first, (*state, loss) = loss, run(*state, BATCH)
        assert loss < first
    return eqx.filter(state, eqx.is_array), loss


@pytest.fixture(scope="module")
def expected_equinox():
    return trained_equinox(eqx.filter_jit(equinox_step))


@pytest.mark.parametrize(
    "fn",
    [equinox_step, eqx.filter_jit(equinox_step), eqx.filter_jit(equinox_step, donate="all")],
    ids=["plain", "filter_jit", "donated"],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers")  # those of the batch
def test_a_module_with_other_things_than_arrays_trains(fn, expected_equinox):
    run = jit(fn, tactics=(*DATA, pt.ManualPartition({"*layers[0].layers[0].weight": 0}, "model")))
    (model, *state), loss = trained_equinox(run)
    assert_same((model, *state, loss), (*expected_equinox[0], expected_equinox[1]), 1e-3)
    assert model.layers[0].layers[0].weight.sharding.spec == jax.P("model")
    (made,) = run.plans.values()
    assert made.donate_argnums == (
        (0, 1, 2, 3) if fn is not equinox_step and fn.donate_rest else ()
    )


def test_a_plan_of_equinox_modules_gives_modules():
    p = plan(equinox_step, *make_equinox(KEY), BATCH, tactics=pt.FullyShardedDataParallel())
    assert "model.layers[0].layers[0].weight" in p.program.argument_names
    assert p.in_shardings[0].layers[0].layers[0].weight == jax.P("data")
    assert p.out_shardings[0].layers[0].layers[0].weight == jax.P("data")
    for model in (p.init(make_equinox, KEY)[0], p.shard(*make_equinox(KEY))[0], p.abstract()[0]):
        assert model.layers[0].layers[0].weight.sharding.spec == jax.P("data")
        assert model.layers[1] is jax.nn.relu


def test_other_static_parts_are_another_plan():
    run = jit(eqx.filter_jit(lambda x, factor, kind: x * factor if kind == "times" else x))
    assert_same(run(BATCH["x"], 2.0, "times"), 2 * jnp.asarray(BATCH["x"]))
    assert_same(run(BATCH["x"], 3.0, "times"), 3 * jnp.asarray(BATCH["x"]))
    assert_same(run(BATCH["x"], 3.0, "none"), jnp.asarray(BATCH["x"]))
    assert len(run.plans) == 3


# ------------------------------------------------------------------------- changed in place


@jax.tree_util.register_pytree_with_keys_class
class Mutable:
    """A module of no library."""

    def __init__(self, weight):
        self.weight = weight

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("weight"), self.weight)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def updates_a_dict(params, x):
    params["w"] = params["w"] - jnp.mean(x)
    return jnp.sum(x)


def updates_an_object(model, x):
    model.weight = model.weight - 1
    return jnp.sum(x)


@pytest.mark.parametrize(
    ("fn", "argument", "name"),
    [
        (updates_a_dict, {"w": np.ones(4, np.float32)}, r"params\['w'\]"),
        (updates_an_object, Mutable(np.ones(4, np.float32)), r"model\.weight"),
    ],
)
def test_a_change_that_is_lost_is_an_error_that_names_it(fn, argument, name):
    with pytest.raises(pt.TraceError, match=f"{fn.__name__} changes {name} in place and does not"):
        plan(fn, argument, BATCH["x"])


def returns_it(params, batch):
    params["w"] = params["w"] - jnp.mean(batch["x"])
    return params


def cuts_its_batch(params, batch):
    for name in batch:
        batch[name] = batch[name][:, :2]
    return jnp.sum(batch["x"]) * params["w"]


@pytest.mark.parametrize("fn", [returns_it, cuts_its_batch])
def test_a_change_that_is_returned_or_used_is_none(fn):
    params = {"w": np.ones(4, np.float32)}
    assert_same(jit(fn)(params, BATCH), fn(copy.copy(params), copy.copy(BATCH)))


REF = jax.new_ref(jnp.zeros(8))


@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (
            lambda ref, x: x + ref[...],
            (REF, BATCH["x"]),
            r"ref of .* is a jax.Ref.*pass .*ref\[\.\.\.\]",
        ),
        (lambda x: x + REF[...], (BATCH["x"],), "reads or changes a jax.Ref that it does not make"),
    ],
)
def test_references_are_refused_with_what_to_do(fn, args, message):
    with pytest.raises(pt.UnsupportedError, match=message):
        plan(fn, *args)


def test_static_arguments_of_nnx_jit_are_taken_over():
    linear = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    run = jit(nnx.jit(lambda linear, x, factor: factor * linear(x), static_argnums=2))
    for factor in (3, 4, 3):
        assert_same(run(linear, BATCH["x"], factor), factor * linear(BATCH["x"]))
    assert len(run.plans) == 2
