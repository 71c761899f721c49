"""Kernels and opaque functions: split by a rule, with what a device runs on its shards."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, assert_same, numbers, planner, runs_as_the_original
from partita.stablehlo.rules import registry

plan = planner(mesh="data=2,model=2")


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch):
    monkeypatch.setattr(registry, "RULES", {})
    monkeypatch.setattr(registry, "LOCAL", {})


def tile(name, dim, axis="data"):
    return pt.ManualPartition({name: dim}, axis=axis)


def kinds(made):
    return [(c.kind, c.axes, c.bytes) for c in made.collectives]


# ------------------------------------------------------------------------------------ Pallas

COST = pl.CostEstimate(flops=4 * 10**9, bytes_accessed=2 * 10**6, transcendentals=0)


def squared(x, cost=None):
    """A kernel of rows."""

    def kernel(read, write):
        write[...] = read[...] * read[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, name="squared", cost_estimate=cost)(x)


X = array(512, 256)


def test_a_kernel_without_a_rule_is_replicated_and_the_report_says_so():
    made = plan(squared, X, tactics=[tile("x", 0)])
    assert kinds(made) == [("all_gather", ("data",), 512 * 256 * 4)]
    assert "kernel squared" in str(made.history[0].replicated_uses[0])


def test_a_rule_splits_a_kernel_and_a_device_runs_it_on_shards():
    pt.register_rule("squared", "rows columns! -> rows columns!", local=squared)
    made = plan(squared, X, tactics=[tile("x", 0)])
    assert not made.collectives
    (call,) = re.findall(r"custom_call @tpu_custom_call.* : (.*)", made.exported.mlir_module())
    assert call.startswith("(tensor<256x256xf32>) -> tensor<256x256xf32>")


def test_a_kernel_is_compiled_for_sizes_so_a_rule_alone_is_refused():
    pt.register_rule("squared", "rows columns! -> rows columns!")
    with pytest.raises(pt.RuleError, match=r"kernel 'squared' .* register_rule\(\.\.\., local="):
        plan(squared, X)
    with pytest.raises(pt.RuleError, match=r"'tpu_custom_call'.*pallas_call\(name=\.\.\.\)"):
        pt.register_rule("tpu_custom_call", "a -> a")
    with pytest.raises(pt.RuleError, match="must be a function, got 3"):
        pt.register_rule("squared", "a -> a", local=3)


def test_what_a_device_runs_must_make_what_the_rule_says():
    pt.register_rule("squared", "rows columns -> rows columns", local=lambda x: x[:2])
    made = plan(squared, X, tactics=[tile("x", 0)])
    with pytest.raises(pt.RuleError, match=r"'squared' makes f32\[2,256\] of .* f32\[256,256\]"):
        _ = made.exported


def test_a_kernel_costs_what_it_says():
    """Or else what it reads and writes; a device that has half of the rows does half of it."""
    costly = functools.partial(squared, cost=COST)
    pt.register_rule("squared", "rows columns -> rows columns", local=costly)
    said = plan(lambda x: costly(x), X, tactics=[]).estimate
    half = plan(lambda x: costly(x), X, tactics=[tile("x", 0)]).estimate
    assert said.compute_time == pytest.approx(4e9 / (1.97e14 * 0.97))
    assert half.compute_time == pytest.approx(said.compute_time / 2)
    unsaid = plan(lambda x: squared(x), X, tactics=[]).estimate
    assert unsaid.compute_time == pytest.approx(2 * 512 * 256 * 4 / (8.19e11 * 0.81))


def test_a_kernel_in_a_shard_map_is_as_the_model_has_it():
    automatic = (jax.sharding.AxisType.Auto,) * 2
    mesh, rows = jax.make_mesh((2, 2), ("data", "model"), axis_types=automatic), P("data")
    split = jax.shard_map(squared, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    made = plan(lambda x: split(x), X)
    assert made.in_shardings == (P("data"),)
    assert not made.collectives
    assert "tensor<256x256xf32>" in made.exported.mlir_module()


def test_a_plan_of_a_kernel_is_saved_and_loaded(tmp_path):
    pt.register_rule("squared", "rows columns -> rows columns", local=squared)
    plan(squared, X, tactics=[tile("x", 0)]).save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", squared, X)
    assert again.in_shardings == (P("data"),)


def test_a_call_that_hosts_have_runs_its_local_form():
    """The same for `jax.ffi` calls whose attributes hold sizes."""

    def gram(x):
        return jnp.linalg.cholesky(x @ x.mT + 9 * jnp.eye(4))

    pt.register_rule("lapack_spotrf_ffi", "b r! c! -> b r! c!, b", local=factor)
    x = numbers(8, 4, 4)
    made = plan(lambda x: gram(x), x, hardware="cpu", tactics=[tile("x", 0)])
    assert not made.collectives
    assert_same(made.jit()(*made.shard(x)), gram(x), 1e-4)


def factor(x):
    lower = lax.linalg.cholesky(x, symmetrize_input=False)
    return lower, jnp.zeros(x.shape[:-2], jnp.int32)


# ----------------------------------------------------------------------- custom_partitioning


def normalized(x, reduced=()):
    """Rows divided by their norm; with their columns split, the norm is summed over devices."""

    @custom_partitioning
    def function(x):
        return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))

    def partition(mesh, arg_shapes, result_shape):
        sharding = arg_shapes[0].sharding
        axes = sharding.spec[1] if len(sharding.spec) > 1 else None

        def local(x):
            total = jnp.sum(x * x, axis=-1, keepdims=True)
            return x / jnp.sqrt(lax.psum(total, axes) if axes else total)

        return mesh, local, NamedSharding(mesh, sharding.spec), (sharding,)

    function.def_partition(partition, sharding_rule="rows columns -> rows columns")
    return function(x)


@pytest.mark.parametrize("hardware", ["cpu", "tpu_v5e"])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), ()])
def test_a_function_that_says_how_it_is_split_is_split_so(hardware, dims):
    tactics = [tile("x", dim, axis) for dim, axis in zip(dims, ("data", "model"), strict=False)]
    x = numbers(8, 6)
    made = plan(lambda x: 2 * normalized(x), x, hardware=hardware, tactics=tactics)
    (op,) = [op for op in made.program.operations if op.target]
    assert str(op.rule) == "[i j] -> [i j]"
    assert not made.collectives
    assert_same(made.jit()(*made.shard(x)), 2 * normalized(x))


def test_it_runs_on_one_device_and_where_axes_are_not_used():
    x = numbers(8, 6)
    runs_as_the_original(plan(normalized, x, mesh="data=1", hardware="cpu"), x)
    made = plan(normalized, x, tactics=[])
    assert_same(made.core.run(x), normalized(x))
    split = plan(normalized, x, tactics=[tile("x", 0)])
    with pytest.raises(pt.UnsupportedError, match="cannot run on one; run the plan with"):
        split.core.run(x)


def test_it_is_written_out_in_files_and_annotations(tmp_path):
    made = plan(normalized, numbers(8, 6), tactics=[tile("x", 0)])
    for form in ("partitioned", "annotated"):
        made.export(tmp_path / "function.mlir", form)
        text = (tmp_path / "function.mlir").read_text()
        assert "stablehlo.sqrt" in text
        assert "partita" not in text


def test_one_without_a_rule_is_planned_as_what_it_computes():
    @custom_partitioning
    def function(x):
        return jnp.sum(x * x, axis=-1)

    function.def_partition(lambda *_: None)
    x = numbers(8, 6)
    made = plan(lambda x: function(x), x, tactics=[tile("x", 1)])
    assert kinds(made) == [("all_reduce", ("data",), 8 * 4)]


def test_one_that_is_split_otherwise_than_it_says_is_refused():
    @custom_partitioning
    def function(x):
        return 2 * x

    def partition(mesh, arg_shapes, result_shape):
        whole = NamedSharding(mesh, P())
        return mesh, lambda x: 2 * x, whole, (whole,)

    function.def_partition(partition, sharding_rule="i j -> i j")
    made = plan(lambda x: function(x), numbers(8, 6), tactics=[tile("x", 0)])
    with pytest.raises(pt.UnsupportedError, match=r"\[8, 6\] as P\(\), but its sharding_rule"):
        made.jit()


def test_one_that_holds_a_kernel_of_another_platform_is_refused_by_name():
    @custom_partitioning
    def function(x):
        return squared(x)

    def partition(mesh, arg_shapes, result_shape):
        sharding = arg_shapes[0].sharding
        return mesh, squared, sharding, (sharding,)

    function.def_partition(partition, sharding_rule="i j -> i j")
    made = plan(lambda x: function(x), X, tactics=[tile("x", 0)])
    assert "tensor<256x256xf32>" in made.exported.mlir_module()
    with pytest.raises(pt.UnsupportedError, match=r"JAX cannot lower .* for cpu"):
        made.jit()
