"""The table of operations: it is the only place that knows a kind, and a new one is a row."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import partita as pt
from checks import assert_same, numbers, planner
from partita.cost.kernels.fusion import analyse_fusion
from partita.emit.spmd import emit
from partita.program import op_traits
from partita.program.op_traits import OPERATIONS, Traits, traits
from partita.stablehlo import mlir
from partita.stablehlo.mlir import hlo
from partita.stablehlo.operations import ENTRIES
from partita.stablehlo.operations.entry import Entry

SOURCES = Path(op_traits.__file__).parents[1]
READ_AND_WRITTEN_IN = ("stablehlo", "emit", "program")
"""The packages that read and write operations; no other one has a reason to name them."""


def treated(treatment):
    return {kind for kind, known in OPERATIONS.items() if known.treatment == treatment}


def test_only_those_who_read_and_write_operations_name_them():
    named = [
        f"{path.relative_to(SOURCES)}:{node.lineno} {node.value}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.relative_to(SOURCES).parts[0] not in READ_AND_WRITTEN_IN
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and re.fullmatch(r"(stablehlo|chlo)\.\w+", str(node.value))
    ]
    assert named == []


def test_the_others_ask_for_traits_and_not_for_short_names():
    named = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Attribute) and each.attr == "short" for each in ast.walk(node))
    ]
    assert named == []


def test_what_is_done_for_single_kinds_fits_their_rows():
    own, narrow, local = (
        {kind for kind, entry in ENTRIES.items() if getattr(entry, field)}
        for field in ("own", "narrow", "local")
    )
    assert own | {"stablehlo.custom_call"} == treated("own")  # calls: by target
    assert narrow <= treated("shardy")
    collectives = {kind for kind, known in OPERATIONS.items() if known.collective}
    assert {k for k in local if not traits(k).shardable} == treated("given") | collectives
    assert ENTRIES.keys() <= OPERATIONS.keys()


def test_what_follows_from_other_traits():
    known = Traits("shardy", reduces=True)
    assert known.shardable and known.fuses_operands
    assert not (known.elementwise or known.fusible or known.widens)
    assert dataclasses.replace(known, fusible=True, read_through=True).widens
    assert traits("stablehlo.of_tomorrow").treatment == "unknown"


# ------------------------------------------------------------------------------- a new operation


@pytest.fixture
def row(monkeypatch):
    """Gives a kind another row, or none."""

    def row(kind, known):
        if known is None:
            monkeypatch.delitem(OPERATIONS, kind)
        else:
            monkeypatch.setitem(OPERATIONS, kind, known)

    return row


def module(tmp_path, signature, body):
    path = tmp_path / "new.mlir"
    path.write_text(f"module {{ func.func @main{signature} {{ {body} }} }}", "utf-8")
    return pt.read(path)


M = "tensor<16x8xf32>"
CHAIN = (
    f"(%x: {M}) -> {M}",
    f"%0 = stablehlo.abs %x : {M} %1 = chlo.erf_inv %0 : {M} -> {M} "
    f"%2 = stablehlo.tanh %1 : {M} return %2 : {M}",
)
HALVES = [pt.ManualPartition({"*": 0}, "x")]
planned = planner(mesh="x=2", tactics=HALVES)


def kernels(plan):
    fusion = analyse_fusion(plan.program, plan.program.uses())
    return [plan.program.operations[kernel].short for kernel in fusion.kernels]


def check(plan, fn, *args):
    assert_same(plan.jit()(*plan.shard(*args)), jax.jit(lambda *each: fn(*each))(*args))


def test_without_a_row_every_device_runs_all_of_it(row, tmp_path):
    row("chlo.erf_inv", None)
    plan = planned(module(tmp_path, *CHAIN))
    assert [c.kind for c in plan.collectives] == ["all_gather"]
    assert plan.history[0].replicated_uses[0].reason == "no sharding rule is known"
    assert kernels(plan) == ["abs", "erf_inv", "tanh"]


def test_a_row_makes_it_elementwise_and_the_cost_fuses_it(row, tmp_path):
    row("chlo.erf_inv", Traits("elementwise", fusible=True, free=True))
    fn = module(tmp_path, *CHAIN)
    plan = planned(fn)
    assert not plan.collectives
    assert kernels(plan) == ["tanh"]
    check(plan, fn, numbers(16, 8) % 1)


C = "tensor<16x8xcomplex<f32>>"
PRODUCT = (
    f"(%a: {C}, %b: tensor<8x4xcomplex<f32>>) -> tensor<16x4xf32>",
    f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({C}, "
    "tensor<8x4xcomplex<f32>>) -> tensor<16x4xcomplex<f32>> "
    "%1 = stablehlo.real %0 : (tensor<16x4xcomplex<f32>>) -> tensor<16x4xf32> "
    "return %1 : tensor<16x4xf32>",
)


@pytest.mark.parametrize(("linear", "reduced"), [((), 16 * 4 * 8), ((0,), 16 * 4 * 4)])
def test_unreduced_sums_pass_what_is_linear(row, tmp_path, linear, reduced):
    known = dataclasses.replace(traits("stablehlo.abs"), linear=linear)
    row("stablehlo.real", known)
    fn = module(tmp_path, *PRODUCT)
    plan = planned(fn, tactics=[pt.ManualPartition({"arg0": 1}, "x")])
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", reduced)]
    a, b = (numbers(*shape).astype(np.complex64) for shape in ((16, 8), (8, 4)))
    check(plan, fn, a, b * (1 + 2j))


SELECT = (
    f"(%x: {M}, %rows: tensor<4xi32>) -> tensor<4x8xf32>",
    '%0 = "stablehlo.torch_index_select"(%x, %rows) {dim = 0 : i64, batch_dims = 0 : i64} : '
    f"({M}, tensor<4xi32>) -> tensor<4x8xf32> return %0 : tensor<4x8xf32>",
)


def test_a_row_and_a_rule_where_shardy_has_none(row, monkeypatch, tmp_path):
    columns = [pt.ManualPartition({"arg0": 1}, "x")]
    plan = planned(module(tmp_path, *SELECT), tactics=columns)
    assert [c.kind for c in plan.collectives] == ["all_gather"]

    row("stablehlo.torch_index_select", Traits("own"))
    entry = Entry(own=lambda *_: "r! c, k -> k c")
    monkeypatch.setitem(ENTRIES, "stablehlo.torch_index_select", entry)
    fn = module(tmp_path, *SELECT)
    plan = planned(fn, tactics=columns)
    assert not plan.collectives
    assert (
        plan.out_shardings == pt.PartitionSpec(None, "x") if hasattr(pt, "PartitionSpec") else True
    )
    check(plan, fn, numbers(16, 8), np.array([3, 1, 4, 1], np.int32))


def test_an_entry_has_its_form_on_each_device(monkeypatch, tmp_path):
    def local(op, run, build):
        return [hlo.negate(hlo.negate(made)) for made in build.place(op, run.outputs)]

    monkeypatch.setitem(ENTRIES, "chlo.erf_inv", Entry(local=local))
    fn = module(tmp_path, *CHAIN)
    plan = planned(fn)
    with mlir.context():
        assert str(emit(plan.spmd)).count("stablehlo.negate") == 2
    check(plan, fn, numbers(16, 8) % 1)


def test_a_constant_is_one_in_either_dialect(tmp_path):
    def costed(constant):
        body = (
            f"%c = {constant} %0 = stablehlo.add %x, %c : {M} %1 = stablehlo.multiply %0, %c : {M}"
        )
        return planned(module(tmp_path, f"(%x: {M}) -> {M}", f"{body} return %1 : {M}"))

    own, other = (
        costed(f"stablehlo.constant dense<3.0> : {M}"),
        costed(f'"chlo.constant"() {{value = dense<3.0> : {M}}} : () -> {M}'),
    )
    assert kernels(own) == kernels(other) == ["multiply"]
    assert own.estimate.step_time == other.estimate.step_time
    assert own.estimate.peak_memory == other.estimate.peak_memory
