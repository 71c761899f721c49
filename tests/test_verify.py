"""Predicted beside compiled: reading the collectives out of a compiled program's text."""

from __future__ import annotations

import dataclasses
from collections import Counter

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita.mesh import Mesh
from partita.verify import Comparison, HloCollective, compare, compiled_collectives

ALL = ((0, 1, 2, 3, 4, 5, 6, 7),)
ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))
COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))

EXPLICIT = {
    ALL: "{{0,1,2,3,4,5,6,7}}",
    ROWS: "{{0,1,2,3},{4,5,6,7}}",
    COLUMNS: "{{0,4},{1,5},{2,6},{3,7}}",
}
IOTA = {ALL: "[1,8]<=[8]", ROWS: "[2,4]<=[8]", COLUMNS: "[4,2]<=[2,4]T(1,0)"}

# The instruction, with GROUPS for the groups; the kinds, bytes and groups of its collectives.
INSTRUCTIONS = {
    "all_reduce": (
        "ROOT %all-reduce.4 = f32[8,8]{1,0} all-reduce(%fusion), channel_id=1, "
        "replica_groups=GROUPS, use_global_device_ids=true, to_apply=%region_0.0",
        [("all_reduce", 256, ROWS)],
    ),
    "all_reduce of a scalar": (
        "%all-reduce = bf16[] all-reduce(%x), channel_id=3, replica_groups=GROUPS, to_apply=%add",
        [("all_reduce", 2, ALL)],
    ),
    "all_reduce of a tuple": (
        "%all-reduce = (f32[8,8]{1,0}, bf16[4]{0}, s32[]) all-reduce(%a, %b, %c), channel_id=1, "
        "replica_groups=GROUPS, to_apply=%add",
        [("all_reduce", 256, ROWS), ("all_reduce", 8, ROWS), ("all_reduce", 4, ROWS)],
    ),
    "all_reduce, started": (
        "%ar = f32[16]{0} all-reduce-start(%x), channel_id=1, replica_groups=GROUPS, to_apply=%add",
        [("all_reduce", 64, COLUMNS)],
    ),
    "all_gather": (
        "%all-gather = f32[8,8]{1,0} all-gather(%x), channel_id=1, replica_groups=GROUPS, "
        "dimensions={0}, use_global_device_ids=true",
        [("all_gather", 256, COLUMNS)],
    ),
    "all_gather of a tuple": (
        "%all-gather = (f32[8]{0}, pred[16]{0}) all-gather(%x, %y), replica_groups=GROUPS, "
        "dimensions={0}",
        [("all_gather", 32, ROWS), ("all_gather", 16, ROWS)],
    ),
    "all_gather, started: the operand stands beside the result": (
        "%ag = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%x), channel_id=1, "
        "replica_groups=GROUPS, dimensions={0}",
        [("all_gather", 256, ROWS)],
    ),
    "reduce_scatter: its payload is what goes in": (
        "%reduce-scatter = f32[2,8]{1,0} reduce-scatter(%x), channel_id=1, replica_groups=GROUPS, "
        "dimensions={0}, to_apply=%add",
        [("reduce_scatter", 256, ROWS)],
    ),
    "all_to_all in one array": (
        "%all-to-all = f32[2,8]{1,0} all-to-all(%x), channel_id=1, replica_groups=GROUPS, "
        "dimensions={1}",
        [("all_to_all", 64, ROWS)],
    ),
    "all_to_all in pieces": (
        "%all-to-all.4 = (f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}) "
        "all-to-all(%a, %b, %c, %d), channel_id=1, replica_groups=GROUPS",
        [("all_to_all", 64, ROWS)],
    ),
    "with an accelerator's tiled layouts": (
        "%all-reduce = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} all-reduce(%x), channel_id=1, "
        "replica_groups=GROUPS, to_apply=%add",
        [("all_reduce", 512 * 128 * 2, ROWS)],
    ),
    "with tiled layouts in a tuple": (
        "%all-reduce = (f32[512]{0:T(512)}, f32[8,128]{1,0:T(8,128)}) all-reduce(%x, %y), "
        "channel_id=1, replica_groups=GROUPS, to_apply=%add",
        [("all_reduce", 2048, ROWS), ("all_reduce", 4096, ROWS)],
    ),
}


@pytest.mark.parametrize("form", [EXPLICIT, IOTA], ids=["explicit groups", "iota groups"])
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instructions(name, form):
    text, expected = INSTRUCTIONS[name]
    text = text.replace("GROUPS", form[expected[0][2]])
    assert compiled_collectives(f"  {text}\n") == [HloCollective(*each) for each in expected]


def test_a_collective_permute_has_pairs_and_no_groups():
    (found,) = compiled_collectives(
        "%cp = f32[4]{0} collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    )
    assert (found.kind, found.bytes) == ("collective_permute", 16)


@pytest.mark.parametrize(
    "line",
    [
        "%region_0.0 (all-reduce.2: f32[], all-reduce.3: f32[]) -> f32[] {",
        "%all-reduce.2 = f32[] parameter(0)",
        "%done = f32[8]{0} all-reduce-done(%all-reduce-start.1)",
        "%gte = f32[2,2]{1,0} get-tuple-element(%all-to-all.4), index=0",
        '%add = f32[8]{0} add(%a, %b), metadata={op_name="jit(f)/all-reduce.1"}',
        "%all-gather = f32[8]{0} fusion(%x), kind=kLoop, calls=%all-gather_fusion",
        "%fusion = f32[8]{0} fusion(%all-reduce.4), kind=kLoop, calls=%c",
    ],
)
def test_lines_that_only_mention_a_collective(line):
    assert compiled_collectives(line) == []


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("f64", 8), ("f32", 4), ("bf16", 2), ("f16", 2), ("f8e4m3fn", 1), ("f8e5m2", 1)),
        *(("s64", 8), ("s32", 4), ("s8", 1), ("u32", 4), ("u8", 1), ("pred", 1)),
        *(("c64", 8), ("c128", 16), ("s4", 0.5), ("u4", 0.5)),
    ],
)
def test_element_types(dtype, size):
    line = f"%x = {dtype}[6,2]{{1,0}} all-gather(%y), replica_groups={{{{0,1}}}}, dimensions={{0}}"
    assert compiled_collectives(line) == [HloCollective("all_gather", int(12 * size), ((0, 1),))]


def test_the_order_of_groups_does_not_matter_the_order_inside_does():
    def found(groups):
        line = f"%x = f32[8]{{0}} all-gather(%y), replica_groups={groups}, dimensions={{0}}"
        return compiled_collectives(line)

    assert found("{{0,1},{2,3}}") == found("{{2,3},{0,1}}")
    assert found("{{0,1},{2,3}}") != found("{{1,0},{3,2}}")


# --------------------------------------------------------------------------- real programs

MESH = "x=2,y=4"


def product(a, b):
    return a @ b


COMPILED = [
    # function, arguments, (argument, dimension, axis) tiled in order, kinds and axes expected
    (product, (array(8, 8), array(8, 8)), [("a", 1, "y")], [("all_reduce", "y")]),
    (product, (array(8, 8), array(8, 8)), [("a", 1, "x"), ("a", 1, "y")], [("all_reduce", "xy")]),
    (
        product,
        (array(8, 8), array(8, 8)),
        [("a", 1, "x"), ("a", 0, "y"), ("result", 1, "x")],
        [("reduce_scatter", "x")],
    ),
    (product, (array(8, 8), array(8, 8)), [("a", 0, "y"), ("a", 1, "y"), ("b", 0, "y")], None),
    (lambda a: a + a.T, (array(8, 8),), [("a", 0, "y")], None),
    (lambda a: jnp.sum(a), (array(8, 8),), [("a", 0, "y"), ("a", 1, "x")], [("all_reduce", "xy")]),
]


def planned(fn, args, tiled):
    tactics = [pt.ManualPartition({name: dim}, axis=axis) for name, dim, axis in tiled]
    return pt.plan(fn, *args, mesh=MESH, hardware="cpu", tactics=tactics)


@pytest.mark.parametrize(("fn", "args", "tiled", "expected"), COMPILED)
def test_prediction_equals_what_is_compiled(fn, args, tiled, expected):
    plan = planned(fn, args, tiled)
    text = plan.jit().lower(*args).compile().as_text()
    comparison = compare(plan.collectives, plan.mesh, text)
    assert comparison.equal, f"\n{comparison}"
    if expected is not None:
        found = [(c.kind, "".join(sorted(c.axes))) for c in plan.collectives]
        assert found == expected


@pytest.fixture(scope="module")
def summed():
    """A plan with one all_reduce of 256 bytes along y, and its compiled text."""
    args = (array(8, 8), array(8, 8))
    plan = planned(product, args, [("a", 1, "y")])
    return plan, plan.jit().lower(*args).compile().as_text()


WRONG = {
    "kind": lambda c: [dataclasses.replace(c, kind="all_gather")],
    "bytes": lambda c: [dataclasses.replace(c, bytes=c.bytes // 2)],
    "axes": lambda c: [dataclasses.replace(c, axes=("x",))],
    "one too many": lambda c: [c, c],
    "one too few": lambda c: [],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_prediction_is_told(summed, what):
    plan, text = summed
    (right,) = plan.collectives
    assert compare([right], plan.mesh, text).equal
    comparison = compare(WRONG[what](right), plan.mesh, text)
    assert not comparison.equal
    assert "<- differs" in str(comparison)


def test_a_comparison_prints_as_a_table():
    mesh = Mesh.of(MESH)
    reduce, gather = (
        HloCollective("all_reduce", 256, ROWS),
        HloCollective("all_gather", 64, COLUMNS),
    )
    lines = str(Comparison(mesh, Counter([reduce, gather]), Counter([reduce]))).splitlines()
    assert lines[0].split() == ["kind", "bytes", "groups", "predicted", "compiled"]
    assert lines[1].split() == ["all_gather", "64", "4x2", "1", "0", "<-", "differs"]
    assert lines[2].split() == ["all_reduce", "256", "2x4", "1", "1"]


def test_no_collectives_are_equal_to_none():
    comparison = compare([], Mesh.of(MESH), "ENTRY %main { ROOT %x = f32[] parameter(0) }")
    assert comparison.equal and comparison.rows() == []
