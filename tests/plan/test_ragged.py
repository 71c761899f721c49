"""Products with ragged groups (`lax.ragged_dot`): one operation, split by rows, groups, columns."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax import lax

import partita as pt
from checks import array, assert_same, numbers, planner, runs_as_the_original

plan = planner(mesh="data=2,model=2")
SIZES = jnp.array([5, 0, 9, 2], jnp.int32)
X, W = numbers(16, 8), numbers(4, 8, 12)


def tile(name, dim, axis):
    return pt.ManualPartition({name: dim}, axis=axis)


def product(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


def step(x, w, sizes):
    """Both gradients: one has the groups in the result, and the rows contracted."""

    def loss(x, w):
        return jnp.sum(jnp.sin(lax.ragged_dot(x, w, sizes)))

    dx, dw = jax.grad(loss, (0, 1))(x, w)
    return x - dx, w - dw


def ragged(made):
    return [op for op in made.program.operations if op.short == "ragged_dot"]


def kinds(made):
    return [(c.kind, c.axes, c.bytes) for c in made.collectives]


@pytest.mark.parametrize("hardware", ["tpu_v5e", "h100"])
def test_it_is_one_operation_and_no_more_work_than_its_rows(hardware):
    """8 experts took 8 dense products before; every row is multiplied by one."""
    x, w = array(8192, 4096, dtype=jnp.bfloat16), array(8, 4096, 14336, dtype=jnp.bfloat16)
    sizes = array(8, dtype=jnp.int32)
    made = plan(product, x, w, sizes, mesh="data=1", hardware=hardware)
    assert len(ragged(made)) == 1
    peak = made.hardware.flops("bf16") * made.hardware.efficiency.matmul.value
    assert made.estimate.compute_time == pytest.approx(2 * 8192 * 4096 * 14336 / peak, rel=0.05)


TILES = [("x", 0), ("x", 1), ("w", 0), ("w", 2)]


@pytest.mark.parametrize("one", TILES, ids=str)
@pytest.mark.parametrize("two", TILES, ids=str)
def test_it_runs_split_by_two_axes_as_the_original(one, two):
    tactics = [tile(*one, "data"), tile(*two, "model")]
    runs_as_the_original(plan(product, X, W, SIZES, tactics=tactics), X, W, SIZES)
    runs_as_the_original(plan(step, X, W, SIZES, tactics=tactics), X, W, SIZES, tolerance=1e-4)


@pytest.mark.parametrize("sizes", [[16, 0, 0, 0], [0, 0, 0, 16], [1, 2, 3, 4], [0, 0, 0, 0]])
@pytest.mark.parametrize(("rows", "groups"), [(True, False), (False, True), (True, True)])
def test_rows_without_a_group_are_zero(sizes, rows, groups):
    tactics = [tile("x", 0, "data")] * rows + [tile("w", 0, "model")] * groups
    args = X, W, jnp.array(sizes, jnp.int32)
    runs_as_the_original(plan(step, *args, tactics=tactics), *args, tolerance=1e-4)


@pytest.mark.parametrize(
    ("tactic", "expected"),
    [
        (tile("x", 0, "data"), []),
        (tile("w", 2, "data"), []),
        (tile("w", 0, "data"), [("all_reduce", ("data",), 16 * 12 * 4)]),
        (tile("x", 1, "data"), [("all_reduce", ("data",), 16 * 12 * 4)]),
    ],
    ids=["rows", "columns", "groups", "contracted"],
)
def test_what_is_exchanged(tactic, expected):
    """Devices with other experts, or other features, contribute to the same rows."""
    made = plan(product, X, W, SIZES, tactics=[tactic])
    assert kinds(made) == expected


def test_experts_that_are_split_make_their_gradients_alone():
    """Rows are replicated over the experts' axis, and only activations are summed."""
    made = plan(step, X, W, SIZES, mesh="data=4", tactics=[tile("w", 0, "data")])
    assert kinds(made) == [
        ("all_reduce", ("data",), 16 * 12 * 4),
        ("all_reduce", ("data",), 16 * 8 * 4),
    ]


def test_a_batch_of_them_is_split_by_examples():
    """Each example has other rows then, so only examples, features and columns are split."""
    args = (
        numbers(4, 16, 8),
        numbers(4, 4, 8, 12),
        jnp.array([[5, 0, 9, 2]] * 2 + [[0, 1, 2, 3]] * 2),
    )
    made = plan(jax.vmap(product), *args, tactics=[tile("x", 0, "data"), tile("w", 3, "model")])
    runs_as_the_original(made, *args)
    assert not made.collectives
    rows = plan(jax.vmap(product), *args, tactics=[tile("x", 1, "data"), tile("w", 1, "model")])
    runs_as_the_original(rows, *args)
    assert kinds(rows) == [
        ("all_gather", ("data",), 4 * 16 * 8 * 4),
        ("all_gather", ("model",), 4 * 4 * 8 * 12 * 4),
    ]


def test_half_precision_runs():
    args = jnp.asarray(X, jnp.bfloat16), jnp.asarray(W, jnp.bfloat16), SIZES
    sums = functools.partial(lax.ragged_dot, preferred_element_type=jnp.float32)
    made = plan(lambda x, w, sizes: sums(x, w, sizes), *args, tactics=[tile("w", 0, "model")])
    runs_as_the_original(made, *args)


def test_the_loops_of_a_plan_run_too():
    made = plan(step, X, W, SIZES, tactics=[tile("x", 0, "data"), tile("w", 0, "model")])
    assert_same(made.core.run(X, W, SIZES), step(X, W, SIZES), 1e-4)


@pytest.mark.parametrize("suffix", [".bin", ".mlir", ".mlirbc"])
def test_it_is_one_operation_in_files_for_tpus_too(tmp_path, suffix):
    """Portable artifacts write it as a composite, whose decomposition is dense."""
    path = tmp_path / f"step{suffix}"
    exported = jax.export.export(jax.jit(step), platforms=["tpu"])(X, W, SIZES)
    if suffix == ".bin":
        path.write_bytes(exported.serialize())
    elif suffix == ".mlir":
        path.write_text(exported.mlir_module())
    else:
        path.write_bytes(exported.mlir_module_serialized)
    made = plan(path)
    assert len(ragged(made)) == 3
    traced = plan(step, X, W, SIZES)
    assert made.estimate.compute_time == pytest.approx(traced.estimate.compute_time)
    made = plan(path, tactics=[pt.ManualPartition({made.program.argument_names[0]: 0}, "data")])
    assert_same(made.jit()(*made.shard(X, W, SIZES)), step(X, W, SIZES), 1e-4)


def test_it_stays_one_operation_where_constants_of_a_file_are_hoisted(tmp_path):
    def scaled(x, w, sizes):
        return lax.ragged_dot(x @ numbers(8, 8), w, sizes)

    path = tmp_path / "scaled.bin"
    exported = jax.export.export(jax.jit(scaled), platforms=["tpu"])(X, W, SIZES)
    path.write_bytes(exported.serialize())
    made = plan(path, hoist_constants="100 B")
    assert len(made.closed_over) == 1 and len(ragged(made)) == 1


def test_on_a_host_it_is_what_jax_makes_of_it_there():
    """Hardware that is a host has no such operation: what runs is what is planned."""
    made = plan(product, X, W, SIZES, hardware="cpu", tactics=[tile("x", 0, "data")])
    assert not ragged(made)
    runs_as_the_original(made, X, W, SIZES)


def test_other_operations_of_chlo_are_kept_in_files(tmp_path):
    """`top_k` of a file was a sort before, and `erf` a polynomial."""

    def function(x):
        return lax.erf(x), *lax.top_k(jnp.sinh(x), 3)

    path = tmp_path / "function.bin"
    path.write_bytes(jax.export.export(jax.jit(function), platforms=["tpu"])(X).serialize())
    made = plan(path)
    assert [op.kind for op in made.program.operations] == ["chlo.erf", "chlo.sinh", "chlo.top_k"]
    assert_same(made.jit()(*made.shard(X)), function(X))


def test_composites_of_users_are_taken_apart():
    scaled = lax.composite(lambda x: jnp.tanh(x) * 2, name="mine.scaled")
    made = plan(lambda x: scaled(x), X)
    assert "tanh" in [op.short for op in made.program.operations]
