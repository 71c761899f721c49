"""What the TPU compiler makes of collectives: the rules, and single collectives compiled."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita.models import build
from partita.models.strategies import schedule
from partita.verify import REWRITES
from partita.verify.rewrites import on_tpu

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs pip install 'partita[tpu]'"
)
HARDWARE = {"v5e": "tpu_v5e", "v5p": "tpu_v5p"}


def gathered(x):
    """Gathers `x`, sorted along that dimension."""
    return jnp.sort(x * 2, axis=0) + 1


def gather(shape, mesh, topology, dtype=jnp.bfloat16):
    x = jax.ShapeDtypeStruct(shape, dtype)
    tactics = [pt.ManualPartition({"x": 0}, axis) for axis in mesh.partition("=")[0].split(",")]
    return plan(gathered, [x], mesh, topology, tactics)


def plan(fn, args, mesh, topology, tactics):
    kind = HARDWARE[topology.partition(":")[0]]
    return pt.plan(fn, *args, mesh=mesh, hardware=kind, tactics=tactics)


def weight_gradient(rows, columns, mesh, topology):
    """FSDP of one product: the gradient of its weight is reduced and scattered along its rows."""
    args = [jax.ShapeDtypeStruct((4096, n), jnp.bfloat16) for n in (rows, columns)]
    names = pt.Mesh.of(mesh).names

    def step(w, x, y):
        return w - jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())))

    tactics = [pt.ManualPartition({"x": 0, "y": 0}, name) for name in names]
    tactics += [pt.ManualPartition({"w": 0}, name) for name in names]
    w = jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16)
    return plan(step, [w, *args], mesh, topology, tactics)


def rewrites(made, topology):
    """Those that are certain, by the kind of collective."""
    pairs = zip(made.collectives, on_tpu(made.spmd, topology), strict=True)
    return [(c.kind, [b.rewrite for b in becomes if b.always]) for c, becomes in pairs]


GATHERS = [((2048,), []), ((3072,), ["sum of padded shards"]), ((16, 1), ["sum of padded shards"])]


@pytest.mark.parametrize(("shape", "certain"), GATHERS)
def test_vectors_are_gathered_as_sums_unless_shards_are_whole_rows(shape, certain):
    made = gather(shape, "data=16", "v5e:4x4")
    assert rewrites(made, "v5e:4x4") == [("all_gather", certain)]


SIDES = [
    ("v5e:4x4", "data=16", True),
    ("v5e:4x4", "data=4,model=4", True),
    ("v5e:2x4", "data=8", False),
    ("v5e:2x2", "data=4", False),
    ("v5p:2x2x2", "data=8", True),
    ("v5p:2x2x1", "data=4", False),
]


@pytest.mark.parametrize(("topology", "mesh", "certain"), SIDES)
def test_sums_over_a_whole_torus_run_along_its_sides(topology, mesh, certain):
    made = weight_gradient(2048, 1024, mesh, topology)
    expected = [("reduce_scatter", ["shard of a sum"] if certain else [])]
    assert rewrites(made, topology) == expected


def test_every_rewrite_is_documented():
    moe = build("moe-tiny")
    tactics = schedule("moe-tiny", "fsdp").tactics
    made = pt.plan(moe.fn, *moe.args, mesh="data=8", hardware="tpu_v5e", tactics=tactics)
    named = {b.rewrite for becomes in on_tpu(made.spmd, "v5e:2x4") for b in becomes}
    assert named == {"sum of padded shards", "shard of a sum", "narrowed"} and named <= set(
        REWRITES
    )


def test_gathers_of_what_is_computed_alike_may_be_merged():
    def pair(x, y):
        def twice(x):
            return jnp.cos(x)

        return y + jnp.sort(twice(x), axis=0) + jnp.sort(twice(x), axis=0) + jnp.sort(x, axis=0)

    x = jax.ShapeDtypeStruct((4096, 8), jnp.bfloat16)
    made = plan(pair, [x, x], "data=4", "v5e:2x2", [pt.ManualPartition({"x": 0}, "data")])
    merged = [[b.rewrite for b in becomes] for becomes in on_tpu(made.spmd, "v5e:2x2")]
    assert merged == [[], ["merged"], []]


def test_sums_with_common_factors_taken_out_may_be_merged():
    def scaled(x, a, b):
        return (x * a * x).sum(0), (-(x * (x * b))).sum(0), (x + a).sum(0)

    x, row = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4096, 128), (1, 128)))
    made = plan(scaled, [x, row, row], "data=4", "v5e:2x2", [pt.ManualPartition({"x": 0}, "data")])
    merged = [[b.rewrite for b in becomes] for becomes in on_tpu(made.spmd, "v5e:2x2")]
    assert merged == [[], ["merged"], []]


def halves(x):
    return [jnp.tanh(half).sum(0) for half in jnp.split(x, 2, axis=1)]


def multiples(x):
    return [jnp.tanh(x * factor).sum(0) for factor in (2.0, 3.0)]


def of_scaled_sums(x, a, b):
    return [jnp.tanh(x * jnp.exp((x * factor).sum(0))).sum(0) for factor in (a, b)]


def reversed_or_not(x):
    return [jnp.tanh(rows).sum(0) for rows in (x, jnp.flip(x, 0), jnp.flip(x, 1))]


def reversed_column(x):
    column = x[:, :1]
    return [jnp.tanh(rows).sum(0) for rows in (column, jnp.flip(column, 0), jnp.flip(column, 1))]


OTHERS = [
    (halves, 0),
    (multiples, 0),
    (of_scaled_sums, 1),
    (reversed_or_not, 0),
    (reversed_column, 1),  # the one over a dimension of size 1
]


@pytest.mark.parametrize(("fn", "merged"), OTHERS)
def test_other_sums_are_not_merged(fn, merged):
    """They are computed on the same lines, by operations of the same kinds."""
    shapes = [(4096, 128), (1, 128), (1, 128)][: 3 if fn is of_scaled_sums else 1]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    made = plan(fn, args, "data=4", "v5e:2x2", [pt.ManualPartition({"x": 0}, "data")])
    becomes = on_tpu(made.spmd, "v5e:2x2")
    assert [b.rewrite for each in becomes for b in each] == ["merged"] * merged


def accumulated(topology="v5e:2x2"):
    """Four passes of a loop add up products over what is split."""

    def steps(total, xs):
        def add(total, x):
            return total + x.T @ x, None

        return jax.lax.scan(add, total, xs)[0]

    shapes = (128, 128), (4, 4096, 128)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return plan(steps, args, "data=4", topology, [pt.ManualPartition({"xs": 1}, "data")])


def test_sums_that_a_loop_adds_up_may_be_done_after_it():
    made = accumulated()
    assert [c.count for c in made.collectives] == [4]
    ((becomes,),) = on_tpu(made.spmd, "v5e:2x2")
    assert (becomes.rewrite, becomes.of) == ("after the loop", 4)


@pytest.mark.parametrize(
    "step",
    [
        lambda total, grown: (total + grown, jnp.sin(total + grown)),
        lambda total, grown: (total + grown, jnp.sin(total)),
        lambda total, grown: (total + jnp.sin(grown), None),
        lambda total, grown: (
            total + grown,
            jax.lax.cond(total[0, 0] > 0, lambda: jnp.sin(grown), lambda: grown),
        ),
    ],
    ids=["the new total is read", "the old one is", "it is not linear", "a branch reads the sum"],
)
def test_sums_that_are_read_in_the_loop_are_done_there(step):
    def steps(total, xs):
        return jax.lax.scan(lambda total, x: step(total, x.T @ x), total, xs)

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 128), (4, 4096, 128))]
    made = plan(steps, args, "data=4", "v5e:2x2", [pt.ManualPartition({"xs": 1}, "data")])
    found = [b.rewrite for each in on_tpu(made.spmd, "v5e:2x2") for b in each]
    assert [c.kind for c in made.collectives if c.count == 4] == ["all_reduce"] and not found


@needs_libtpu
def test_sums_that_a_loop_adds_up_are_compiled_so():
    found = accumulated().verify("v5e:2x2").collectives
    assert found.agreement == "rewritten" and found.rewrites == {"after the loop": 4}, f"\n{found}"


@needs_libtpu
@pytest.mark.parametrize(("shape", "certain"), GATHERS)
def test_gathers_are_compiled_so(shape, certain):
    found = gather(shape, "data=16", "v5e:4x4").verify("v5e:4x4").collectives
    assert list(found.rewrites) == certain, f"\n{found}"
    assert found.agreement == ("rewritten" if certain else "equal"), f"\n{found}"


@needs_libtpu
@pytest.mark.parametrize(("topology", "mesh", "certain"), SIDES)
def test_scattered_sums_are_compiled_so(topology, mesh, certain):
    found = weight_gradient(2048, 1024, mesh, topology).verify(topology).collectives
    assert list(found.rewrites) in ([["shard of a sum"]] if certain else [[], ["padded shards"]])
    assert found.agreement == ("rewritten" if found.rewrites else "equal"), f"\n{found}"


TINY = [
    ("gpt-tiny", "fsdp", "v5e:2x4"),
    ("gpt-tiny", "fsdp", "v5p:2x2x2"),
    ("gpt-tiny", "tensor-parallel", "v5e:2x4"),
    ("llama-tiny", "tensor-parallel", "v5p:2x2x2"),
    ("decode-tiny", "automatic", "v5e:2x4"),
    ("decode-tiny", "fsdp", "v5p:2x2x2"),
    ("moe-tiny", "fsdp", "v5e:2x4"),
    ("gns-tiny", "fsdp", "v5e:2x4"),
]


@needs_libtpu
@pytest.mark.parametrize(("preset", "name", "topology"), TINY)
def test_counts_are_exact_without_the_combiner(preset, name, topology):
    model, how = build(preset), schedule(preset, name, budget=100)
    made = plan(model.fn, model.args, how.mesh, topology, list(how.tactics))
    found = made.verify(topology, combine=False).collectives
    assert found.agreement in ("equal", "rewritten"), f"\n{found}"
    assert found.foreseen == found.compiled


def put_together():
    """Exchanges parts of float32 rows, of which bfloat16 is all that is read."""

    def fn(x):
        return jnp.concatenate([jnp.sin(x), jnp.cos(x)], axis=1).astype(jnp.bfloat16)

    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    return plan(fn, [x], "data=4", "v5e:2x2", [pt.ManualPartition({"x": 1}, "data")])


def test_what_is_converted_to_bfloat16_once_it_has_come_may_move_so():
    made = put_together()
    found = {b.rewrite for becomes in on_tpu(made.spmd, "v5e:2x2") for b in becomes}
    assert {c.kind for c in made.collectives} == {"collective_permute"} and found == {"narrowed"}


@needs_libtpu
def test_what_is_converted_to_bfloat16_is_compiled_so():
    found = put_together().verify("v5e:2x2").collectives
    assert found.agreement == "rewritten" and list(found.rewrites) == ["narrowed"], f"\n{found}"
