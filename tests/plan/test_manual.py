"""Manual computations: one operation that is sharded as it says, its collectives as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

import partita as pt
from checks import numbers, planner, runs_as_the_original
from partita.text import relative

HERE = relative(__file__)

P = PartitionSpec
MESH = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def mapped(in_specs, out_specs, **options):
    options = {"mesh": MESH} | options
    return lambda f: jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, **options)


def checked(fn, *args, tactics=()):
    return runs_as_the_original(planner(mesh="x=4,y=2")(fn, *args, tactics=tactics), *args)


@mapped((P("x", "y"), P("y")), P("x"))
def product(a, b):
    return jax.lax.psum(a @ b, "y")


def test_it_is_kept_and_its_collectives_are_those_of_the_plan():
    plan = checked(lambda a, b: jnp.tanh(product(2 * a, b)) + 1, numbers(16, 8), numbers(8, 4))
    assert plan.in_shardings == (P("x", "y"), P("y"))
    assert plan.out_shardings == P("x")
    (inside,) = plan.collectives
    assert (inside.kind, inside.axes, inside.bytes, inside.count) == ("all_reduce", ("y",), 64, 1)
    assert inside.source.startswith(HERE)
    assert "as (x, y), (y, -) -> (x, -)" in str(plan)
    assert plan.history[-1].collectives == {"all_reduce": 1}
    assert plan.estimate.traffic["all_reduce", ("y",)].bytes == 64
    assert plan.estimate.exposed_time > 0


def test_operands_are_moved_to_where_it_needs_them():
    hands = [pt.ManualPartition({"a": 1}, "x")]
    plan = checked(lambda a, b: product(2 * a, b), numbers(16, 8), numbers(8, 4), tactics=hands)
    assert plan.in_shardings[0] == P(None, "x")
    assert "all_to_all" in [c.kind for c in plan.collectives]
    later = [pt.AutomaticPartition(budget=30)]
    plan = checked(lambda a, b: product(2 * a, b), numbers(16, 8), numbers(8, 4), tactics=later)
    assert plan.out_shardings == P("x")


def test_every_kind_of_collective():
    out = P("x"), P("x"), P("x"), P("x"), P("x"), P("x"), P()

    @mapped((P("x"), P(("x", "y"))), out, check_vma=False)
    def every(a, b):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        return (
            jax.lax.ppermute(a, "x", ring),
            jax.lax.psum(a, "x") + jax.lax.pmax(a, "x"),
            jax.lax.psum_scatter(jnp.tile(a, (4, 1)), "x", tiled=True),
            jax.lax.all_to_all(a, "x", 1, 0, tiled=True),
            jax.lax.all_gather(b, "y", tiled=True),
            a + jax.lax.axis_index("x"),
            jax.lax.psum(b.sum(), ("x", "y")),
        )

    plan = checked(every, numbers(16, 8), numbers(16, 8))
    assert {c.kind for c in plan.collectives} == {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_permute",
        "reduce_scatter",
    }


def test_in_a_loop_and_with_a_loop_inside():
    @mapped(P("x"), P("x"))
    def rotate(a):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        turn = lambda _, a: jax.lax.ppermute(jnp.sin(a), "x", ring)  # noqa: E731
        return jax.lax.fori_loop(0, 3, turn, a)

    def fn(a):
        return jax.lax.scan(lambda a, _: (rotate(a) + 1, None), a, None, length=2)[0]

    plan = checked(fn, numbers(16, 8))
    (permute,) = plan.collectives
    assert permute.count == 6


def test_gradients_of_them_and_beside_other_tactics():
    def loss(w, a, b):
        return jnp.sum(jnp.tanh(product(a @ w, b)))

    plan = checked(jax.grad(loss), numbers(8, 8), numbers(16, 8), numbers(8, 4))
    assert plan.in_shardings[2] == P("y")


def test_those_that_do_different_things_are_priced_by_what_they_do():
    once = mapped(P("x"), P("x"))(lambda a: a @ a.T @ a)
    often = mapped(P("x"), P("x"))(lambda a: jax.lax.fori_loop(0, 9, lambda _, a: a @ a.T @ a, a))

    def time(fn):
        return pt.plan(
            fn, numbers(1024, 256), mesh="x=4,y=2", hardware="tpu_v5e", tactics=[]
        ).estimate.compute_time

    separate = time(once), time(often)
    assert separate[1] > 5 * separate[0]
    both = time(lambda a: once(often(a)))
    assert both == pytest.approx(sum(separate), rel=0.05)


def test_arguments_closed_over_and_several_of_them():
    c = jnp.arange(8.0)
    scale = mapped(P("x"), P("x"))(lambda a: a * c)
    checked(lambda a: scale(scale(a)) + jnp.sum(scale(a)), numbers(16, 8))


# -------------------------------------------------------------------------- over some axes only


def partly(in_specs, out_specs, axis_names=frozenset("x"), **options):
    return mapped(in_specs, out_specs, axis_names=axis_names, check_vma=False, **options)


RING = [(i, (i + 1) % 4) for i in range(4)]


@partly((P("x"), P()), P("x"))
def dense(a, w):
    return jnp.tanh(a @ w) - jax.lax.pmean(a, "x").sum()


def stages(w, xs):
    """A pipeline: stage `i`, with its weights, is on device `i` along `x`."""

    def ticks(w, xs):
        stage, last = jax.lax.axis_index("x"), xs.shape[0] - 1

        def tick(carry, t):
            passed, out = carry
            made = jnp.tanh(jnp.where(stage == 0, xs[jnp.minimum(t, last)], passed) @ w[0])
            done = out.at[jnp.maximum(t - 3, 0)].set(made)
            out = jnp.where((stage == 3) & (t >= 3), done, out)
            return (jax.lax.ppermute(made, "x", RING), out), None

        zeros = jnp.zeros_like(xs)
        (_, out), _ = jax.lax.scan(tick, (zeros[0], zeros), jnp.arange(last + 4))
        return jax.lax.psum(jnp.where(stage == 3, out, 0), "x")

    return partly((P("x"), P()), P())(ticks)(w, xs)


def every_collective(a, b):
    def body(a, b):
        both = jnp.tanh(a @ b) + jax.lax.axis_index("x")
        gathered = jax.lax.all_gather(both, "x", tiled=True)
        return (
            both * jax.lax.psum(both.sum(), "x") + jax.lax.ppermute(both, "x", RING),
            jax.lax.psum_scatter(gathered, "x", tiled=True) + jax.lax.pmax(both, "x"),
            jax.lax.all_to_all(both, "x", 1, 0, tiled=True),
        )

    return partly((P("x"), P()), P("x"))(body)(a, b)


def experts(tokens, w):
    """Tokens go to the device of their expert and back; each expert is split like any product."""

    def body(tokens, w):
        sent = jax.lax.all_to_all(tokens.reshape(4, -1, 8), "x", 0, 0, tiled=True)
        made = jnp.einsum("td,df->tf", sent.reshape(-1, 8), w[0]).reshape(4, -1, 8)
        return jax.lax.all_to_all(made, "x", 0, 0, tiled=True).reshape(-1, 8)

    return partly((P("x"), P("x")), P("x"))(body)(tokens, w)


def constrained(a, b):
    body = lambda a, b: jnp.sin(jax.lax.with_sharding_constraint(a @ b, P(None, "y")))  # noqa: E731
    return partly((P("x"), P()), P("x"))(body)(a, b)


def nested(a):
    def outer(a):
        inner = lambda b: jax.lax.psum(b, "y") + b  # noqa: E731
        spec, mesh = P(None, "y"), jax.sharding.get_abstract_mesh()
        over_y = partly(spec, spec, {"y"}, mesh=mesh)(inner)
        return jax.lax.psum(over_y(jnp.sin(a)), "x")

    return partly(P("x"), P())(outer)(a)


def scanned(a, w):
    return jax.lax.scan(lambda a, _: (dense(a, w), None), a, None, length=3)[0]


def branches(a):
    late = lambda a: jax.lax.cond(jax.lax.axis_index("x") > 1, jnp.sin, jnp.cos, a)  # noqa: E731
    return partly(P("x"), P("x"))(late)(a)


def constants(a):
    """Values that are the same everywhere, beside one that is not."""
    rows = lambda a: a * jnp.arange(8.0) + a.shape[0] * jax.lax.axis_index("x")  # noqa: E731
    return partly(P(), P("x"))(rows)(a)


PARTLY = {
    "dense": (dense, (numbers(16, 8), numbers(8, 8))),
    "in a scan": (scanned, (numbers(16, 8), numbers(8, 8))),
    "gradient of a scan": (
        jax.grad(lambda a, w: scanned(a, w).sum(), argnums=(0, 1)),
        (numbers(16, 8), numbers(8, 8)),
    ),
    "pipeline": (stages, (numbers(4, 8, 8), numbers(3, 8, 8))),
    "gradient of a pipeline": (
        jax.grad(lambda w, xs: (stages(w, xs) ** 2).sum()),
        (numbers(4, 8, 8), numbers(3, 8, 8)),
    ),
    "every collective": (every_collective, (numbers(16, 8), numbers(8, 8))),
    "experts": (experts, (numbers(64, 8), numbers(4, 8, 8))),
    "branches": (branches, (numbers(16, 8),)),
    "constants": (constants, (numbers(4, 8),)),
    "nested": (nested, (numbers(16, 8),)),
    "top_k": (partly(P("x"), P("x"))(lambda a: jax.lax.top_k(a, 2)[0]), (numbers(16, 64),)),
    "convolution": (
        partly((P("x"), P()), P("x"))(lambda a, k: jax.lax.conv(a, k, (1, 1), "SAME")),
        (numbers(8, 4, 8, 8), numbers(4, 4, 3, 3)),
    ),
}


@pytest.mark.parametrize("case", PARTLY)
def test_over_some_axes_the_others_split_what_is_inside(case):
    """Whichever dimension of the arguments the other axis splits."""
    fn, args = PARTLY[case]
    for dim in (None, 0, -1):
        hands = [] if dim is None else [pt.ManualPartition({"args*": dim}, "y")]
        checked(lambda *args: fn(*args), *args, tactics=hands)


def test_over_some_axes_a_search_splits_along_the_others():
    fn, args = PARTLY["experts"]
    plan = checked(fn, *args, tactics=[pt.AutomaticPartition(budget=30)])
    assert plan.in_shardings[1][0] == "x"
    assert all(c.axes == ("x",) for c in plan.collectives if c.kind == "all_to_all")


def test_what_is_inside_is_split_like_the_rest():
    plan = checked(dense, *PARTLY["dense"][1], tactics=[pt.ManualPartition({"w": 1}, "y")])
    assert plan.in_shardings == (P("x"), P(None, "y"))
    assert plan.out_shardings == P("x", "y")
    assert {(c.kind, c.axes, c.bytes) for c in plan.collectives} == {("all_reduce", ("x",), 128)}
    (reduced,) = plan.collectives
    assert reduced.value.startswith("inside of a shard_map, of ")
    assert f"keeps the shard_map at {HERE}" in str(plan)
    assert "manual over x" in str(plan)


def test_a_collective_inside_moves_what_each_device_has():
    def body(a):
        return jax.lax.psum(jnp.tanh(a), "x")

    fn = partly(P("x"), P())(body)
    whole = checked(fn, numbers(16, 8))
    split = checked(fn, numbers(16, 8), tactics=[pt.ManualPartition({"a": 1}, "y")])
    assert [c.bytes for c in whole.collectives] == [128]
    assert [c.bytes for c in split.collectives] == [64]
    assert split.estimate.traffic["all_reduce", ("x",)].bytes == 64


def test_constraints_inside_are_kept():
    fn = lambda a, b: constrained(a, b)  # noqa: E731
    with jax.set_mesh(MESH):
        plan = planner(mesh="x=4,y=2")(fn, numbers(16, 8), numbers(8, 8))
    assert plan.out_shardings == P("x", "y")
    assert plan.in_shardings[1] == P(None, "y")


def test_a_named_value_inside_is_not_split_along_manual_axes():
    def body(a):
        return checkpoint_name(jnp.sin(a), "inner") + 1

    fn = partly(P("x"), P("x"))(body)
    plan = checked(fn, numbers(16, 8), tactics=[pt.ManualPartition({"inner": 1}, "x")])
    assert any("it is pinned along x" in str(refused) for refused in plan.history[1].refused)
    plan = checked(fn, numbers(16, 8), tactics=[pt.ManualPartition({"inner": 1}, "y")])
    assert plan.out_shardings == P("x", "y")


def test_it_is_saved_and_explained(tmp_path):
    fn, args = PARTLY["dense"]
    plan = checked(fn, *args, tactics=[pt.ManualPartition({"w": 1}, "y")])
    plan.save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", fn, *args)
    assert again.out_shardings == plan.out_shardings
    runs_as_the_original(again, *args)
    assert "propagates along" in str(plan.explain("result"))


def in_a_file(tmp_path, sharding, body="%1 = stablehlo.sine %a : tensor<4x8xf32>"):
    """A program of one computation that is manual over `x`, of a mesh with `y` besides."""
    whole, part = "tensor<16x8xf32>", "tensor<4x8xf32>"
    path = tmp_path / "manual.mlir"
    path.write_text(
        'module { sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
        f"func.func @main(%x: {whole}) -> {whole} {{\n"
        f"%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {sharding}>] "
        f'out_shardings=[<@mesh, {sharding}>] manual_axes={{"x"}} (%a: {part}) {{\n'
        f"{body}\nsdy.return %1 : {part} }} : ({whole}) -> {whole}\n"
        f"return %0 : {whole} }} }}",
        "utf-8",
    )
    return pt.read(path)


@pytest.mark.parametrize(
    ("sharding", "result"),
    [
        ('[{"x", ?}, {?}]', P("x", "y")),  # what is open, a tactic splits
        ('[{"x"}, {}]', P("x")),  # and what is closed, none
        ('[{"x"}, {"y"}]', P("x", "y")),  # what it says of the other axes itself is kept
        ('[{"x", "y"}, {}]', P(("x", "y"))),
    ],
)
def test_in_a_file_it_says_what_is_open(tmp_path, sharding, result):
    tactics = [pt.ManualPartition({"arg0": 1}, "y")]
    plan = pt.plan(in_a_file(tmp_path, sharding), mesh="x=4,y=2", hardware="cpu", tactics=tactics)
    assert plan.out_shardings == result
    x = numbers(16, 8)
    np.testing.assert_allclose(plan.jit()(*plan.shard(x)), np.sin(x), atol=1e-6)


def test_axes_of_one_device():
    mesh = jax.make_mesh((4, 1), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    fn = partly(P("x"), P("x"), mesh=mesh)(lambda a: a + jax.lax.axis_index("x"))
    runs_as_the_original(planner(mesh=mesh)(fn, numbers(16, 8)), numbers(16, 8))


# ----------------------------------------------------------------------------------------- refused


def refused(fn, *args, mesh="x=4,y=2"):
    with pytest.raises(pt.PartitaError) as caught:
        pt.plan(fn, *args, mesh=mesh, hardware="cpu", tactics=[])
    return str(caught.value)


def test_one_over_another_mesh():
    for mesh in ("x=8", "y=2,x=4", "x=2,y=4"):
        message = refused(product, numbers(16, 8), numbers(8, 4), mesh=mesh)
        assert f"is over mesh x=4,y=2, but the plan is for mesh {mesh}" in message


def test_one_over_some_axes_of_another_mesh():
    for mesh in ("x=8", "y=2,x=4", "x=4"):
        message = refused(dense, numbers(16, 8), numbers(8, 8), mesh=mesh)
        assert f"is over mesh x=4,y=2, but the plan is for mesh {mesh}" in message


def test_a_collective_along_an_axis_that_is_not_manual(tmp_path):
    body = (
        '%1 = "stablehlo.all_reduce"(%a) ({ ^bb0(%p: tensor<f32>, %q: tensor<f32>): '
        "%r = stablehlo.add %p, %q : tensor<f32> stablehlo.return %r : tensor<f32> }) "
        "{replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, "
        "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "
        "use_global_device_ids} : (tensor<4x8xf32>) -> tensor<4x8xf32>"
    )
    with pytest.raises(pt.UnsupportedError, match="along y, over which it is not manual; add it"):
        pt.plan(in_a_file(tmp_path, '[{"x", ?}, {?}]', body), mesh="x=4,y=2", hardware="cpu")


def test_a_pmap_is_called_so():
    message = refused(jax.pmap(lambda a: 2 * a), numbers(8, 4), mesh="x=8")
    assert message.startswith(f"the pmap at {HERE}")
    assert "is over 8 devices of its own; write it as jax.vmap, and say with tactics" in message


def test_a_mesh_with_an_axis_of_another_size_is_not_a_misspelling():
    spec = jax.NamedSharding(MESH, P("x"))
    fn = jax.jit(lambda a: a, in_shardings=spec)
    assert "did you mean" not in refused(fn, numbers(16, 8), mesh="x=8")
    assert refused(fn, numbers(16, 8), mesh="xx=4").endswith("; did you mean 'xx'?")


def test_one_over_some_axes_has_no_form_that_annotates_it_or_runs_on_one_device(tmp_path):
    fn, args = PARTLY["dense"]
    plan = planner(mesh="x=4,y=2")(fn, *args)
    with pytest.raises(
        pt.UnsupportedError, match=r"manual over some axes only, .* the partitioned"
    ):
        plan.export(tmp_path / "a.mlir", "annotated")
    with pytest.raises(pt.UnsupportedError, match=r"the shard_map at .* cannot run on one"):
        plan.core.run(*args)


def test_groups_of_devices_that_are_none_of_axes():
    fn = mapped(P("x"), P("x"), check_vma=False)(
        lambda a: jax.lax.psum(a, "x", axis_index_groups=[[0, 1], [2, 3]])
    )
    assert "leave axis_index_groups out" in refused(fn, numbers(16, 8))


def test_a_callback_inside():
    def fn(a):
        shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
        return jax.pure_callback(np.sin, shape, a)

    assert "calls back to the host" in refused(mapped(P("x"), P("x"))(fn), numbers(16, 8))
