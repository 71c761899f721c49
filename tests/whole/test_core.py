"""PartIR:Core: what it prints is what was asked for, and it runs as the original does."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import assert_same, compiled, numbers, planner
from partita import models
from partita.models import strategies
from partita.tiling.show import show


def tile(name, dim, axis):
    return pt.ManualPartition({name: dim}, axis=axis)


planned = planner(hardware="cpu")


def assert_runs(plan, *args, tolerance=1e-5, **kwargs):
    """The loops, the original and the SPMD program agree."""
    core = plan.core.run(*args, **kwargs)
    original = compiled(jax.jit(plan.fn), *args, **kwargs)
    assert_same(core, original(*args, **kwargs), tolerance)
    assert_same(core, plan.jit()(*args, **kwargs), tolerance)


def shown(plan):
    """The lines after the first, without places in the source, in their order."""
    return [re.sub(r"  \S*:\d+$", "", line) for line in str(plan.core).splitlines()[1:]]


# ----------------------------------------------------------------------------------- what it prints


def test_a_matmul_split_in_all_its_factors():
    plan = planned(
        lambda x, w: x @ w,
        numbers(8, 12),
        numbers(12, 6),
        mesh="data=2,model=2,cols=2",
        tactics=[tile("x", 0, "data"), tile("x", 1, "model"), tile("w", 1, "cols")],
    )
    assert str(plan.core).startswith("core program <lambda> on data=2,model=2,cols=2\n")
    assert shown(plan) == [
        "  %0 = x : f32[8,12] (data, model)",
        "  %1 = w : f32[12,6] (model, cols)",
        '  %2 = loop "data"=2 [tile 0], "cols"=2 [tile 1], "model"=2 [sum] '
        "dot_general(%0[data, model], %1[model, cols]) : f32[4,3] -> f32[8,6]",
        "  result = %2 (data, cols)",
    ]
    assert_runs(plan, numbers(8, 12), numbers(12, 6, seed=1))


def test_what_combines_is_named_if_it_is_not_a_sum():
    plan = planned(lambda x: jnp.max(x, 0), numbers(8, 3), mesh="x=4", tactics=[tile("x", 0, "x")])
    assert shown(plan)[-2:] == [
        '  %2 = loop "x"=4 [max] reduce(%0[x, -], %1) : f32[3]',
        "  result = %2",
    ]
    assert_runs(plan, -1 - np.abs(numbers(8, 3)))


def test_two_axes_split_one_dimension_major_first():
    plan = planned(
        lambda x: -x, numbers(8, 3), mesh="x=2,y=2", tactics=[tile("x", 0, "y"), tile("x", 0, "x")]
    )
    assert shown(plan) == [
        "  %0 = x : f32[8,3] (y+x, -)",
        '  %1 = loop "y"=2 [tile 0], "x"=2 [tile 0] negate(%0[y+x, -]) : f32[2,3] -> f32[8,3]',
        "  result = %1 (y+x, -)",
    ]
    assert_runs(plan, numbers(8, 3))


def test_what_is_not_split_has_no_loop():
    plan = planned(lambda x: jnp.sort(x), numbers(8), mesh="x=2", tactics=[tile("x", 0, "x")])
    assert shown(plan) == ["  %0 = x : f32[8] (x)", "  %1 = sort(%0) : f32[8]", "  result = %1"]
    assert_runs(plan, numbers(8))


def test_windows_slice_with_halos():
    def smooth(x, k):
        return jax.lax.conv_general_dilated(
            x, k, (1,), [(2, 1)], dimension_numbers=("NWC", "WIO", "NWC")
        )

    args = numbers(2, 8, 1), numbers(4, 1, 2)
    plan = planned(smooth, *args, mesh="x=2", tactics=[tile("x", 1, "x")])
    assert shown(plan)[2] == (
        '  %2 = loop "x"=2 [tile 1] convolution(%0[-, x halo 2,1, -], %1) : '
        "f32[2,4,2] -> f32[2,8,2]"
    )
    assert_runs(plan, *args)


def test_loops_and_branches_are_nested():
    def fn(p, x, w):
        x = jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ w), x)
        return jax.lax.cond(p, lambda: jnp.sin(x), lambda: -x)

    args = np.bool_(True), numbers(4, 6), numbers(6, 6)
    plan = planned(fn, *args, mesh="x=2", tactics=[tile("x", 0, "x")])
    lines = shown(plan)
    at = next(n for n, line in enumerate(lines) if line.startswith("  while"))
    assert re.sub(r"%\d+", "%", "\n".join(lines[at - 1 :])).splitlines() == [
        '  %, %, % = loop "x"=2 [tile 0] carry(%[x, -], %[x, -]) : f32[2,6] -> f32[4,6]',
        "  while % (3 times)",
        "    % = constant() : i32[]",
        "    % = compare(%, %) : i1[]",
        "  do",
        '    % = loop "x"=2 [tile 0] dot_general(%[x, -], %) : f32[2,6] -> f32[4,6]',
        '    % = loop "x"=2 [tile 0] tanh(%[x, -]) : f32[2,6] -> f32[4,6]',
        "    % = constant() : i32[]",
        "    % = add(%, %) : i32[]",
        "  % = convert(%) : i32[]",
        "  choose(%)",
        "  branch 0",
        '    % = loop "x"=2 [tile 0] negate(%[x, -]) : f32[2,6] -> f32[4,6]',
        "  branch 1",
        '    % = loop "x"=2 [tile 0] sine(%[x, -]) : f32[2,6] -> f32[4,6]',
        '  % = loop "x"=2 [tile 0] join(%[x, -], %[x, -]) : f32[2,6] -> f32[4,6]',
        "  result = % (x, -)",
    ]
    assert_runs(plan, *args)


def test_layers_are_written_once():
    def fn(x, layers):
        for layer in layers:
            x = jnp.tanh(x @ layer["w"]) + jnp.cos(x)
        return x

    args = numbers(8, 6), [{"w": numbers(6, 6, seed=n)} for n in range(10)]
    plan = planned(fn, *args, mesh="x=2", tactics=[tile("x", 0, "x")])
    assert shown(plan) == [
        "  %0 = x : f32[8,6] (x, -)",
        "  x 10, i = 0 ... 9",
        "    %{1+i} = layers[{i}]['w'] : f32[6,6]",
        "  x 10, i = 0 ... 9",
        '    %{11+4i} = loop "x"=2 [tile 0] dot_general(%{0, then 10+4i}[x, -], %{1+i}) : '
        "f32[4,6] -> f32[8,6]",
        '    %{12+4i} = loop "x"=2 [tile 0] tanh(%{11+4i}[x, -]) : f32[4,6] -> f32[8,6]',
        '    %{13+4i} = loop "x"=2 [tile 0] cosine(%{0, then 10+4i}[x, -]) : f32[4,6] -> f32[8,6]',
        '    %{14+4i} = loop "x"=2 [tile 0] add(%{12+4i}[x, -], %{13+4i}[x, -]) : '
        "f32[4,6] -> f32[8,6]",
        "  result = %50 (x, -)",
    ]


def test_a_layer_that_is_split_otherwise_is_written_apart():
    def fn(x, layers):
        for w in layers:
            x = jnp.cos(jnp.tanh(jnp.sin(x))) * w
        return x

    def folds(nests):
        return [int(n) for n in re.findall(r"^  x (\d+),", show(nests), re.MULTILINE)]

    args = numbers(8, 8), [numbers(8, 8)] * 9
    nests = planned(fn, *args, mesh="x=2", tactics=[tile("x", 0, "x")]).core.nests
    ops = list(nests.assignment.ops)
    ops[4 * 4 + 1] = ((), ())  # the tanh of the fifth layer
    otherwise = dataclasses.replace(nests.assignment, ops=tuple(ops))
    assert folds(nests) == [9, 9]
    assert folds(dataclasses.replace(nests, assignment=otherwise)) == [9, 4, 4]


# -------------------------------------------------------------------------------------- how it runs

INDICES = np.array([5, 0, 7, 7], np.int32)

PROGRAMS = {
    "x + x.T": (lambda x: x + x.T, [numbers(8, 8)]),
    "square weights": (lambda x, w: jnp.tanh(x @ w) @ w, [numbers(8, 8), numbers(8, 8)]),
    "transpose": (lambda x: jnp.transpose(x, (2, 0, 1)) * 2, [numbers(8, 4, 6)]),
    "split dimensions": (lambda x: x.reshape(4, 2, 3, 4), [numbers(8, 12)]),
    "merged dimensions": (lambda x: x.reshape(32, 6), [numbers(8, 4, 6)]),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (8, 5, 4)) + 1, [numbers(8, 4)]),
    "sums, products, extremes": (
        lambda x: (jnp.sum(x), jnp.prod(x, 0), jnp.min(x, 0), jnp.max(x)),
        [numbers(8, 4)],
    ),
    "sums that begin at 5": (
        lambda x: jax.lax.reduce(x, np.float32(5), jax.lax.add, (0,)),
        [numbers(8, 4)],
    ),
    "all and any": (lambda x: (jnp.all(x > -1, 0), jnp.any(x > 1, 0)), [numbers(8, 4)]),
    "look-ups": (lambda x: x[INDICES], [numbers(8, 4)]),
    "additions at places": (lambda x: x.at[INDICES].add(1.5), [numbers(8, 4)]),
    "places set": (lambda x: x.at[2].set(1.5), [numbers(8, 4)]),
    "an index that is computed": (
        lambda x: jax.lax.dynamic_index_in_dim(x, jnp.argmax(x[:, 0]), 0),
        [numbers(8, 4)],
    ),
    "concatenation": (lambda x: jnp.concatenate([x, 2 * x, x[:, :1]], 1), [numbers(8, 4)]),
    "counted": (lambda x: x * jnp.arange(8)[:, None] + np.eye(8, 4), [numbers(8, 4)]),
    "padding and slices": (lambda x: jnp.pad(x, ((0, 0), (1, 2)))[:, 1:], [numbers(8, 4)]),
    "the largest": (lambda x: jax.lax.top_k(x, 2), [numbers(8, 4)]),
    "cumulative sums": (lambda x: jnp.cumsum(x, 0), [numbers(8, 4)]),
    "pooling": (
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (1, 1), "SAME"),
        [-1 - np.abs(numbers(8, 4))],
    ),
    "a scan": (lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), x[0], x), [numbers(8, 4)]),
    "nothing": (lambda x: (x[:, :0] + 1, jnp.sum(x[:, :0], 1)), [numbers(8, 4)]),
    "complex numbers": (lambda x: jnp.sum(x * (1 + 2j), 0), [numbers(8, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_by_their_loops(name):
    fn, args = PROGRAMS[name]

    def named(x, *rest):
        return fn(x, *rest)

    tactics = [tile("x", 0, "b"), tile("x", 1, "a")]
    assert_runs(planned(named, *args, mesh="a=2,b=4", tactics=tactics), *args)


def test_results_are_nested_and_typed_as_the_function_returns_them():
    def fn(key, x, *, scale, shift=None):
        a, b = jax.random.split(key)
        return {"key": a, "noise": x + scale["by"] * jax.random.normal(b, x.shape)}, shift

    args, kwargs = (jax.random.key(3), numbers(8, 4)), {"scale": {"by": np.float32(2)}}
    plan = planned(fn, *args, mesh="x=2", tactics=[tile("x", 0, "x")], **kwargs)
    assert_runs(plan, *args, **kwargs)


def test_constants_that_have_become_arguments_are_passed():
    table = numbers(512, 4)

    def fn(x, *, scale):
        return x @ table * scale

    args, kwargs = (numbers(8, 512),), {"scale": np.float32(2)}
    tactics = [tile("constants[0]", 0, "x")]
    plan = planned(fn, *args, mesh="x=2", tactics=tactics, hoist_constants=True, **kwargs)
    assert "constants[0] : f32[512,4] (x, -)" in str(plan.core)
    assert_runs(plan, *args, **kwargs)
    with pytest.raises(TypeError, match="unexpected keyword"):
        planned(
            lambda x: x @ table, *args, mesh="x=2", tactics=tactics, hoist_constants=True
        ).core.run(*args, scale=1)


def test_it_runs_on_one_device_whatever_the_arguments_are_on():
    plan = planned(lambda x: 2 * x, numbers(8), mesh="x=8", tactics=[tile("x", 0, "x")])
    result = plan.core.run(*plan.shard(numbers(8)))
    assert len(result.devices()) == 1
    np.testing.assert_array_equal(result, 2 * numbers(8))


def test_it_holds_no_collective_and_one_loop_for_each_split_operation():
    args = numbers(8, 8), numbers(8, 8)
    plan = planned(
        lambda x, w: jnp.tanh(x @ w) @ w,
        *args,
        mesh="x=2,y=2",
        tactics=[tile("w", 1, "y"), tile("x", 0, "x")],
    )
    assert plan.collectives
    text = plan.core.jitted.lower(*args).as_text()
    assert text.count("stablehlo.while") == str(plan.core).count("loop ")
    for word in (
        "all_reduce",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "partition_id",
        "sdy.",
    ):
        assert word not in text


# Small ones: every loop is unrolled, so that time to compile grows with layers and devices.
MODELS = [
    ("gpt-tiny", "tensor-parallel"),
    ("resnet-tiny", "data-parallel"),
    ("moe-tiny", "fsdp"),
    ("gns-tiny", "automatic"),
]


@pytest.mark.parametrize(("name", "how"), MODELS)
def test_models_run_by_their_loops(name, how):
    one = {"layers": 1} if name == "gpt-tiny" else {}
    model = models.build(name, dtype="float32", **one)
    schedule = strategies.schedule(name, how, budget=100)
    plan = planned(
        model.fn, *model.args, mesh=schedule.mesh.replace("8", "2"), tactics=schedule.tactics
    )
    args = model.example(0)
    ours, theirs = (compiled(f, *args)(*args) for f in (plan.core.jitted, jax.jit(model.fn)))
    assert_same(ours, theirs, 1e-4)


def test_a_constraint_is_what_it_constrains_and_a_manual_computation_cannot_run_on_one_device():
    def constrained(x):
        return jnp.sin(pt.constrain(2 * x, jax.P(None, "data")))

    x = np.ones((8, 4), np.float32)
    rows = pt.ManualPartition({"x": 0}, axis="data")
    plan = pt.plan(constrained, x, mesh="data=4", hardware="tpu_v5e", tactics=rows)
    np.testing.assert_allclose(plan.core.run(x), np.sin(2 * x), rtol=1e-6)

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"))
    plan = pt.plan(mapped, x, mesh="data=4", hardware="tpu_v5e", tactics=[])
    with pytest.raises(pt.UnsupportedError, match="cannot run on one"):
        plan.core.run(x)
