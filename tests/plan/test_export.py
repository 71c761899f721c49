"""Plans written to files: what other compilers make of them, and what runs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import partita as pt
from partita import models
from partita.stablehlo import mlir
from partita.stablehlo.versions import JAX
from partita.tiling import local_type
from partita.verify import compare, compiled_collectives

FORMS = ("partitioned", "annotated")

DATA = pt.ManualPartition({"batch*": 0}, axis="data")
HEADS = {f"*['params']*['{w}']": 1 for w in ("wq", "wk", "wv", "w_in")}
EMBED = {"embed": 1, "wq": 0, "wk": 0, "wv": 0, "wo": 2, "w_in": 0, "w_out": 1, "ln*": 0}
FSDP = pt.ManualPartition({f"*['params']*['{w}']": d for w, d in EMBED.items()}, axis="data")
SCHEDULES = {
    "data": [DATA],
    "megatron": [pt.ManualPartition(HEADS, axis="model")],
    "fsdp": [DATA, FSDP],
}


def compiled(plan, path):
    """A file that a plan has written, compiled for the plan's mesh."""
    mesh, data, shell = plan.device_mesh(), path.read_bytes(), plan.exported
    if path.suffix == ".mlir":
        with mlir.context():
            data = mlir.serialize(mlir.parse(data.decode()))
    if path.suffix == ".bin":
        shell = jax.export.deserialize(bytearray(data))
    else:
        shell = dataclasses.replace(shell, mlir_module_serialized=data)

    def named(specs):
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    args, kwargs = plan.arguments
    jitted = jax.jit(
        lambda *args: shell.call(*args),
        in_shardings=named(plan.in_shardings),
        out_shardings=named(plan.out_shardings),
    )
    assert not kwargs
    return jitted.lower(*args).compile()


def check_runs(plan, program, args, want):
    """The program makes of the arguments what it should, sharded as the plan says."""
    got = jax.tree.leaves(program(*plan.shard(*args)))
    for a, b in zip(jax.tree.leaves(want), got, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    for array, spec in zip(got, jax.tree.leaves(plan.out_shardings), strict=True):
        wanted = NamedSharding(plan.device_mesh(), spec)
        assert array.sharding.is_equivalent_to(wanted, array.ndim)


def traffic(collectives):
    """Number and bytes of collectives. A CPU has no reduce_scatter, it sums and cuts instead."""
    found = {}
    for each in collectives:
        kind = "all_reduce" if each.kind == "reduce_scatter" else each.kind
        count, size = found.get(kind, (0, 0))
        found[kind] = count + 1, size + each.bytes
    return found


def sums(plan):
    """Number and bytes of the sums that operations leave to be completed."""
    spmd = plan.spmd
    pieces = [
        local_type(plan.program.values[op.results[0]].type, spmd.form(op.index).makes[0], plan.mesh)
        for op in plan.program.operations
        if spmd.form(op.index).sums
    ]
    return len(pieces), sum(piece.bytes for piece in pieces)


# -------------------------------------------------------------------------------- annotated


@functools.cache
def gpt():
    """The tiny GPT with one layer, an example, and what it makes of that."""
    model = models.build("gpt-tiny", layers=1, dtype="float32")
    example = model.example(0)
    return model, example, jax.jit(model.fn)(*example)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_annotated_train_step_runs_as_the_original(schedule, tmp_path):
    model, example, want = gpt()
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        tactics=SCHEDULES[schedule],
    )
    plan.export(tmp_path / "gpt.mlirbc", "annotated")
    program = compiled(plan, tmp_path / "gpt.mlirbc")
    check_runs(plan, program, example, want)
    found, planned = traffic(compiled_collectives(program.as_text())), traffic(plan.collectives)
    if schedule == "fsdp":
        # The embedding, used at both ends, has two gradients. XLA sums them one by one, and for
        # one of them exchanges the updates before; since JAX 0.11 it gathers them.
        gathers, at_most = (1, 1.1) if JAX < (0, 11) else (2, 1.3)
        assert found.pop("all_to_all", (0, 0))[0] == 2 - gathers
        assert found["all_gather"][0] == planned["all_gather"][0] + gathers
        assert found["all_reduce"][0] == planned["all_reduce"][0] + 1
        assert sum(b for _, b in found.values()) < at_most * sum(b for _, b in planned.values())
    else:
        # XLA completes every sum where it is made. The plan adds sums up before: the gradients of
        # the embedding from both ends of the model, those of what queries, keys and values read.
        assert found == {"all_reduce": sums(plan)}
        assert planned["all_reduce"][0] < found["all_reduce"][0]


def mlp(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return jnp.mean((hidden @ params["down"]) ** 2)


def mlp_step(params, x):
    value, grads = jax.value_and_grad(mlp)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


MLP = ({"up": 0.1 * jnp.ones((16, 32)), "down": 0.1 * jnp.ones((32, 16))}, jnp.ones((8, 16)))
MLP_SCHEDULES = {
    "data": [pt.ManualPartition({"x": 0}, axis="data")],
    "fsdp": [
        pt.ManualPartition({"x": 0}, axis="data"),
        pt.ManualPartition({"params*": 0}, axis="data"),
    ],
    "megatron": [pt.ManualPartition({"params['up']": 1}, axis="model")],
    "both": [
        pt.ManualPartition({"x": 0}, axis="data"),
        pt.ManualPartition({"params['up']": 1}, axis="model"),
    ],
}


def mlp_plan(schedule):
    return pt.plan(
        mlp_step,
        *MLP,
        mesh="data=4,model=2",
        hardware="tpu_v5e",
        tactics=MLP_SCHEDULES[schedule],
        donate_argnums=0,
    )


@pytest.mark.parametrize("schedule", MLP_SCHEDULES)
def test_without_sums_to_add_up_the_collectives_are_those_of_the_plan(schedule, tmp_path):
    plan = mlp_plan(schedule)
    plan.export(tmp_path / "mlp.mlirbc", "annotated")
    program = compiled(plan, tmp_path / "mlp.mlirbc")
    check_runs(plan, program, MLP, mlp_step(*MLP))
    assert traffic(compiled_collectives(program.as_text())) == traffic(plan.collectives)


def loop_and_branch(weights, x):
    def layer(h, w):
        up, down = w
        return h + jnp.tanh(h @ up) @ down, h.sum()

    h, totals = jax.lax.scan(layer, x, weights)
    h = jax.lax.cond(totals[0] > 0, lambda h: h @ weights[0][0], lambda h: h @ weights[0][1], h)
    return h, totals


@pytest.fixture(scope="module")
def looped():
    """Stacked weights, split along both axes, gathered inside of a loop and of a branch."""
    keys = jax.random.split(jax.random.key(0), 2)
    weights = tuple(0.1 * jax.random.normal(key, (3, 8, 8)) for key in keys)
    args = (weights, jnp.ones((16, 8)))
    plan = pt.plan(
        loop_and_branch,
        *args,
        mesh="data=4,model=2",
        hardware="cpu",
        tactics=[
            pt.ManualPartition({"x": 0}, axis="data"),
            pt.ManualPartition({"weights[0]": 2}, axis="model"),
            pt.ManualPartition({"weights[0]": 1}, axis="data"),
        ],
    )
    return plan, args


def test_annotations_reach_into_loops_and_branches(looped, tmp_path):
    plan, args = looped
    plan.export(tmp_path / "loop.mlir", "annotated")
    text = (tmp_path / "loop.mlir").read_text()
    body = text[text.index("} do {") : text.index("stablehlo.case")]
    assert 'stablehlo.tanh %12 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}' in body
    assert 'sdy.sharding_constraint %8 <@mesh, [{}, {"model"}]> : tensor<8x8xf32>' in body
    branches = text[text.index("stablehlo.case") :]
    assert branches.count("sdy.sharding_per_value") >= 2
    check_runs(plan, compiled(plan, tmp_path / "loop.mlir"), args, loop_and_branch(*args))


def test_every_value_is_annotated_and_every_dimension_closed(looped, tmp_path):
    plan, _ = looped
    plan.export(tmp_path / "loop.mlirbc", "annotated")
    with mlir.context():
        module = mlir.parse(mlir.load((tmp_path / "loop.mlirbc").read_bytes(), "loop.mlirbc"))
        assert module.operation.verify()
        found = Counter()

        def visit(op):
            ranked = [r.type for r in op.results if "x" in str(r.type).split("tensor<")[-1]]
            if op.name.startswith("stablehlo.") and ranked:
                found["sdy.sharding" in op.attributes] += 1
            return mlir.ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        text = module.operation.get_asm()
    assert found[True] > 15
    assert not found[False]
    assert "?}" not in text
    main = next(line for line in text.splitlines() if "@main" in line)
    assert main.count("sdy.sharding = ") == 5  # three arguments and two results


# ------------------------------------------------------------------------------ partitioned


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".bin"])
def test_the_partitioned_program_runs_from_a_file(looped, suffix, tmp_path):
    plan, args = looped
    path = tmp_path / f"loop{suffix}"
    plan.export(path)
    program = compiled(plan, path)
    check_runs(plan, program, args, loop_and_branch(*args))
    comparison = compare(plan.collectives, plan.mesh, program.as_text())
    assert comparison.equal, comparison


def test_a_jax_export_file_is_called_as_the_function_is(tmp_path):
    def scaled(x, *, factor):
        return {"out": x * factor}

    x, factor = jnp.arange(8.0), jnp.float32(3)
    plan = pt.plan(scaled, x, factor=factor, mesh="a=4", hardware="cpu", tactics=[])
    plan.export(tmp_path / "scaled.bin")
    exported = jax.export.deserialize(bytearray((tmp_path / "scaled.bin").read_bytes()))
    mesh = plan.device_mesh()
    placed = jax.device_put((x, factor), NamedSharding(mesh, PartitionSpec()))
    out = jax.jit(exported.call)(placed[0], factor=placed[1])
    assert out["out"].tolist() == (3 * np.arange(8.0)).tolist()
    assert plan.jit()(x, factor=factor)["out"].tolist() == out["out"].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_says_where_values_come_from(looped, form, tmp_path):
    plan, _ = looped
    plan.export(tmp_path / "a.mlir", form)
    text = (tmp_path / "a.mlir").read_text()
    assert 'loc("weights[0]")' in text
    assert "test_export.py" in text


def test_a_partitioned_program_is_planned_as_one_operation_that_is_kept(looped, tmp_path):
    plan, _ = looped
    plan.export(tmp_path / "a.mlirbc")
    again = pt.plan(tmp_path / "a.mlirbc", mesh=plan.mesh, hardware="tpu_v5e", tactics=[])
    assert again.spmd.argument_layouts == plan.spmd.argument_layouts

    def exchanged(p):
        return sorted((c.kind, c.axes, c.bytes, c.count) for c in p.collectives)

    assert exchanged(again) == exchanged(plan)


def test_an_annotated_program_is_not_planned_again(looped, tmp_path):
    plan, _ = looped
    plan.export(tmp_path / "a.mlirbc", "annotated")
    with pytest.raises(pt.UnsupportedError, match=r"a.mlirbc: .*contains a sharding"):
        pt.read(tmp_path / "a.mlirbc")


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("form", FORMS)
def test_files_are_written_whole_or_not_at_all(form, tmp_path, monkeypatch):
    plan, path = mlp_plan("data"), tmp_path / "a.mlir"
    path.write_text("what was there")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(pt.FileError, match=r"cannot write .*a\.mlir.*No space left"):
            plan.export(path, form)
    assert path.read_text() == "what was there"
    assert os.listdir(tmp_path) == ["a.mlir"]
    plan.export(path, form)
    assert "stablehlo" in path.read_text()
    assert os.listdir(tmp_path) == ["a.mlir"]


def test_what_cannot_be_written(tmp_path):
    plan = mlp_plan("data")
    with pytest.raises(pt.FileError, match="expected a name that ends in"):
        plan.export(tmp_path / "a.txt")
    with pytest.raises(pt.FileError, match="there is no form 'other'; expected partitioned or"):
        plan.export(tmp_path / "a.mlir", "other")
    with pytest.raises(pt.FileError, match="No such file or directory"):
        plan.export(tmp_path / "none" / "a.mlir")
    (tmp_path / "folder.mlir").mkdir()
    with pytest.raises(pt.FileError, match="directory"):
        plan.export(tmp_path / "folder.mlir")
    assert os.listdir(tmp_path) == ["folder.mlir"]


def test_argument_types_that_jax_cannot_serialize(tmp_path):
    @jax.tree_util.register_pytree_node_class
    class Box(tuple):
        def tree_flatten(self):
            return tuple(self), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(leaves)

    plan = pt.plan(
        lambda box: box[0] + 1, Box((jnp.ones(4),)), mesh="a=2", hardware="cpu", tactics=[]
    )
    with pytest.raises(pt.FileError, match=r"JAX cannot serialize the arguments: .*register"):
        plan.export(tmp_path / "a.bin")
    plan.export(tmp_path / "a.mlirbc")
    assert os.listdir(tmp_path) == ["a.mlirbc"]
