"""A planned function is called as `jax.jit`'s are: types, devices, arrays elsewhere, mistakes."""

import contextlib
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import assert_same, numbers
from partita import jitted

ROWS = [pt.ManualPartition({"x": 0}, axis="data")]
plan = functools.partial(pt.plan, hardware="cpu", mesh="data=4", tactics=ROWS)
jit = functools.partial(pt.jit, hardware="cpu", mesh="data=4", tactics=ROWS)


def layer(x, w):
    return jnp.tanh(x @ w)


X, W = numbers(16, 8), numbers(8, 4, seed=1)
DEVICES = np.array(jax.devices())


# ------------------------------------------------------------------------------------ weak types


@pytest.mark.parametrize("scalar", [2.5, 3, True, 1j])
def test_results_have_the_weak_types_that_the_functions_have(scalar):
    def double(x, a):
        return a + a, a, x * a, jnp.sum(x) + 1.0

    def weak(results):
        return [(r.dtype, r.weak_type) for r in results]

    p = plan(double, X, scalar)
    theirs = jax.jit(double)(X, scalar)
    assert weak(p.jit()(X, scalar)) == weak(theirs)
    assert weak(jit(double)(X, scalar)) == weak(theirs)
    assert weak(jax.jit(lambda x, a: p.jit()(x, a))(X, scalar)) == weak(theirs)
    assert [leaf.weak_type for leaf in p.results] == [r.weak_type for r in theirs]


def test_a_weakly_typed_result_is_promoted_as_the_originals_is():
    p = plan(lambda a: a * 2, 2.5, tactics=[])
    assert (p.jit()(2.5) + jnp.bfloat16(1)).dtype == jnp.bfloat16


@pytest.mark.parametrize("later", [5, jnp.int32(5), np.int32(5), np.array(5, np.int32)])
def test_a_step_counter_is_planned_once(later):
    """It begins as a Python integer, and goes on as a result or as an array."""
    step = jit(lambda x, count: (x * 0.5, count + 1))
    x, count = step(X, 0)
    for _ in range(2):
        x, count = step(x, count)
    assert int(count) == 3 and count.weak_type
    assert int(step(x, later)[1]) == 6
    assert step(x, later)[1].weak_type == jax.jit(lambda count: count + 1)(later).weak_type
    assert len(step.plans) == 1


def test_a_scalar_whose_weak_type_makes_another_program_is_planned_for_itself():
    scale = jit(lambda x, a: x.astype(jnp.bfloat16) * a)
    assert scale(X, 1.5).dtype == jnp.bfloat16
    assert scale(X, jnp.float32(1.5)).dtype == jnp.float32
    assert scale(X, 1.5).dtype == jnp.bfloat16
    assert len(scale.plans) == 2


# --------------------------------------------------------------------------- the mesh that is given

SOME = {
    "the last": DEVICES[4:],
    "reversed": DEVICES[3::-1],
    "scattered": DEVICES[[5, 1, 7, 2]],
}


@pytest.mark.parametrize("types", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("devices", SOME)
def test_a_plan_runs_on_the_mesh_that_it_is_made_for(devices, types):
    mesh = Mesh(SOME[devices], ("data",), axis_types=(types,))
    rows, every = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    p = plan(layer, X, W, mesh=mesh)
    assert p.device_mesh() == mesh
    assert [a.sharding for a in p.shard(X, W)] == [rows, every]
    assert [a.sharding for a in p.abstract()] == [rows, every]
    assert p.init(lambda: jnp.ones((16, 8))).sharding == rows
    for fn in (p.jit(), jit(layer, mesh=mesh)):
        made = fn(X, W)
        assert made.sharding.is_equivalent_to(rows, 2)
        assert made.sharding.mesh == mesh
        assert_same(made, layer(X, W))


@pytest.mark.parametrize("types", [AxisType.Auto, AxisType.Explicit])
def test_results_are_combined_with_arrays_of_the_mesh_that_is_set(types):
    mesh = Mesh(DEVICES[4:], ("data",), axis_types=(types,))
    p = plan(layer, X, W, mesh=mesh)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(X, NamedSharding(mesh, P("data"))), jnp.asarray(W)
        other = jax.device_put(layer(X, W), NamedSharding(mesh, P("data")))
        for fn in (p.jit(), jit(layer, mesh=mesh)):
            assert_same(fn(x, w) + other, 2 * layer(X, W))
            assert_same(jax.jit(lambda x, w, fn=fn: fn(x, w) + other)(x, w), 2 * layer(X, W))
            gradient = jax.grad(lambda w, fn=fn: jnp.sum(fn(x, w)))(w)
            assert_same(gradient, jax.grad(lambda w: jnp.sum(layer(X, w)))(W))


def test_a_plan_whose_mesh_is_words_runs_on_the_mesh_that_is_set():
    mesh = Mesh(DEVICES[4:], ("data",), axis_types=(AxisType.Explicit,))
    p = plan(layer, X, W)
    with jax.set_mesh(mesh):
        assert p.device_mesh() == mesh
        assert jax.typeof(p.jit()(X, W)).sharding.spec == P("data", None)
    with jax.set_mesh(Mesh(DEVICES[4:], ("other",))):
        assert p.device_mesh().devices.tolist() == DEVICES[:4].tolist()
    assert p.device_mesh().devices.tolist() == DEVICES[:4].tolist()


EXPLICIT = Mesh(DEVICES[:4].reshape(2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_sharding_of_an_argument_is_part_of_its_type_under_an_explicit_mesh(abstract):
    def fn(x):
        assert jax.typeof(x).sharding.spec == P("data", None)
        return jax.shard_map(lambda x: 2 * x, in_specs=P("data"), out_specs=P("data"))(x)

    with jax.set_mesh(EXPLICIT):
        x = jax.device_put(X, NamedSharding(EXPLICIT, P("data", None)))
        shape = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=x.sharding)
        p = plan(fn, shape if abstract else x, mesh=EXPLICIT, tactics=())
        assert (p.in_shardings, p.out_shardings, p.collectives) == ((P("data"),), P("data"), ())
        assert_same(p.jit()(x), jnp.asarray(2 * X))


def ragged(x, w):
    return jax.lax.ragged_dot(x, w[None], jnp.full(1, len(x)))


def in_order(x, w):
    return jnp.cumsum(jnp.sort(x, axis=0), axis=0) @ w


@pytest.mark.parametrize(
    ("fn", "transform"),
    [(ragged, "grad"), (ragged, "jit"), (in_order, "grad"), (in_order, "vmap"), (in_order, "jit")],
)
@pytest.mark.parametrize("is_set", [False, True])
def test_operations_without_a_rule_for_explicit_types_run_inside_of_others(fn, transform, is_set):
    p = plan(fn, X, W, mesh=EXPLICIT)
    x, w = jnp.asarray(X), jnp.asarray(W)

    def transformed(fn, x, w):
        if transform == "grad":
            return jax.grad(lambda x: jnp.sum(fn(x, w)))(x)
        if transform == "vmap":
            return jax.vmap(lambda scale: fn(scale * x, w))(jnp.arange(3.0))
        return jax.jit(lambda x: fn(2 * x, w) + 1)(x)

    expected = transformed(fn, x, w)
    with jax.set_mesh(EXPLICIT) if is_set else contextlib.nullcontext():
        x, w = p.shard(x, w) if is_set else (x, w)
        assert_same(transformed(p.jit(), x, w), expected)


def test_an_abstract_mesh_says_the_types_of_axes():
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    p = plan(layer, X, W, mesh=mesh)
    assert p.device_mesh().axis_types == (AxisType.Explicit,)
    assert jax.typeof(p.jit()(X, W)).sharding.spec == P("data", None)


def test_a_mesh_given_to_a_run_comes_first():
    p = plan(layer, X, W, mesh=Mesh(DEVICES[4:], ("data",)))
    first = Mesh(DEVICES[:4], ("data",))
    assert p.jit(first)(X, W).devices() == set(DEVICES[:4])
    assert p.shard(X, mesh=first)[0].devices() == set(DEVICES[:4])


def test_a_saved_plan_runs_on_the_mesh_that_it_is_loaded_for(tmp_path):
    mesh = Mesh(DEVICES[[6, 4, 5, 7]], ("data",), axis_types=(AxisType.Explicit,))
    plan(layer, X, W, mesh=Mesh(DEVICES[:4], ("data",))).save(tmp_path / "plan.json")
    assert pt.load(tmp_path / "plan.json", layer, X, W, mesh=mesh).device_mesh() == mesh
    made = pt.jit(layer, saved=tmp_path / "plan.json", mesh=mesh)(X, W)
    assert made.sharding.mesh == mesh
    assert_same(made, layer(X, W))


# -------------------------------------------------------------------------------- arrays elsewhere


def elsewhere():
    mesh = functools.partial(Mesh, axis_names=("data",))
    explicit = Mesh(DEVICES[:4], ("data",), axis_types=(AxisType.Explicit,))
    return {
        "a device": DEVICES[0],
        "another device": DEVICES[6],
        "columns": NamedSharding(mesh(DEVICES[:4]), P(None, "data")),
        "other devices": NamedSharding(mesh(DEVICES[4:]), P("data")),
        "devices in another order": NamedSharding(mesh(DEVICES[3::-1]), P("data")),
        "more devices": NamedSharding(mesh(DEVICES), P("data")),
        "another mesh": NamedSharding(Mesh(DEVICES[:4].reshape(2, 2), ("a", "b")), P("b", "a")),
        "an explicit mesh": NamedSharding(explicit, P()),
    }


@pytest.mark.parametrize("where", elsewhere())
def test_arrays_elsewhere_are_moved_with_one_warning(where):
    fn = plan(layer, X, W).jit()
    x = jax.device_put(X, elsewhere()[where])
    with pytest.warns(pt.ReshardWarning) as warned:
        for _ in range(3):
            assert_same(fn(x, W), layer(X, W))
    (warning,) = warned
    assert warning.filename == __file__
    assert str(warning.message) == (
        "layer got arguments that lie otherwise than it is planned for: 512 B in 1 of 2 arrays "
        "(the largest is x) are moved, now and in every such call; place them once with "
        "plan.shard(...), or pass on what the function returns"
    )


@pytest.mark.parametrize("where", elsewhere())
def test_a_function_of_jit_moves_arrays_or_plans_for_them(where):
    """Shardings over the axes of its mesh are what a plan is made for."""
    fn = jit(layer)
    fn(X, W)
    x = jax.device_put(X, elsewhere()[where])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_same(fn(x, W), layer(X, W))
        gradient = jax.grad(lambda w: jnp.sum(fn(x, w)))
        if where != "an explicit mesh":
            assert_same(gradient(W), jax.grad(lambda w: jnp.sum(layer(X, w)))(W))
    own = where in ("columns", "an explicit mesh")
    assert len(fn.plans) == 1 + own
    moved = [w for w in warned if issubclass(w.category, pt.ReshardWarning)]
    assert len(moved) == (0 if own else 1)


def test_what_is_placed_or_bound_to_no_device_is_not_moved():
    p = plan(layer, X, W)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in (p.shard(X, W), (X, W), (jnp.asarray(X), jnp.asarray(W))):
            assert_same(p.jit()(*args), layer(X, W))


def test_constants_and_keywords_and_random_keys_are_moved_too():
    table = numbers(8, 4)

    def draw(x, *, key):
        return x @ table + jax.random.normal(key, (16, 4))

    key = jax.random.key(0)
    p = plan(draw, X, key=key, hoist_constants="64B")
    x, there = jax.device_put((X, key), DEVICES[6])
    with pytest.warns(pt.ReshardWarning, match=r"520 B in 2 of 2 arrays \(the largest is x\)"):
        assert_same(p.jit()(x, key=there), draw(X, key=key))


# --------------------------------------------------------------------------------- the fast path


def looked_at(monkeypatch):
    """The arrays that `jit` looks at one by one."""
    seen = []
    monkeypatch.setattr(jitted, "weakly_typed", lambda leaf: seen.append(leaf) or False)
    return seen


@pytest.mark.parametrize("arrays", [2, 50])
def test_a_call_as_the_last_one_looks_at_no_array(arrays, monkeypatch):
    fn = jit(lambda x, params: [x + p[0] for p in params], tactics=[])
    params = [np.ones(2, np.float32) for _ in range(arrays)]
    fn(X, params)
    seen = looked_at(monkeypatch)
    for _ in range(3):
        fn(X, params)
    assert seen == []


@pytest.mark.parametrize("arrays", [2, 50])
def test_calls_that_differ_are_told_apart_by_one_array(arrays, monkeypatch):
    fn = jit(lambda x, params: [x + p[0] for p in params], tactics=[])
    params = [np.ones(2, np.float32) for _ in range(arrays)]
    for x in (X, X[:8], X, X[:8]):
        fn(x, params)
    seen = looked_at(monkeypatch)
    for x in (X, X[:8], X[:8], X):
        assert fn(x, params)[0].shape == x.shape
    assert [leaf.shape for leaf in seen] == [(16, 8), (8, 8), (8, 8), (16, 8)]
    assert len(fn.plans) == 2


def test_calls_of_any_kind_in_any_order_are_each_right():
    """Shapes, types, trees, weak types, static arguments and shardings, drawn at random."""

    def call(x, a, kind="sin"):
        return {"y": getattr(jnp, kind)(x["x"]) * a}

    rows = [pt.ManualPartition({"x['x']": 0}, axis="data")]
    fn = jit(call, static_argnames="kind", tactics=rows)
    theirs = jax.jit(call, static_argnames="kind")
    mesh = Mesh(DEVICES[:4], ("data",))
    arrays = [
        X,
        X[:8],
        X.astype(jnp.bfloat16),
        jax.device_put(X, NamedSharding(mesh, P("data"))),
        jax.device_put(X, NamedSharding(mesh, P(None, "data"))),
    ]
    scalars = [2, 2.5, np.float32(2.5), jnp.bfloat16(1.5), jnp.int32(3)]
    rng = np.random.default_rng(0)
    for _ in range(60):
        x, a = arrays[rng.integers(5)], scalars[rng.integers(5)]
        kind = {"kind": ("sin", "cos")[rng.integers(2)]} if rng.random() < 0.7 else {}
        ours, original = fn({"x": x}, a, **kind), theirs({"x": x}, a, **kind)
        assert_same(ours, original, 1e-2)
        assert ours["y"].weak_type == original["y"].weak_type


# ------------------------------------------------------------------------------------- mistakes


def loss(params, batch, *, scale):
    return scale * jnp.sum(params["w"] @ batch["x"])


PARAMS = {"w": numbers(8, 8)}
BATCH = {"x": numbers(8, 4)}

MISTAKES = {
    "shape": (
        (PARAMS, {"x": numbers(8, 2)}),
        "batch['x'] of loss is planned as float32[8,4], and float32[8,2] came; convert it, or use "
        "pt.jit, which plans for each shape and type",
    ),
    "type": (
        ({"w": np.ones((8, 8), np.int32)}, BATCH),
        "params['w'] of loss is planned as float32[8,8], and int32[8,8] came; convert it, or use "
        "pt.jit, which plans for each shape and type",
    ),
    "no array": (
        ({"w": "w"}, BATCH),
        "params['w'] of loss is planned as float32[8,8], and a str came; convert it, or use "
        "pt.jit, which plans for each shape and type",
    ),
    "tree": (
        ({"v": PARAMS["w"]}, BATCH),
        "params of loss is planned as {'w': float32[8,8]}, and {'v': float32[8,8]} came; pass it "
        "nested as in the call that was planned, or use pt.jit, which plans for each",
    ),
    "none": (
        (PARAMS, None),
        "batch of loss is planned as {'x': float32[8,4]}, and None came; pass it nested as in the "
        "call that was planned, or use pt.jit, which plans for each",
    ),
    "too many": (
        (PARAMS, BATCH, BATCH),
        "loss is planned for 2 positional arguments, and 3 came; call it as in the call that was "
        "planned",
    ),
}


@pytest.fixture(scope="module")
def planned_loss():
    return plan(loss, PARAMS, BATCH, scale=1.0, tactics=[])


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("traced", [False, True])
def test_a_mistake_in_a_call_names_the_argument(planned_loss, mistake, traced):
    args, message = MISTAKES[mistake]
    fn = planned_loss.jit()
    call = (lambda x: fn(*args, scale=x)) if traced else functools.partial(fn, *args)
    with pytest.raises(pt.ArgumentError) as error:
        jax.jit(call)(2.0) if traced else call(scale=2.0)
    assert str(error.value) == message


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_what_is_placed_names_the_argument(planned_loss, mistake):
    args, message = MISTAKES[mistake]
    with pytest.raises(pt.ArgumentError) as error:
        planned_loss.shard(*args)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (PARAMS,),
            {"scale": 1.0},
            "loss is planned for 2 positional arguments, and 1 came; call it as in the call that "
            "was planned",
        ),
        (
            (PARAMS,),
            {"batch": BATCH, "scale": 1.0},
            "loss is planned for keyword argument scale, and keyword arguments batch, scale came; "
            "call it as in the call that was planned, or use pt.jit, which plans for each way",
        ),
        (
            (PARAMS, BATCH),
            {},
            "loss is planned for keyword argument scale, and no keyword arguments came; call it as "
            "in the call that was planned, or use pt.jit, which plans for each way",
        ),
        (
            (PARAMS, BATCH),
            {"scale": np.ones(3, np.float32)},
            "scale of loss is planned as float32[], and float32[3] came; convert it, or use "
            "pt.jit, which plans for each shape and type",
        ),
    ],
)
def test_a_mistake_in_how_it_is_called(planned_loss, args, kwargs, message):
    for call in (planned_loss.jit(), planned_loss.jit().lower, planned_loss.jit().eval_shape):
        with pytest.raises(pt.ArgumentError) as error:
            call(*args, **kwargs)
        assert str(error.value) == message


def test_a_long_tree_is_cut():
    many = {f"layer_{n}": np.ones(2, np.float32) for n in range(100)}
    p = plan(lambda params: params, many, tactics=[])
    with pytest.raises(pt.ArgumentError) as error:
        p.jit()({**many, "one_more": 1.0})
    assert len(str(error.value)) < 900


def test_a_program_of_a_file_names_its_arguments(tmp_path):
    (tmp_path / "layer.mlir").write_text(jax.jit(layer).lower(X, W).as_text())
    p = plan(str(tmp_path / "layer.mlir"), tactics=[])
    with pytest.raises(pt.ArgumentError, match=r"^arg1 of layer is planned as float32\[8,4\]"):
        p.jit()(X, X)


def test_an_argument_of_many_is_named_as_jax_names_it():
    p = plan(lambda first, *rest: first, X, W, [W], tactics=[])
    with pytest.raises(pt.ArgumentError, match=r"^rest\[1\]\[0\] of <lambda> is planned as"):
        p.jit()(X, W, [X])
    with pytest.raises(pt.ArgumentError, match=r"^rest\[1\] of <lambda> is planned as"):
        p.jit()(X, W, (W,))


def test_wider_numbers_are_taken_as_jax_takes_them():
    fn = plan(layer, X, W).jit()
    assert_same(fn(X.astype(np.float64), W), layer(X, W))
