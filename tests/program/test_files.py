"""Programs from files: every format, what is refused, and what a file says about shardings."""

from __future__ import annotations

import os

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import partita as pt
from partita import models
from partita.report.collect import summary
from partita.stablehlo import mlir
from partita.stablehlo.normal_form import prepare

for state in (optax.ScaleByAdamState, optax.EmptyState):
    name = f"optax.{state.__name__}"
    jax.export.register_namedtuple_serialization(state, serialized_name=name)


def step(params, x):
    return {"w": params["w"] - 0.1 * (x.T @ (x @ params["w"]))}, jnp.sum(x)


ARGUMENTS = ({"w": jnp.ones((8, 16))}, jnp.arange(32.0).reshape(4, 8))


def exported(fn=step, args=ARGUMENTS, **settings):
    return jax.export.export(jax.jit(fn, **settings), platforms=["cpu"])(*args)


def contents(e, suffix):
    if suffix == ".bin":
        return bytes(e.serialize())
    return e.mlir_module_serialized if suffix == ".mlirbc" else e.mlir_module().encode()


def written(tmp_path, data, name="model.mlir"):
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def hlo(signature, body, rest=""):
    return f"module {{\nfunc.func @main{signature} {{\n{body}\n}}\n{rest}\n}}"


# ------------------------------------------------------------------------------ what is read


@pytest.fixture(scope="module")
def gpt():
    """The tiny GPT, planned from the function, and exported."""
    model = models.build("gpt-tiny")
    settings = {
        "mesh": "data=4,model=2",
        "hardware": "tpu_v5e",
        "tactics": [
            pt.ManualPartition({"batch*": 0}, axis="data"),
            pt.Megatron(axis="model"),  # a search may find another plan in another order
        ],
    }
    plan = pt.plan(model.fn, *model.args, donate_argnums=0, **settings)
    return plan, settings, exported(model.fn, model.args, donate_argnums=0)


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".bin"])
def test_the_plan_of_an_exported_function_is_that_of_the_function(gpt, suffix, tmp_path):
    plan, settings, e = gpt
    path = written(tmp_path, contents(e, suffix), f"gpt{suffix}")
    again = pt.plan(path, **settings)
    assert again.program.argument_names == plan.program.argument_names
    assert again.program.result_names == plan.program.result_names
    assert again.program.aliases == plan.program.aliases
    assert again.spmd.argument_layouts == plan.spmd.argument_layouts
    assert again.spmd.result_layouts == plan.spmd.result_layouts
    assert again.collectives == plan.collectives
    assert again.estimate == plan.estimate
    assert summary(again.done) == summary(plan.done)
    if suffix == ".bin":  # it keeps how arguments are nested
        assert again.in_shardings == plan.in_shardings
        assert again.donate_argnums == (0,)
    else:
        assert jax.tree.leaves(plan.in_shardings) == jax.tree.leaves(again.in_shardings)
        assert again.donate_argnums == tuple(plan.program.aliases)


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".bin"])
def test_a_file_runs_whole_and_partitioned(suffix, tmp_path):
    path = written(tmp_path, contents(exported(), suffix), f"step{suffix}")
    module = pt.read(path)
    args = ARGUMENTS if suffix == ".bin" else tuple(jax.tree.leaves(ARGUMENTS))
    plan = pt.plan(
        module, mesh="data=4", hardware="cpu", tactics=pt.ManualPartition({"x": 0}, axis="data")
    )
    assert plan.fn is module
    assert module.__name__ == "step"
    assert [c.kind for c in plan.collectives] == ["all_reduce", "all_reduce"]
    want = jax.tree.leaves(step(*ARGUMENTS))
    for got in (module(*args), plan.jit()(*args)):
        for a, b in zip(want, jax.tree.leaves(got), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_file_without_jax_says_its_own_names_and_lines(tmp_path):
    text = hlo(
        "(%a: tensor<8x4xf32>, %b: tensor<4x2xf32>) -> (tensor<8x2xf32>, tensor<8x4xf32>)",
        """%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
             : (tensor<8x4xf32>, tensor<4x2xf32>) -> tensor<8x2xf32>
        return %0, %a : tensor<8x2xf32>, tensor<8x4xf32>""",
    )
    path = written(tmp_path, text, "other.mlir")
    module = pt.read(path)
    assert module.program.name == "other"
    assert module.program.argument_names == ("arg0", "arg1")
    assert module.program.result_names == ("result[0]", "result[1]")
    assert module.program.operations[0].source == f"{path}:3"
    assert [leaf.shape for leaf in module.arguments[0]] == [(8, 4), (4, 2)]


def test_argument_names_come_from_locations_or_attributes_each_once(tmp_path):
    text = hlo(
        '(%a: tensor<f32> loc("x"), %b: tensor<f32> {jax.arg_info = "rate"}, '
        '%c: tensor<f32> loc("x")) -> tensor<f32>',
        "return %a : tensor<f32>",
    )
    assert pt.read(written(tmp_path, text)).program.argument_names == ("x", "rate", "arg2")


DONORS = hlo(
    """(%a: tensor<4xf32> {jax.buffer_donor = true}, %b: tensor<2xf32> {jax.buffer_donor = true},
        %c: tensor<4xf32>, %d: tensor<4xf32> {tf.aliasing_output = 2 : i32})
        -> (tensor<f32>, tensor<4xf32>, tensor<4xf32>)""",
    """%s = stablehlo.constant dense<1.0> : tensor<f32>
    return %s, %c, %a : tensor<f32>, tensor<4xf32>, tensor<4xf32>""",
)


def test_donation_is_read_and_can_be_changed(tmp_path):
    path = written(tmp_path, DONORS)
    assert pt.read(path).program.aliases == {0: 1, 3: 2}
    assert pt.read(path).donate_argnums == (0, 3)
    plan = pt.plan(path, mesh="x=2", hardware="cpu", tactics=[], donate_argnums=(2, 1))
    assert plan.program.aliases == {2: 1}
    assert plan.donate_argnums == (2, 1)


def test_several_functions(tmp_path):
    inner = """func.func private @half(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.sine %x : tensor<4xf32>
      return %0 : tensor<4xf32> }"""
    body = """%0 = call @half(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.composite "my.half" %0 {decomposition = @half}
      : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>"""
    text = hlo("(%x: tensor<4xf32>) -> tensor<4xf32>", body, inner)
    other = "func.func @other(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"
    texts = (text, text.replace("@main", "@forward"), text.replace("}\n}", f"}}\n{other}\n}}"))
    for text in texts:
        module = pt.read(written(tmp_path, text))
        assert [op.short for op in module.program.operations] == ["sine", "sine"]
    x = jnp.arange(4.0)
    np.testing.assert_allclose(module(x), jnp.sin(jnp.sin(x)), rtol=1e-6)


def test_constants_kept_apart_are_read(tmp_path):
    text = hlo(
        "(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi1>)",
        """%c = stablehlo.constant dense_resource<weights> : tensor<3xf32>
        %m = stablehlo.constant dense_resource<mask> : tensor<3xi1>
        %0 = stablehlo.add %x, %c : tensor<3xf32>
        return %0, %m : tensor<3xf32>, tensor<3xi1>""",
    )
    hex_ = np.array([1.0, 2.0, 3.0], np.float32).tobytes().hex()
    resources = f'builtin: {{ weights: "0x04000000{hex_}", mask: "0x01000000010001" }}'
    module = pt.read(written(tmp_path, f"{text}\n{{-# dialect_resources: {{ {resources} }} #-}}"))
    total, mask = module(jnp.ones(3))
    assert total.tolist() == [2.0, 3.0, 4.0]
    assert mask.tolist() == [True, False, True]


def test_arguments_of_64_bits_are_planned_but_run_only_where_jax_has_them(tmp_path):
    text = hlo(
        "(%x: tensor<8xi64>) -> tensor<8xi64>",
        "%0 = stablehlo.add %x, %x : tensor<8xi64>\nreturn %0 : tensor<8xi64>",
    )
    plan = pt.plan(
        written(tmp_path, text),
        mesh="x=4",
        hardware="cpu",
        tactics=pt.ManualPartition({"arg0": 0}, axis="x"),
    )
    assert plan.in_shardings == (PartitionSpec("x"),)
    with pytest.raises(pt.UnsupportedError, match=r"int64.*jax_enable_x64"):
        plan.jit()
    with jax.enable_x64(True):
        assert plan.jit()(np.arange(8)).tolist() == list(range(0, 16, 2))


# --------------------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def serialized():
    return exported().mlir_module_serialized


def test_damaged_files_are_one_clear_error(serialized, tmp_path, capfd):
    newer = serialized[:4] + bytes([2 * 99 + 1]) + serialized[5:]  # the version of bytecode
    damaged = {
        "cut.mlirbc": (serialized[: len(serialized) // 2], "bytes when only"),
        "newer.mlirbc": (newer, "is newer than the current version"),
        "cut.mlir": (exported().mlir_module()[:900], "line"),
        "cut.bin": (bytes(exported().serialize())[:500], "neither MLIR nor a jax.export file"),
        "noise.bin": (bytes(range(128, 256)), "neither MLIR nor a jax.export file"),
        "empty.mlir": (b" \n", "is empty"),
        "words.mlir": ("a model, one day", "line 1"),
    }
    for name, (data, reason) in damaged.items():
        with pytest.raises(pt.FileError, match=reason) as error:
            pt.read(written(tmp_path, data, name))
        assert name in str(error.value)
        assert "expected StableHLO as text" in str(error.value)
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")  # nothing that MLIR prints by itself


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(pt.FileError, match="No such file"):
        pt.read(tmp_path / "none.mlir")
    with pytest.raises(pt.FileError, match="it is a directory"):
        pt.plan(str(tmp_path), mesh="x=2", hardware="cpu")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("signature", "body", "reason"),
    [
        (
            "(%x: tensor<4xf32>) -> tensor<4xf32>",
            "%0 = arith.addf %x, %x : tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            "model.mlir: the program contains arith.addf at .*model.mlir:3, of the dialect 'arith'",
        ),
        ("(%x: tensor<?xf32>) -> tensor<?xf32>", "return %x : tensor<?xf32>", "dynamic shape"),
        ("(%x: tensor<*xf32>) -> tensor<*xf32>", "return %x : tensor<*xf32>", "dynamic shape"),
        (
            "(%x: tuple<tensor<f32>>) -> tensor<f32>",
            "%0 = stablehlo.get_tuple_element %x[0] : (tuple<tensor<f32>>) -> tensor<f32>\n"
            "return %0 : tensor<f32>",
            "contains a tuple .*; pass and return its elements instead",
        ),
        (
            "(%t: !stablehlo.token) -> !stablehlo.token",
            "return %t : !stablehlo.token",
            "debug prints",
        ),
        (
            "(%x: tensor<4xf32>) -> tensor<4xf32>",
            "%0 = call @far(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            "calls the function 'far', which it declares but does not have",
        ),
        (
            "(%x: tensor<4xf32>) -> tensor<4xf32>",
            """%0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"}
               : (tensor<4xf32>) -> tensor<4xf32>
            return %0 : tensor<4xf32>""",
            "a sharding constraint",
        ),
        (
            "(%x: tensor<4xf32>) -> tensor<4xf32>",
            """%0 = stablehlo.sine %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>}
               : tensor<4xf32>
            return %0 : tensor<4xf32>""",
            "a sharding given to sine",
        ),
    ],
    ids=["dialect", "dynamic", "unranked", "tuple", "token", "missing", "gspmd", "attribute"],
)
def test_what_cannot_be_partitioned_is_refused_with_the_file_named(
    signature, body, reason, tmp_path
):
    rest = """func.func private @far(tensor<4xf32>) -> tensor<4xf32>
    sdy.mesh @mesh = <["x"=2]>"""
    with pytest.raises(pt.UnsupportedError, match=reason):
        pt.read(written(tmp_path, hlo(signature, body, rest)))


def test_no_main_function(tmp_path):
    one = "func.func @{}(%x: tensor<4xf32>) -> tensor<4xf32> {{ return %x : tensor<4xf32> }}"
    text = f"module {{ {one.format('a')} {one.format('b')} }}"
    with pytest.raises(pt.UnsupportedError, match=r"no function `main` \(only a, b\)"):
        pt.read(written(tmp_path, text))
    with pytest.raises(pt.UnsupportedError, match="it has none at all"):
        pt.read(written(tmp_path, "module {}"))


def test_a_file_is_planned_without_arguments(tmp_path):
    path = written(tmp_path, exported().mlir_module())
    with pytest.raises(pt.TraceError, match="step is read from a file"):
        pt.plan(path, jnp.ones(3), mesh="x=2", hardware="cpu")


# ------------------------------------------------------------------- shardings in the program


def sharded(spec_x, spec_w, out=None):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    named = lambda spec: None if spec is None else NamedSharding(mesh, PartitionSpec(*spec))  # noqa: E731
    args = (jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((4, 16), jnp.float32))
    return exported(
        lambda x, w: x @ w,
        args,
        in_shardings=(named(spec_x), named(spec_w)),
        out_shardings=named(out),
    )


def test_shardings_in_a_file_are_kept(tmp_path):
    e = sharded(("data",), (None, "model"))
    plan = pt.plan(
        written(tmp_path, e.serialize(), "sharded.bin"), mesh="data=4,model=2", hardware="cpu"
    )
    assert plan.in_shardings == (PartitionSpec("data"), PartitionSpec(None, "model"))
    assert plan.out_shardings == PartitionSpec("data", "model")  # it follows
    assert plan.history[0].decisions == ("keeps x as (data, -)", "keeps w as (-, model)")
    assert "sdy" not in plan.program.module
    x, w = jnp.arange(32.0).reshape(8, 4), jnp.ones((4, 16))
    np.testing.assert_allclose(plan.jit()(x, w), x @ w)


def test_a_later_tactic_cannot_split_what_the_file_says_is_whole(tmp_path):
    path = written(tmp_path, sharded((), None, ("data",)).mlir_module())
    plan = pt.plan(
        path,
        mesh="data=4,model=2",
        hardware="cpu",
        tactics=[pt.ManualPartition({"x": 0, "w": 1}, axis="model")],
    )
    x, w = plan.in_shardings
    assert (x, w) == (PartitionSpec(), PartitionSpec(None, "model"))
    assert plan.out_shardings == PartitionSpec("data")
    assert "pinned along model" in str(plan.history[1].refused[0])


def test_a_dimension_split_along_two_axes_keeps_their_order(tmp_path):
    path = written(tmp_path, sharded((("model", "data"),), None).mlir_module())
    plan = pt.plan(path, mesh="data=4,model=2", hardware="cpu", tactics=[])
    assert plan.in_shardings[0] == PartitionSpec(("model", "data"))
    assert plan.out_shardings == PartitionSpec(("model", "data"))


def test_shardings_over_another_mesh_are_refused(tmp_path):
    path = written(tmp_path, sharded(("data",), None).mlir_module())
    for mesh in ("data=2,model=4", "x=8"):
        with pytest.raises(pt.MeshError, match=r"x comes with the sharding \(data, -\) over mesh"):
            pt.plan(path, mesh=mesh, hardware="cpu", tactics=[])


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ('sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}]>', "splits an axis in parts"),
        ('sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>', "a sum that is outstanding"),
        ('mhlo.sharding = "{devices=[4]<=[4]}"', "does not say which axis is which"),
    ],
)
def test_shardings_that_no_partition_spec_can_say_are_refused(attribute, reason, tmp_path):
    text = hlo(
        f"(%x: tensor<8xf32> {{{attribute}}}) -> tensor<8xf32>",
        "return %x : tensor<8xf32>",
        'sdy.mesh @mesh = <["x"=4]>',
    )
    with pytest.raises(pt.UnsupportedError, match=f"the sharding of arg0, .*{reason}"):
        pt.read(written(tmp_path, text))


def test_a_replicated_gspmd_sharding_says_nothing_and_is_dropped(tmp_path):
    text = hlo(
        '(%x: tensor<8xf32> {mhlo.sharding = "{replicated}"}) -> tensor<8xf32>',
        "return %x : tensor<8xf32>",
    )
    with mlir.context():
        assert "mhlo.sharding" in prepare(text)
    assert "mhlo.sharding" not in pt.read(written(tmp_path, text)).program.module


def test_donated_buffers_cannot_be_laid_out_in_two_ways(tmp_path):
    text = hlo(
        """(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>,
                               tf.aliasing_output = 0 : i32})
           -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})""",
        "%0 = stablehlo.sine %x : tensor<8xf32>\nreturn %0 : tensor<8xf32>",
        'sdy.mesh @mesh = <["x"=4]>',
    )
    with pytest.raises(pt.UnsupportedError, match="arg0 and result share a buffer"):
        pt.plan(written(tmp_path, text), mesh="x=4", hardware="cpu", tactics=[])
