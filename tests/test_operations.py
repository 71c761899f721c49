"""Every operation of StableHLO and CHLO: what is done with it, by an example that is run.

An example is partitioned on both of its dimensions, runs, and gives the numbers of the original,
or it is refused with a message. `docs/operations.md` is made of the examples and of the table of
`partita.program.op_traits`; `UPDATE_DOCS=1 pytest tests/test_operations.py` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from partita.program.op_traits import OPERATIONS, traits
from partita.program.refused import BITS, CALLS
from partita.program.refused import TYPES as REFUSED_TYPES
from partita.stablehlo import mlir
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.mlir import chlo, hlo
from partita.stablehlo.normal_form import with_rules
from partita.stablehlo.operations import entry
from partita.stablehlo.operations.rules import is_shardys
from partita.stablehlo.rules.calls import CALLS as KNOWN_CALLS
from partita.stablehlo.versions import LATER_OPERATIONS
from partita.verify import compare
from wider_rules import WHY

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
M, V, INT, BOOL = "tensor<16x8xf32>", "tensor<8xf32>", "tensor<16x8xi32>", "tensor<16x8xi1>"
COMPLEX = "tensor<16x8xcomplex<f32>>"
TYPES = {"x": M, "y": M, "z": M, "v": V, "w": V, "i": INT, "j": INT, "b": BOOL, "c": COMPLEX}
TYPES |= {"f": "tensor<f32>", "g": "tensor<f32>", "p": "tensor<16xi32>", "s": "tensor<i32>"}


class Function(NamedTuple):
    """An example as a JAX function of arrays."""

    fn: Callable
    shapes: tuple[tuple[int, ...], ...] = ((16, 8),)


def op(kind, operands="x", result=M, attributes="", region="", before=""):
    """An example as StableHLO text, of one operation in its generic form."""
    names = operands.split()
    types = ", ".join(TYPES.get(n, "tensor<2xi32>") for n in names)
    values = ", ".join(f"%{n}" for n in names)
    line = f'%0 = "{kind}"({values}) {region} {{{attributes}}} : ({types}) -> {result}'
    arguments = ", ".join(f"%{n}: {TYPES[n]}" for n in dict.fromkeys(names) if n in TYPES)
    returned = f"return %0 : {result}"
    return (
        f"module {{ func.func @main({arguments}) -> {result} {{ {before}\n{line}\n{returned} }} }}"
    )


def each(dialect, names, operands="x", result=M, attributes=""):
    kinds = (f"{dialect}.{name}" for name in names.split())
    return {kind: op(kind, operands, result, attributes) for kind in kinds}


SCALARS = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : tensor<f32> "
SCALARS += '"stablehlo.return"(%c) : (tensor<f32>) -> () })'
FEATURE = "epsilon = 0.1 : f32, feature_index = 1 : i64"
LESS = "comparison_direction = #{0}<comparison_direction LT>"
SIZES = "%t = stablehlo.constant dense<[16, 8]> : tensor<2xi32> "
ZEROS = "%o = stablehlo.constant dense<[0, 0]> : tensor<2xi32> "
ONES = "%e = stablehlo.constant dense<[1, 1]> : tensor<2xi32> "
GROUPS = "replica_groups = dense<[[0]]> : tensor<1x1xi64>"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>"
TOKEN = "!stablehlo.token"
DYNAMIC = "tensor<?x8xf32, #stablehlo.bounds<16, ?>>"


def of_module(signature, body):
    return f"module {{ func.func @main{signature} {{ {body} }} }}"


COMPOSITE = (
    f"module {{ func.func @main(%x: {M}) -> {M} {{ "
    f'%0 = stablehlo.composite "my.double" %x {{decomposition = @double}} : ({M}) -> {M} '
    f"return %0 : {M} }} func.func private @double(%x: {M}) -> {M} {{ "
    f"%0 = stablehlo.add %x, %x : {M} return %0 : {M} }} }}"
)

EXAMPLES = {
    **each("stablehlo", "abs cbrt ceil cosine exponential exponential_minus_one floor log"),
    **each("stablehlo", "log_plus_one logistic negate round_nearest_afz round_nearest_even"),
    **each("stablehlo", "rsqrt sign sine sqrt tan tanh"),
    **each("stablehlo", "is_finite", result=BOOL),
    **each(
        "stablehlo", "add atan2 divide maximum minimum multiply power remainder subtract", "x y"
    ),
    **each("stablehlo", "and or xor shift_left shift_right_arithmetic", "i j", INT),
    **each("stablehlo", "shift_right_logical", "i j", INT),
    **each("stablehlo", "count_leading_zeros not popcnt", "i", INT),
    **each("stablehlo", "real imag", "c"),
    **each("stablehlo", "complex", "x y", COMPLEX),
    **each("stablehlo", "clamp", "f x g"),
    **each("stablehlo", "select", "b x y"),
    **each("stablehlo", "compare", "x y", BOOL, LESS.format("stablehlo")),
    **each("stablehlo", "convert", "i"),
    **each("stablehlo", "bitcast_convert", result=INT),
    **each("stablehlo", "reduce_precision", attributes="exponent_bits=5:i32, mantissa_bits=2:i32"),
    **each(
        "chlo", "acosh asin asinh acos atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc"
    ),
    **each("chlo", "lgamma sinh square tan"),
    **each("chlo", "is_inf is_neg_inf is_pos_inf", result=BOOL),
    **each("chlo", "next_after polygamma zeta", "x y"),
    **each("chlo", "_asin_acos_kernel", "c", COMPLEX),
    **each("chlo", "constant_like", attributes="value = 2.0 : f32"),
    **each("chlo", "broadcast_add broadcast_atan2 broadcast_divide broadcast_maximum", "x v"),
    **each("chlo", "broadcast_minimum broadcast_multiply broadcast_next_after", "x v"),
    **each("chlo", "broadcast_polygamma broadcast_power broadcast_remainder", "v x"),
    **each("chlo", "broadcast_subtract broadcast_zeta", "x v"),
    **each("chlo", "broadcast_and broadcast_or broadcast_xor broadcast_shift_left", "i s", INT),
    **each("chlo", "broadcast_shift_right_arithmetic broadcast_shift_right_logical", "i s", INT),
    **each("chlo", "broadcast_compare", "x v", BOOL, LESS.format("chlo")),
    **each("chlo", "broadcast_complex", "x v", COMPLEX),
    **each("chlo", "broadcast_select", "b x y"),
    "stablehlo.constant": Function(lambda x: x + np.arange(128.0, dtype="f").reshape(16, 8)),
    "stablehlo.iota": Function(lambda x: x * lax.broadcasted_iota("float32", (16, 8), 0)),
    "chlo.constant": op("chlo.constant", "", M, f"value = dense<3.0> : {M}"),
    "stablehlo.broadcast_in_dim": Function(lambda x: lax.broadcast_in_dim(x, (3, 16, 8), (1, 2))),
    "stablehlo.reshape": Function(lambda x: x.reshape(4, 4, 8)),
    "stablehlo.transpose": Function(lambda x: x.T),
    "stablehlo.dot_general": Function(lambda x, y: x @ y, ((16, 8), (8, 4))),
    "stablehlo.einsum": op("stablehlo.einsum", "x y", M, 'einsum_config = "ab,ab->ab"'),
    "stablehlo.reduce": Function(lambda x: x.sum(1)),
    "stablehlo.map": op("stablehlo.map", "x y", M, "dimensions = array<i64: 0, 1>", SCALARS),
    "stablehlo.gather": Function(lambda x: x[jnp.array([1, 9, 3, 3])]),
    "stablehlo.scatter": Function(lambda x: x.at[jnp.array([1, 9, 3, 3])].add(1.0)),
    "stablehlo.slice": Function(lambda x: x[2:6]),
    "stablehlo.pad": Function(lambda x: jnp.pad(x, ((1, 1), (0, 0)))),
    "stablehlo.concatenate": Function(lambda x, y: jnp.concatenate([x, y]), ((16, 8), (16, 8))),
    "stablehlo.reverse": Function(lambda x: x[::-1]),
    "stablehlo.dynamic_slice": Function(
        lambda x: lax.dynamic_slice_in_dim(x, x[0, 0].astype(int), 1)
    ),
    "stablehlo.dynamic_update_slice": Function(
        lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] * 0, x[0, 0].astype(int), 0)
    ),
    "stablehlo.convolution": Function(
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"), ((8, 4, 8, 8), (8, 4, 3, 3))
    ),
    "stablehlo.reduce_window": Function(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME")
    ),
    "stablehlo.select_and_scatter": Function(
        jax.grad(
            lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (2, 1), "VALID") ** 2)
        )
    ),
    "stablehlo.sort": Function(lambda x: jnp.sort(x, axis=1)),
    "chlo.top_k": Function(lambda x: lax.top_k(x, 3)),
    "stablehlo.fft": Function(lambda x: jnp.fft.fft(x)),
    "stablehlo.cholesky": of_module(
        "(%x: tensor<4x8x8xf32>) -> tensor<4x8x8xf32>",
        "%e = stablehlo.iota dim = 1 : tensor<4x8x8xi32> %f = stablehlo.iota dim = 2 : "
        "tensor<4x8x8xi32> %d = stablehlo.compare EQ, %e, %f : (tensor<4x8x8xi32>, "
        "tensor<4x8x8xi32>) -> tensor<4x8x8xi1> %g = stablehlo.convert %d : (tensor<4x8x8xi1>) -> "
        "tensor<4x8x8xf32> %h = stablehlo.add %g, %g : tensor<4x8x8xf32> "
        "%s = stablehlo.abs %x : tensor<4x8x8xf32> %k = stablehlo.multiply %s, %g : "
        "tensor<4x8x8xf32> %m = stablehlo.add %k, %h : tensor<4x8x8xf32> "
        '%0 = "stablehlo.cholesky"(%m) {lower = true} : (tensor<4x8x8xf32>) -> tensor<4x8x8xf32> '
        "return %0 : tensor<4x8x8xf32>",
    ),
    "stablehlo.triangular_solve": of_module(
        "(%x: tensor<4x8x8xf32>, %y: tensor<4x8x8xf32>) -> tensor<4x8x8xf32>",
        '%0 = "stablehlo.triangular_solve"(%x, %y) {left_side = true, lower = true, unit_diagonal '
        "= true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<4x8x8xf32>, "
        "tensor<4x8x8xf32>) -> tensor<4x8x8xf32> return %0 : tensor<4x8x8xf32>",
    ),
    "stablehlo.custom_call": Function(lambda x: jnp.linalg.eigh(x @ x.mT)[0], ((4, 8, 8),)),
    "stablehlo.batch_norm_inference": op("stablehlo.batch_norm_inference", "x v w v w", M, FEATURE),
    "stablehlo.batch_norm_training": op("stablehlo.batch_norm_training", "x v w", M, FEATURE)
    .replace(f"-> {M}\nreturn", f"-> ({M}, {V}, {V})\nreturn")
    .replace("%0 =", "%0, %1, %2 ="),
    "stablehlo.batch_norm_grad": op("stablehlo.batch_norm_grad", "x v w v y", M, FEATURE)
    .replace(f"-> {M}\nreturn", f"-> ({M}, {V}, {V})\nreturn")
    .replace("%0 =", "%0, %1, %2 ="),
    # structure
    "stablehlo.while": Function(lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + x, x)),
    "stablehlo.case": Function(
        lambda x: lax.switch(x[0, 0].astype(int), [jnp.sin, jnp.cos, lambda y: y], x)
    ),
    "stablehlo.if": of_module(
        f"(%q: tensor<i1>, %x: {M}) -> {M}",
        f'%0 = "stablehlo.if"(%q) ({{ %a = stablehlo.sine %x : {M} "stablehlo.return"(%a) : ({M}) '
        f'-> () }}, {{ "stablehlo.return"(%x) : ({M}) -> () }}) : (tensor<i1>) -> {M} '
        f"return %0 : {M}",
    ),
    "stablehlo.optimization_barrier": Function(lambda x: lax.optimization_barrier(x) + 1),
    "stablehlo.return": Function(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)),
    # rewritten
    "arith.constant": of_module(
        f"(%x: {M}) -> {M}",
        f"%0 = arith.constant dense<2.0> : {M} %1 = stablehlo.add %x, %0 : {M} return %1 : {M}",
    ),
    "stablehlo.composite": COMPOSITE,
    "stablehlo.broadcast": op("stablehlo.broadcast", "v", M, "broadcast_sizes = array<i64: 16>"),
    "stablehlo.dot": of_module(
        f"(%x: {M}, %y: tensor<8x4xf32>) -> tensor<16x4xf32>",
        f"%0 = stablehlo.dot %x, %y : ({M}, tensor<8x4xf32>) -> tensor<16x4xf32> "
        "return %0 : tensor<16x4xf32>",
    ),
    **each("chlo", "mulhi", "i j", INT),
    "stablehlo.unary_einsum": op("stablehlo.unary_einsum", "x", M, 'einsum_config = "ab->ab"'),
    "stablehlo.get_dimension_size": op(
        "stablehlo.get_dimension_size", "x", "tensor<i32>", "dimension = 0 : i64"
    ),
    "stablehlo.dynamic_broadcast_in_dim": op(
        *("stablehlo.dynamic_broadcast_in_dim", "v t", M),
        *("broadcast_dimensions = array<i64: 1>", "", SIZES),
    ),
    "stablehlo.dynamic_iota": op(
        "stablehlo.dynamic_iota", "t", M, "iota_dimension=0:i64", "", SIZES
    ),
    "stablehlo.dynamic_reshape": op("stablehlo.dynamic_reshape", "x t", M, "", "", SIZES),
    "stablehlo.dynamic_pad": op("stablehlo.dynamic_pad", "x f o o o", M, "", "", ZEROS),
    "stablehlo.real_dynamic_slice": op(
        "stablehlo.real_dynamic_slice", "x o t e", M, "", "", ZEROS + SIZES + ONES
    ),
    "stablehlo.dynamic_gather": of_module(
        f"(%x: {M}, %p: tensor<4x1xi32>) -> tensor<4x8xf32>",
        "%t = stablehlo.constant dense<[1, 8]> : tensor<2xi32> "
        '%0 = "stablehlo.dynamic_gather"(%x, %p, %t) {dimension_numbers = #stablehlo.gather<'
        "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = "
        f"1>}} : ({M}, tensor<4x1xi32>, tensor<2xi32>) -> tensor<4x8xf32> "
        "return %0 : tensor<4x8xf32>",
    ),
    "stablehlo.dynamic_conv": of_module(
        "(%x: tensor<8x8x4xf32>, %k: tensor<3x4x8xf32>) -> tensor<8x6x8xf32>",
        "%t = stablehlo.constant dense<[[0, 0]]> : tensor<1x2xi32> "
        '%0 = "stablehlo.dynamic_conv"(%x, %k, %t) {batch_group_count = 1 : i64, '
        "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, "
        "feature_group_count = 1 : i64} : (tensor<8x8x4xf32>, tensor<3x4x8xf32>, tensor<1x2xi32>) "
        "-> tensor<8x6x8xf32> return %0 : tensor<8x6x8xf32>",
    ),
    # whole
    "stablehlo.rng_bit_generator": Function(
        lambda x: x + lax.rng_bit_generator(jnp.arange(4, dtype="uint32"), (16, 8))[1] % 9
    ),
    "stablehlo.torch_index_select": op(
        "stablehlo.torch_index_select", "x p", M, "dim = 0 : i64, batch_dims = 0 : i64"
    ),
    "chlo.ragged_dot": of_module(
        f"(%x: {M}, %m: tensor<2x8x8xf32>) -> {M}",
        "%n = stablehlo.constant dense<[10, 6]> : tensor<2xi32> "
        '%0 = "chlo.ragged_dot"(%x, %m, %n) {ragged_dot_dimension_numbers = #chlo.ragged_dot<'
        "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
        "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>} : "
        f"({M}, tensor<2x8x8xf32>, tensor<2xi32>) -> {M} return %0 : {M}",
    ),
    "chlo.scan": of_module(
        f"(%x: {M}, %v: {V}) -> {M}",
        f'%0, %1 = "chlo.scan"(%x, %v) ({{ ^bb0(%a: {V}, %b: {V}): %c = stablehlo.add %a, %b : {V} '
        f'"stablehlo.return"(%c, %c) : ({V}, {V}) -> () }}) {{dimension = 0 : i64, '
        "is_reverse = false, operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = "
        f"array<i32: 1, 1>}} : ({M}, {V}) -> ({M}, {V}) return %0 : {M}",
    ),
    # refused
    "stablehlo.all_gather": op("stablehlo.all_gather", "x", M, f"all_gather_dim=0:i64, {GROUPS}"),
    "stablehlo.all_reduce": op("stablehlo.all_reduce", "x", M, GROUPS, SCALARS),
    "stablehlo.all_to_all": op(
        *("stablehlo.all_to_all", "x", M),
        f"split_dimension=0:i64, concat_dimension=0:i64, split_count=1:i64, {GROUPS}",
    ),
    "stablehlo.collective_broadcast": op("stablehlo.collective_broadcast", "x", M, GROUPS),
    "stablehlo.collective_permute": op(
        "stablehlo.collective_permute", "x", M, "source_target_pairs = dense<0> : tensor<1x2xi64>"
    ),
    "stablehlo.collective_reduce": op("stablehlo.collective_reduce", "x", M, GROUPS, SCALARS),
    "stablehlo.cross-replica-sum": op("stablehlo.cross-replica-sum", "x", M, GROUPS),
    "stablehlo.reduce_scatter": op(
        "stablehlo.reduce_scatter", "x", M, f"scatter_dimension=0:i64, {GROUPS}", SCALARS
    ),
    "stablehlo.partition_id": op("stablehlo.partition_id", "", "tensor<ui32>"),
    "stablehlo.replica_id": op("stablehlo.replica_id", "", "tensor<ui32>"),
    "stablehlo.create_token": op("stablehlo.create_token", "", TOKEN),
    "stablehlo.after_all": op("stablehlo.after_all", "", TOKEN),
    **{
        f"stablehlo.{name}": of_module(
            f"(%x: {M}) -> {M}",
            f"%t = stablehlo.after_all : {TOKEN} {line.format(M=M, T=TOKEN)} return %x : {M}",
        )
        for name, line in {
            "infeed": '%0, %1 = "stablehlo.infeed"(%t) {{layout = [[0, 1]]}} : ({T}) -> ({M}, {T})',
            "outfeed": '%0 = "stablehlo.outfeed"(%x, %t) : ({M}, {T}) -> {T}',
            "send": f'%0 = "stablehlo.send"(%x, %t) {{{{{CHANNEL}}}}} : ({{M}}, {{T}}) -> {{T}}',
            "recv": f'%0, %1 = "stablehlo.recv"(%t) {{{{{CHANNEL}}}}} : ({{T}}) -> ({{M}}, {{T}})',
        }.items()
    },
    "stablehlo.tuple": op("stablehlo.tuple", "x y", f"tuple<{M}, {M}>"),
    "stablehlo.get_tuple_element": of_module(
        f"(%t: tuple<{M}>) -> {M}",
        f"%0 = stablehlo.get_tuple_element %t[0] : (tuple<{M}>) -> {M} return %0 : {M}",
    ),
    "stablehlo.uniform_quantize": op(
        "stablehlo.uniform_quantize", "x", "tensor<16x8x!quant.uniform<i8:f32, 0.5:0>>"
    ),
    "stablehlo.uniform_dequantize": of_module(
        f"(%x: tensor<16x8x!quant.uniform<i8:f32, 0.5:0>>) -> {M}",
        "%0 = stablehlo.uniform_dequantize %x : (tensor<16x8x!quant.uniform<i8:f32, 0.5:0>>) -> "
        f"{M} return %0 : {M}",
    ),
    "stablehlo.rng": Function(lambda x: x + lax.rng_uniform(0.0, 1.0, (16, 8))),
    "stablehlo.set_dimension_size": of_module(
        f"(%x: {M}, %s: tensor<i32>) -> {DYNAMIC}",
        "%0 = stablehlo.set_dimension_size %x, %s, dim = 0 : "
        f"({M}, tensor<i32>) -> {DYNAMIC} return %0 : {DYNAMIC}",
    ),
}

NOT_BUILT = {
    "stablehlo.async_start": "!stablehlo.future",
    "stablehlo.async_done": "!stablehlo.future",
}
"""Refused by the type of their values, which alone says what they are."""


def dialect_operations():
    found = [*vars(hlo).values(), *vars(chlo).values()]
    return {c.OPERATION_NAME for c in found if hasattr(c, "OPERATION_NAME")} | LATER_OPERATIONS


def treated(*treatments):
    """The operations of the dialects that are treated so, in order."""
    dialects = ("stablehlo", "chlo", "arith")
    return sorted(
        kind
        for kind, known in OPERATIONS.items()
        if known.treatment in treatments and kind.partition(".")[0] in dialects
    )


RUN = [kind for kind in EXAMPLES if not traits(kind).refusal]
REFUSED = [kind for kind in EXAMPLES if traits(kind).refusal and kind not in LATER_OPERATIONS]


def example(kind, folder):
    """The function of an example, and arguments for it."""
    case = EXAMPLES[kind]
    if isinstance(case, Function):
        shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in case.shapes]
        fn = lambda *args: case.fn(*args)  # noqa: E731
    else:
        path = folder / "example.mlir"
        path.write_text(case, "utf-8")
        fn = pt.read(path)
        shapes, _ = fn.arguments
    rng = np.random.default_rng(0)
    arguments = []
    for t in shapes:
        draw = (
            rng.uniform(0.2, 0.9, t.shape) if t.dtype.kind in "fc" else rng.integers(0, 4, t.shape)
        )
        arguments.append(
            np.asarray(draw * (1 + 0.5j) if t.dtype.kind == "c" else draw).astype(t.dtype)
        )
    return fn, arguments


def make_plan(kind, folder):
    fn, arguments = example(kind, folder)
    tactics = [pt.ManualPartition({"*": [dim]}, axis) for dim, axis in ((0, "x"), (1, "y"))]
    types = () if isinstance(fn, pt.Module) else arguments
    plan = pt.plan(fn, *types, mesh="x=2,y=4", hardware="cpu", tactics=tactics)
    return fn, arguments, plan


def test_every_operation_of_the_dialects_has_a_row_and_an_example():
    dialects = {*dialect_operations(), "arith.constant"}  # of which modules are written, too
    assert {kind for kind in OPERATIONS if not kind.startswith(("partita.", "sdy."))} == dialects
    assert EXAMPLES.keys() | NOT_BUILT.keys() == dialects


@pytest.mark.parametrize("kind", RUN)
def test_operation(kind, tmp_path):
    fn, arguments, plan = make_plan(kind, tmp_path)
    if traits(kind).shardable or traits(kind).treatment == "replicated":
        assert kind in {op.kind for op in plan.program.operations}
    placed = plan.shard(*arguments)
    compiled = plan.jit().lower(*placed).compile()
    assert compare(plan.collectives, plan.mesh, compiled.as_text()).equal
    ours, theirs = compiled(*placed), jax.jit(lambda *args: fn(*args))(*arguments)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind, tmp_path):
    refused = traits(kind).refusal
    message = f"{re.escape(refused.what)}.*{re.escape(refused.advice)}"
    with pytest.raises(pt.PartitaError, match=message):
        make_plan(kind, tmp_path)


@pytest.mark.parametrize("kind", NOT_BUILT)
def test_refused_by_its_type(kind):
    refused = REFUSED_TYPES[NOT_BUILT[kind]]
    assert refused is traits(kind).refusal
    future = f"!stablehlo.future<{M}>"
    text = of_module(f"(%x: {future}) -> {future}", f"return %x : {future}")
    with pytest.raises(pt.UnsupportedError, match=refused.what):
        import_stablehlo(text)


@pytest.mark.parametrize("type_", ["i8", "ui16", "i32", "ui32", "i64", "ui64"])
def test_the_high_bits_of_a_product(type_, tmp_path):
    """Made of other operations: XLA's partitioner cannot read it."""
    path = tmp_path / "example.mlir"
    tensor = f"tensor<4x8x{type_}>"
    operation = f'"chlo.mulhi"(%x, %y) : ({tensor}, {tensor}) -> {tensor}'
    signature = f"(%x: {tensor}, %y: {tensor}) -> {tensor}"
    path.write_text(of_module(signature, f"%0 = {operation} return %0 : {tensor}"), "utf-8")
    with jax.enable_x64(True):
        dtype = np.dtype(type_.replace("ui", "uint") if "u" in type_ else type_.replace("i", "int"))
        bounds, rng = np.iinfo(dtype), np.random.default_rng(0)
        x, y = (rng.integers(bounds.min, bounds.max, (4, 8), dtype, True) for _ in range(2))
        x[0, :2] = y[0, 1:3] = bounds.min, bounds.max
        tactics = [pt.ManualPartition({"*": 0}, "x")]
        plan = pt.plan(pt.read(path), mesh="x=2", hardware="cpu", tactics=tactics)
        found = np.asarray(plan.jit()(*plan.shard(x, y)))
    right = x.astype(object) * y.astype(object) >> (8 * dtype.itemsize)
    np.testing.assert_array_equal(found, right.astype(dtype))


@pytest.mark.parametrize(
    ("before", "after"),
    [("8x8xf64", "8x8x64xi1"), ("8x8xi8", "8x8x8xi1"), ("8x8x8xi1", "8x8xi8")],
)
def test_bits_as_booleans_are_refused(before, after):
    """XLA, which keeps a boolean in a byte, makes a result of another shape."""
    one, other = (f"tensor<{shape}>" for shape in (before, after))
    operation = f"stablehlo.bitcast_convert %x : ({one}) -> {other}"
    text = of_module(f"(%x: {one}) -> {other}", f"%0 = {operation} return %0 : {other}")
    with pytest.raises(pt.UnsupportedError, match=f"{BITS.what}.*{BITS.advice}"):
        import_stablehlo(text)


# ------------------------------------------------------------------------------------ the page

INTRODUCTION = """# Operations

What partita does with every operation of the dialects StableHLO and CHLO. The page is made from the
table in `src/partita/program/op_traits.py` and from examples that are run; each row is the case
`tests/test_operations.py::test_operation[KIND]` of the test suite, or `test_refused[KIND]`.

Rules are Shardy's or partita's own; partita narrows some of Shardy's, and widens those of windows.
In an example's rule, equal letters are split alike, and `1` is not split. What a letter says:

- *parallel*: a device makes its shard of the result from its shards of the operands;
- *sum*: devices have parts of the result, which are reduced (`all_reduce`, `reduce_scatter`);
  parts of a maximum or minimum of floats are exchanged as integers of 32 or 64 bits in the same
  order, so that NaN arrives, which collectives forget;
- *replicated*: a value that is sharded there is gathered first. The history of a plan says so, with
  the bytes that are moved (`plan.history[0].replicated_uses`).

The rule of one call can differ from that of the example: it depends on sizes and attributes.
"""

CUSTOM_CALLS = """## Custom calls

What a custom call does is known by its target. A call that says itself how many batch dimensions it
has (`num_batch_dims`, which JAX writes on those of LAPACK and of its like on GPUs) is split along
these. One that neither says so nor is listed here is replicated, unless
[`register_rule`](reference.md#register_rule) has a rule for it.
"""

WIDER = """## Where Shardy's rules are wider

Shardy's rules say how shardings propagate; compilers move data where an operation needs more than
a device has. partita's say along what each device can do its part: a value that is sharded
otherwise is gathered first, which the plan shows with its price. What is *passed on* or *summed*
is sharded by Shardy's rule; what is *moved* or *gathered* is sharded before and after, and
exchanged between devices for the operation. `tests/program/test_shardys_rules.py` reads Shardy's
rules from jaxlib and holds the differences to this list.
"""

STRUCTURE = """## Structure

What is inside is sharded like the rest; what is carried or chosen has one layout. The condition
requires replication.
"""

GIVEN = """
## Given

Operations of Shardy's dialect in which the program says itself how it is split. They are kept as
they are; axes propagate from them, and tactics do not split them otherwise.

- `sdy.sharding_constraint` (`jax.lax.with_sharding_constraint`, `partita.constrain`): the value is
  moved to the layout given. Nothing is left of it in the partitioned program.
- `sdy.manual_computation` (`jax.shard_map`): over the mesh of the plan. Operands are moved to where
  the body needs them; what is inside stays, its collectives included. Over some axes only, it is
  split along the others like the operations around it: an `all_reduce` or a `collective_permute`
  along every dimension, other collectives along those that they neither cut nor join.
"""

REWRITTEN = """
## Rewritten

Replaced by other operations when a program is read: composites by the operation of CHLO that they
stand for, such as `chlo.ragged_dot`, or by their decomposition.
Dynamic ones must have constant sizes, or they are refused.
"""

SECTIONS = [
    ("Elementwise", "Computed where the elements are.", treated("elementwise")),
    ("Elementwise, with stretched operands", "Not made by JAX.", treated("broadcasting")),
    ("Made from nothing", "Made in whatever layout the uses need.", treated("generated")),
    (
        "With factors of their own",
        "Custom calls have a rule by their target, see [below](#custom-calls).",
        treated("shardy", "own"),
    ),
]


def rows(kinds, folder):
    for kind in kinds:
        _, _, plan = make_plan(kind, folder)
        made = [op for op in plan.program.operations if op.kind == kind]
        op = max(made, key=lambda o: len(o.rule.factors))
        with mlir.context():
            shardys = shardy_kinds(with_rules(plan.program.module))
        source = "Shardy" if kind in shardys else "own"
        local = entry(kind).local
        form = local.__doc__.splitlines()[0] if local else "The same."
        letters = factor_letters(op.rule)
        yield f"| `{kind}` | {source} | `{op.rule}` | {letters} | {form} |"


def factor_letters(rule):
    """The letters of a rule that are summed over or require replication."""
    kinds = {"reduction": "sum", "blocked": "replicated"}
    found = {}
    for number, factor in enumerate(rule.factors):
        if factor.kind in kinds and factor.size > 1:
            found.setdefault(kinds[factor.kind], []).append("ijklmnopqrstuvwxyz"[number])
    return "; ".join(f"{kind}: {' '.join(letters)}" for kind, letters in found.items()) or "-"


def shardy_kinds(module):
    """The kinds of operations of a module whose rules are Shardy's."""
    found = set()

    def visit(op):
        if is_shardys(op):
            found.add(op.name)
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def page(folder):
    lines = [INTRODUCTION]
    for title, text, kinds in SECTIONS:
        lines += [f"## {title}\n", f"{text}\n"]
        lines += [
            "| operation | rule | example | letters | on each device |",
            "|---|---|---|---|---|",
        ]
        lines += [*rows(kinds, folder), ""]
    lines += [CUSTOM_CALLS, "| target | split along |", "|---|---|"]
    for call in KNOWN_CALLS:
        lines.append(f"| {', '.join(f'`{target}`' for target in call.targets)} | {call.along} |")
    lines += ["", WIDER, "| operation | along what is | why it is not here |", "|---|---|---|"]
    lines += [f"| `{each.operation}` | {each.does} | {why} |" for each, why in WHY.items()]
    lines.append("")
    lines += [STRUCTURE, *(f"- `{kind}`" for kind in treated("structure"))]
    lines += [GIVEN.rstrip()]
    lines += [REWRITTEN, *(f"- `{kind}`" for kind in treated("rewritten"))]
    lines += ["\n## Whole\n", "Run in full by every device; operands are gathered, at a price.\n"]
    lines += ["| operation | why |", "|---|---|"]
    lines += [f"| `{kind}` | {traits(kind).reason} |" for kind in treated("replicated")]
    lines += ["\n## Refused\n", "| operation | message |", "|---|---|"]
    for kind in treated("refused"):
        lines.append(f"| `{kind}` | {_refused(traits(kind).refusal)} |")
    lines.append(f"| `stablehlo.bitcast_convert` to or from `i1` | {_refused(BITS)} |")
    lines += ["\nCustom calls are refused by a part of their target:\n"]
    lines += ["| target contains | message |", "|---|---|"]
    for part, refused in CALLS.items():
        lines.append(f"| `{part}` | {_refused(refused)} |")
    return "\n".join(lines) + "\n"


def _refused(refused):
    return f"the program contains {refused.what}; {refused.advice}"


def test_the_page_says_what_the_tables_and_examples_say(tmp_path):
    expected = page(tmp_path)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(expected, "utf-8")
    assert PAGE.read_text("utf-8") == expected
