"""`pt.plan` and `pt.jit`: what they take, what they give, and what they say when they cannot."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

import partita as pt
from checks import array, planner
from partita.verify import compare

BATCH = [pt.ManualPartition({"x": 0}, axis="data")]
BY_BATCH = PartitionSpec("data")


def layer(x, w):
    return jnp.tanh(x @ w)


plan = planner(mesh="data=8", hardware="cpu", tactics=BATCH)


def jit(fn=None, mesh="data=8", tactics=BATCH, **kwargs):
    return pt.jit(fn, mesh=mesh, hardware="cpu", tactics=tactics, **kwargs)


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(1), (16, 8))


@pytest.fixture
def w():
    return jax.random.normal(jax.random.key(2), (8, 4))


# ----------------------------------------------------------------------------- what is accepted

MESHES = {
    "dict": {"data": 4, "model": 2},
    "string": "data=4,model=2",
    "string with spaces": " data = 4, model = 2 ",
    "ours": pt.Mesh(("data", "model"), (4, 2)),
    "abstract": AbstractMesh((4, 2), ("data", "model")),
    "concrete": lambda: jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model")),
}


@pytest.mark.parametrize("form", MESHES)
def test_forms_of_a_mesh(form):
    mesh = MESHES[form]() if form == "concrete" else MESHES[form]
    p = plan(layer, array(16, 8), array(8, 4), mesh=mesh)
    assert str(p.mesh) == "data=4,model=2"
    assert p.in_shardings == (BY_BATCH, PartitionSpec())
    assert p.out_shardings == BY_BATCH


def test_arrays_and_their_types_give_the_same_plan(x, w):
    arrays, types = plan(layer, x, w), plan(layer, array(16, 8), array(8, 4))
    numpy = plan(layer, np.asarray(x), np.asarray(w))
    assert arrays.in_shardings == types.in_shardings == numpy.in_shardings
    assert arrays.estimate == types.estimate == numpy.estimate


def test_without_tactics_a_search_uses_all_axes():
    p = pt.plan(layer, array(4096, 512), array(512, 512), mesh="a=4,b=2", hardware="tpu_v5e")
    (entry,) = p.history
    assert entry.name == "AutomaticPartition(all axes)"
    replicated = plan(layer, array(4096, 512), array(512, 512), mesh="a=4,b=2", tactics=[])
    assert not any(layout for layout in replicated.spmd.argument_layouts[0])
    assert any(layout for layout in p.spmd.argument_layouts[0])


def test_the_hardware_at_hand_is_the_default():
    assert (
        pt.plan(layer, array(16, 8), array(8, 4), mesh="data=8", tactics=[]).hardware.name == "cpu"
    )


@pytest.mark.parametrize(
    ("memory", "capacity"),
    [
        (123_456, 123_456),
        ("123456", 123_456),
        ("12GiB", 12 * 2**30),
        ("12 GB", 12 * 10**9),
        ("1.5MiB", 3 * 2**19),
        ("64KB", 64_000),
        ("1TiB", 2**40),
        ("100 B", 100),
        (2.5e9, 2_500_000_000),
    ],
)
def test_forms_of_memory(memory, capacity):
    assert plan(layer, array(16, 8), array(8, 4), memory=memory).estimate.capacity == capacity


def test_all_of_the_hardware_s_memory_is_the_default():
    p = plan(layer, array(16, 8), array(8, 4))
    assert p.estimate.capacity == p.hardware.memory.value


@pytest.mark.parametrize("memory", ["12 parsecs", "", "GiB", "-1GiB", "1.2.3GiB", "."])
def test_memory_that_cannot_be_read(memory):
    with pytest.raises(pt.HardwareError, match=r"cannot read memory=.*expected bytes or e\.g"):
        plan(layer, array(16, 8), array(8, 4), memory=memory)


# --------------------------------------------------------------------------------- what runs

PROGRAMS = {}


def runs(fn):
    """A program to run: `fn()` gives a function of `x`, `[16, 8]`, and other arguments."""
    PROGRAMS[fn.__name__.replace("_", " ")] = fn
    return fn


@runs
def closed_over_arrays():
    table = jax.random.normal(jax.random.key(3), (8, 8))
    return lambda x: jnp.tanh(x @ table), ()


@runs
def closed_over_numpy():
    table = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    return lambda x: x * table + np.float32(2), ()


@runs
def a_random_key_as_argument():
    return lambda x, key: x + jax.random.normal(key, x.shape), (jax.random.key(7),)


@runs
def several_random_keys():
    def fn(x, keys):
        return x + jax.vmap(lambda key: jax.random.uniform(key, (8,)))(keys)

    return fn, (jax.random.split(jax.random.key(7), 16),)


@runs
def an_old_style_key():
    return lambda x, key: x + jax.random.normal(key, x.shape), (jax.random.PRNGKey(7),)


@runs
def dropout_inside():
    def fn(x):
        keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), 5), 0.5, x.shape)
        return jnp.where(keep, x, 0.0)

    return fn, ()


@runs
def keys_as_results():
    def fn(x, key):
        first, second = jax.random.split(key)
        return x + jax.random.normal(first, x.shape), jax.random.key_data(second)

    return fn, (jax.random.key(7),)


@runs
def a_scan_over_layers():
    def fn(x, ws):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), jnp.sum(h)), x, ws)

    return fn, (0.3 * jax.random.normal(jax.random.key(3), (5, 8, 8)),)


@runs
def a_scan_over_rows():
    def fn(x):
        return jax.lax.scan(lambda total, row: (0.9 * total + row, total), x[0], x)

    return fn, ()


@runs
def the_gradient_of_a_scan():
    def fn(x, ws):
        def loss(ws):
            return jnp.mean(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2)

        return jax.value_and_grad(loss)(ws)

    return fn, (0.3 * jax.random.normal(jax.random.key(3), (5, 8, 8)),)


@runs
def a_while_loop_that_ends_by_its_values():
    def fn(x):
        return jax.lax.while_loop(lambda h: jnp.max(jnp.abs(h)) > 0.1, lambda h: 0.7 * h, x)

    return fn, ()


@runs
def a_branch():
    def fn(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda: x - jnp.mean(x, 0), lambda: 2 * x)

    return fn, ()


@runs
def a_branch_of_three():
    def fn(x, which):
        choices = [lambda h: h, lambda h: jnp.sin(h), lambda h: h - jnp.mean(h)]
        return jax.lax.switch(which, choices, x)

    return fn, (jnp.int32(2),)


@runs
def python_numbers():
    return lambda x, scale, power: scale * x**power, (0.5, 2)


@runs
def nothing_in_place_of_an_argument():
    return lambda x, mask: x if mask is None else x * mask, (None,)


@runs
def several_results_one_of_them_an_argument():
    return lambda x, y: {"same": y, "sum": x + 1, "count": jnp.arange(3)}, (jnp.ones(5),)


@runs
def integers_and_booleans():
    return lambda x, n: (jnp.sum(x > 0, axis=0), jnp.any(x > 2), n // 3), (jnp.arange(16) - 8,)


@runs
def complex_numbers():
    return lambda x: jnp.real(jax.lax.complex(x, 2 * x) * (1 + 2j)), ()


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_are_those_of_the_original(x, program):
    """The batch is sharded over eight devices. Sums in another order differ in the last bits."""
    fn, rest = PROGRAMS[program]()

    def named(x, *rest):
        return fn(x, *rest)

    p = plan(named, x, *rest)
    assert p.in_shardings[0] == BY_BATCH
    ours, theirs = p.jit()(x, *rest), jax.jit(fn)(x, *rest)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        np.testing.assert_allclose(mine, their, rtol=1e-5, atol=1e-5)
    compiled = p.jit().lower(x, *rest).compile()
    comparison = compare(p.collectives, p.mesh, compiled.as_text())
    assert comparison.equal, f"\n{comparison}"


def test_a_loop_s_collectives_count_as_often_as_it_runs(x):
    """Rows are split along their features, so every round sums a product."""

    def fn(x, ws):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]

    by_features = [pt.ManualPartition({"ws": 1}, axis="data", resolve=0)]
    p = plan(fn, array(16, 8), array(5, 8, 8), tactics=by_features)
    assert {c.count for c in p.collectives} == {5}
    assert sum(traffic.count for traffic in p.estimate.traffic.values()) == 5 * len(p.collectives)


def test_what_has_no_rule_is_replicated_and_listed(x):
    def fn(x):
        _, bits = jax.lax.rng_bit_generator(jnp.arange(4, dtype=jnp.uint32), x.shape)
        return x + (bits % 8).astype(x.dtype)

    p = plan(fn, x)
    assert "Replicated, for lack of a sharding rule:\n  rng_bit_generator at " in str(p)
    assert (p.in_shardings, p.out_shardings) == ((BY_BATCH,), BY_BATCH)
    np.testing.assert_allclose(p.jit()(x), jax.jit(fn)(x), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------ Plan.jit


def test_a_plan_runs_on_the_first_devices_where_there_are_more(x, w):
    y = plan(layer, x, w, mesh="data=2").jit()(x, w)
    assert len(y.devices()) == 2
    np.testing.assert_allclose(y, layer(x, w), rtol=1e-5)


def test_a_mesh_may_be_given(x, w):
    mesh = jax.sharding.Mesh(np.array(jax.devices())[::-1], ("data",))
    y = plan(layer, x, w).jit(mesh)(x, w)
    assert y.sharding.mesh.devices.tolist() == mesh.devices.tolist()
    np.testing.assert_allclose(y, layer(x, w), rtol=1e-5)


def test_shard_puts_arguments_where_the_plan_takes_them(x, w):
    p = plan(layer, x, w)
    ours = p.shard(x, w)
    assert [a.sharding.spec for a in ours] == [BY_BATCH, PartitionSpec()]
    assert {s.data.shape for s in ours[0].addressable_shards} == {(2, 8)}
    (only,) = p.shard(x)
    assert only.sharding == ours[0].sharding


def test_abstract_says_where_every_argument_goes(x, w):
    p = plan(
        lambda inputs, scale: scale * (inputs["x"] @ inputs["w"]),
        {"x": x, "w": w},
        2.0,
        tactics=[pt.ManualPartition({"inputs['x']": 0}, axis="data")],
    )
    inputs, scale = p.abstract()
    assert inputs["x"].sharding.spec == BY_BATCH
    assert (inputs["w"].shape, inputs["w"].dtype) == (w.shape, w.dtype)
    assert scale.weak_type and scale.sharding.is_fully_replicated
    (placed,) = p.shard({"x": x, "w": w})
    assert jax.tree.map(lambda a: a.sharding, inputs) == jax.tree.map(lambda a: a.sharding, placed)


def test_init_makes_an_argument_sharded():
    p = plan(layer, array(16, 8), array(8, 4), tactics=[pt.ManualPartition({"w": 0}, axis="data")])
    made = p.init(lambda key: jax.random.normal(key, (8, 4)), jax.random.key(0))
    assert made.sharding.spec == BY_BATCH
    np.testing.assert_allclose(made, jax.random.normal(jax.random.key(0), (8, 4)), rtol=1e-6)


@pytest.mark.parametrize("how", ["jit", "shard", "init", "abstract"])
@pytest.mark.parametrize(
    ("mesh", "given", "message"),
    [
        ("data=16", None, "mesh data=16 needs 16 devices, this process sees 8"),
        ("data=8", (("other",), (8,)), "the plan is for mesh data=8, the mesh given is other=8"),
        ("data=8", (("data",), (4,)), "the plan is for mesh data=8, the mesh given is data=4"),
        ("data=4,model=2", (("model", "data"), (2, 4)), "the mesh given is model=2,data=4"),
    ],
)
def test_a_mesh_that_does_not_fit(how, mesh, given, message):
    p = plan(layer, array(16, 8), array(8, 4), mesh=mesh)
    if given is not None:
        names, sizes = given
        grid = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
        given = jax.sharding.Mesh(grid, names)
    ways = {
        "jit": lambda: p.jit(given),
        "shard": lambda: p.shard(jnp.ones((16, 8)), mesh=given),
        "init": lambda: p.init(lambda: jnp.ones((16, 8)), mesh=given),
        "abstract": lambda: p.abstract(given),
    }
    with pytest.raises(pt.MeshError, match=message):
        ways[how]()


def test_init_of_something_that_is_no_argument():
    with pytest.raises(pt.TacticError, match="shaped like none of the arguments of layer"):
        plan(layer, array(16, 8), array(8, 4)).init(lambda: jnp.ones(3))


# --------------------------------------------------------------------------------------- pt.jit


def test_jit_plans_once_for_each_combination_of_shapes(x, w):
    traces = []

    @jit
    def counted(x, w):
        traces.append(x.shape)
        return layer(x, w)

    for _ in range(3):
        np.testing.assert_allclose(counted(x, w), layer(x, w), rtol=1e-5)
    first = len(traces)
    assert len(counted.plans) == 1
    np.testing.assert_allclose(counted(x[:8], w), layer(x[:8], w), rtol=1e-5)
    counted(x.astype(jnp.bfloat16), w)
    assert len(counted.plans) == 3
    assert len(traces) == 3 * first
    counted(2 * x, w)
    assert len(traces) == 3 * first
    assert all(p.in_shardings[0] == BY_BATCH for p in counted.plans.values())


def test_jit_as_a_decorator_with_arguments(x, w):
    @pt.jit(mesh="data=8", hardware="cpu", tactics=BATCH)
    def decorated(x, w):
        """Its own words."""
        return layer(x, w)

    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Its own words.")
    assert decorated(x, w).sharding.spec == BY_BATCH


@pytest.mark.parametrize("call", ["positional", "keyword", "all keywords"])
def test_jit_with_keyword_arguments(x, w, call):
    fn = jit(layer)
    calls = {
        "positional": lambda: fn(x, w),
        "keyword": lambda: fn(x, w=w),
        "all keywords": lambda: fn(w=w, x=x),
    }
    y = calls[call]()
    assert y.sharding.spec == BY_BATCH
    np.testing.assert_allclose(y, layer(x, w), rtol=1e-5)


def test_jit_of_a_partial_and_of_a_callable(x, w):
    class Layer:
        def __call__(self, x):
            return layer(x, w)

    for fn in (functools.partial(layer, w=w), Layer()):
        np.testing.assert_allclose(jit(fn, tactics=[])(x), layer(x, w), rtol=1e-5)


def test_jit_inside_of_jit(x, w):
    fn = jit(layer)
    np.testing.assert_allclose(jax.jit(lambda x: 2 * fn(x, w))(x), 2 * layer(x, w), rtol=1e-5)


def test_jit_on_a_concrete_mesh_runs_there(x, w):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[4:]), ("data",))
    assert jit(layer, mesh=mesh)(x, w).devices() == set(jax.devices()[4:])


# ------------------------------------------------------------------------------------ donation


def update(state, gradient):
    return state - 0.1 * gradient


def deleted_after(fn, state, gradient):
    new = fn(state, gradient)
    np.testing.assert_allclose(new, 0.9, rtol=1e-6)
    return state.is_deleted()


@pytest.mark.parametrize(
    ("fn", "donate", "expected"),
    [
        (update, (), ()),
        (update, 0, (0,)),
        (update, [0], (0,)),
        (jax.jit(update, donate_argnums=0), (), (0,)),
        (jax.jit(update, donate_argnames="state"), (), (0,)),
        (jax.jit(update), (), ()),
    ],
)
def test_donation_is_as_given_or_that_of_the_jitted_function(fn, donate, expected):
    tactics = [pt.ManualPartition({"state": 0}, axis="data")]
    p = plan(fn, array(16, 8), array(16, 8), tactics=tactics, donate_argnums=donate)
    assert p.donate_argnums == expected
    assert bool(p.program.aliases) == bool(expected)
    state, gradient = p.shard(jnp.ones((16, 8)), jnp.ones((16, 8)))
    assert deleted_after(p.jit(), state, gradient) == bool(expected)


def test_jit_donates(x):
    fn = jit(update, tactics=[pt.ManualPartition({"state": 0}, axis="data")], donate_argnums=0)
    state = fn(jnp.ones((16, 8)), jnp.zeros((16, 8)))
    assert deleted_after(fn, state, jnp.ones((16, 8)))


@pytest.mark.parametrize("name", ["state", "result[0]"])
def test_a_donated_argument_and_its_result_are_kept_whole_together(name):
    tactics = [
        pt.ManualPartition({name: "replicate"}, axis="data"),
        pt.ManualPartition({"gradient": 0}, axis="data"),
    ]

    def step(state, gradient):
        return update(state, gradient), jnp.sum(gradient)

    p = plan(step, array(16, 8), array(16, 8), tactics=tactics, donate_argnums=0)
    assert p.in_shardings[0] == p.out_shardings[0] == PartitionSpec()
    assert "input_output_alias" in p.jit().lower(array(16, 8), array(16, 8)).compile().as_text()


def test_donation_may_be_turned_off_for_a_run():
    p = plan(update, array(16, 8), array(16, 8), tactics=[], donate_argnums=0)
    state, gradient = p.shard(jnp.ones((16, 8)), jnp.ones((16, 8)))
    assert not deleted_after(p.jit(donate_argnums=()), state, gradient)


# -------------------------------------------------------------------------- what is not accepted


def fails(x):
    return x @ jnp.ones(3)


def calls_back(x):
    return jax.pure_callback(lambda a: a, array(16, 8), x)


ERRORS = [
    # function, changed keywords, error, message
    (fails, {}, pt.TraceError, "JAX cannot trace fails on the arguments given: TypeError: "),
    (
        calls_back,
        {},
        pt.UnsupportedError,
        r"pure_callback at .*test_api.py:\d+ calls back to the host",
    ),
    (jnp.sin, {"hardware": "tpu_v9"}, pt.HardwareError, "unknown device type 'tpu_v9'"),
    (jnp.sin, {"hardware": "none.toml"}, pt.HardwareError, "none.toml"),
    (jnp.sin, {"mesh": "data"}, pt.MeshError, "cannot read 'data' in mesh"),
    (jnp.sin, {"mesh": 8}, pt.MeshError, "cannot read a mesh from int"),
    (jnp.sin, {"mesh": {"data": 0}}, pt.MeshError, "'data' has size 0"),
    (jnp.sin, {"donate_argnums": 3}, pt.TraceError, "donate_argnums"),
]


@pytest.mark.parametrize(("fn", "changed", "error", "message"), ERRORS)
def test_errors(fn, changed, error, message):
    keywords = {"mesh": "data=8", "hardware": "cpu", "tactics": []} | changed
    with pytest.raises(error, match=message) as caught:
        pt.plan(fn, array(16, 8), **keywords)
    assert isinstance(caught.value, pt.PartitaError)


def test_what_is_no_array_is_named():
    def apply(model, mode):
        return model["activation"](model["w"])

    planned = functools.partial(plan, apply)
    ran = pt.jit(apply, mesh="data=8", hardware="cpu", tactics=[])
    model = {"w": jnp.ones(8), "activation": jax.nn.relu}
    for call in (planned, ran):
        with pytest.raises(pt.TraceError, match=r"model\['activation'\] of apply .*\(relu\)"):
            call(model, jnp.ones(3))
        with pytest.raises(pt.TraceError, match=r"mode of apply is no array, but a str \(train\)"):
            call({}, mode="train")


@pytest.mark.parametrize(
    "tactic",
    [
        pt.ManualPartition({"x": 0}, axis="dat"),
        pt.AutomaticPartition(axes=["dat"]),
        pt.AutomaticPartition(axes=["data", "dat"]),
    ],
)
def test_an_unknown_axis_is_found_before_tracing(tactic):
    traced = []
    with pytest.raises(pt.AxisError, match="mesh data=8 has no axis 'dat'; did you mean 'data'"):
        plan(lambda x: traced.append(x), array(16, 8), tactics=[tactic])
    assert not traced


@pytest.mark.parametrize(
    ("tactic", "error", "message"),
    [
        ({"y": 0}, pt.UnknownNameError, "'y' matches no argument, result or tagged value"),
        ({"x": 2}, pt.TacticError, r"x has 2 dimensions .*; there is no dimension 2"),
        ({"x": -3}, pt.TacticError, r"x has 2 dimensions .*; there is no dimension -3"),
        ({"x": "whole"}, pt.TacticError, "expected a dimension, .* got 'whole'"),
        ({"x": [0.5]}, pt.TacticError, r"expected a dimension, .* got \[0.5\]"),
        ({"x": 0.5}, pt.TacticError, "expected a dimension, .* got 0.5"),
    ],
)
def test_tactics_that_do_not_fit_the_program(tactic, error, message):
    with pytest.raises(error, match=message):
        plan(jnp.sin, array(16, 8), tactics=[pt.ManualPartition(tactic, axis="data")])


def test_an_argument_that_is_no_array():
    with pytest.raises(pt.PartitaError, match="hello"):
        plan(lambda x, text: x, array(16, 8), "hello")


# ------------------------------------------------------------------- programs with little in them

LITTLE = {
    "a scalar": (lambda x: 2 * x, (1.5,)),
    "no argument": (lambda: jnp.ones(8), ()),
    "nothing computed": (lambda x: x, (jnp.ones(8),)),
    "no result": (lambda x: None, (jnp.ones(8),)),
    "dimensions of size one": (lambda x: x + 1, (jnp.ones((1, 1)),)),
    "dimensions that nothing divides": (lambda x: x + 1, (jnp.ones((3, 5)),)),
    "dimensions of size zero": (lambda x: x + 1, (jnp.ones((0, 8)),)),
}


@pytest.mark.parametrize("program", LITTLE)
@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_there_may_be_nothing_to_partition(program):
    fn, args = LITTLE[program]
    p = pt.plan(fn, *args, mesh="data=8", hardware="cpu", budget=20)
    ours, theirs = p.jit()(*args), fn(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_search_over_no_axis_changes_nothing():
    p = plan(layer, array(16, 8), array(8, 4), tactics=[pt.AutomaticPartition(axes=[])])
    assert p.in_shardings == (PartitionSpec(), PartitionSpec())


@pytest.mark.parametrize("mesh", ["data=1", "data=1,model=8"])
def test_an_axis_of_one_device_moves_nothing(mesh):
    by_features = [pt.ManualPartition({"x": 1}, axis="data")]
    p = plan(layer, array(16, 8), array(8, 4), mesh=mesh, tactics=by_features)
    assert p.collectives == ()
    assert p.estimate.exposed_time == p.estimate.hidden_time == 0


def test_a_dimension_of_size_zero_is_not_sharded():
    p = plan(lambda x: x + 1, array(0, 8))
    assert p.jit()(jnp.ones((0, 8))).shape == (0, 8)


@pytest.mark.parametrize("name", pt._DEPRECATED)
def test_a_former_name_warns_and_is_the_new_one(name):
    now = pt._DEPRECATED[name]
    with pytest.warns(DeprecationWarning, match=f"partita.{name} is now called partita.{now}"):
        assert getattr(pt, name) is getattr(pt, now)
