"""Collectives as accelerators write them: started and ended, fused, in loops; and their time."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

import partita as pt
from partita.cost import load
from partita.cost.network.collectives import interconnect
from partita.errors import VerifyError
from partita.mesh import Mesh
from partita.spmd import Collective
from partita.verify import HloCollective, compiled_collectives
from partita.verify.backends import backend_for
from partita.verify.collectives import Found, found_collectives
from partita.verify.comparison import Becomes, Comparison, Rewritten, side_by_side
from partita.verify.cycles import axes_of, compiled_time
from partita.verify.hlo import parse
from partita.verify.loops import executions

ALL = ((0, 1, 2, 3),)

# One all_gather as the TPU compiler writes it: the fusion that starts it, one that computes
# meanwhile, and the one that ends it, all with the same channel; and one that nothing runs under.
ASYNC = """
%start (p: bf16[2,8]) -> (bf16[2,8], bf16[8,8], u32[]) {
  %p = bf16[2,8]{1,0:T(8,128)(2,1)} parameter(0)
  %g = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c = (bf16[2,8]{1,0}, bf16[8,8]{1,0}, u32[]) custom-call(%g), \
custom_call_target="AsyncCollectiveStart"
}
%meanwhile (p: bf16[2,8], q: f32[8]) -> f32[8] {
  %p = bf16[2,8]{1,0:T(8,128)(2,1)} parameter(0)
  %q = f32[8]{0} parameter(1)
  %g = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %n = f32[8]{0} negate(%q)
}
%done (p: bf16[2,8]) -> bf16[8,8] {
  %p = bf16[2,8]{1,0:T(8,128)(2,1)} parameter(0)
  %g = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=7, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c = bf16[8,8]{1,0} custom-call(%p, %g), custom_call_target="AsyncCollectiveDone"
}
ENTRY %main (a: bf16[2,8], b: f32[8]) -> bf16[8,8] {
  %a = bf16[2,8]{1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %s = (bf16[2,8]{1,0}, bf16[8,8]{1,0}, u32[]) fusion(%a), kind=kCustom, calls=%start
  %m = f32[8]{0} fusion(%a, %b), kind=kCustom, calls=%meanwhile, \
backend_config={"window_config":{"estimated_cycles":"1000"}}
  %d = bf16[8,8]{1,0} fusion(%a), kind=kCustom, calls=%done
  %r = f32[8]{0} all-reduce(%m), channel_id=8, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %k = bf16[8,8]{1,0} copy(%d), backend_config={"estimated_cycles":"503"}
}
"""


def test_what_is_started_and_ended_counts_once():
    gather, reduce = found_collectives(parse(ASYNC))
    assert (gather.collective, gather.times) == (HloCollective("all_gather", 128, ALL), 1)
    assert gather.asynchronous
    assert reduce.collective == HloCollective("all_reduce", 32, ((0, 1), (2, 3)))
    assert not reduce.asynchronous


SCATTER = """
%scatter (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %k = s32[] constant(0)
  %r = f32[8,4]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %s = f32[2,4]{1,0} READER, dynamic_slice_sizes={2,4}
}
ENTRY %main (a: f32[8,4]) -> f32[2,4] {
  %a = f32[8,4]{1,0} parameter(0)
  ROOT %f = f32[2,4]{1,0} fusion(%a), kind=kCustom, calls=%scatter
}
"""


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ("dynamic-slice(%r, %k, %k)", "reduce_scatter"),
        ("fusion(%r, %k), kind=kLoop, calls=%other", "all_reduce"),
    ],
)
def test_a_fused_sum_of_which_a_piece_is_kept_is_a_reduce_scatter(reader, kind):
    assert compiled_collectives(SCATTER.replace("READER", reader)) == [
        HloCollective(kind, 128, ALL)
    ]


def test_starts_of_other_compilers_carry_operands_results_and_context():
    text = (
        "%p = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%x), channel_id=1, "
        "source_target_pairs={{0,1},{1,2}}\n"
        "%g = ((f32[2]{0}, f32[3]{0}), (f32[8]{0}, f32[12]{0})) all-gather-start(%x, %y), "
        "replica_groups={{0,1,2,3}}, dimensions={0}"
    )
    assert compiled_collectives(text) == [
        HloCollective("collective_permute", 16, ((0, 1, 2),)),
        HloCollective("all_gather", 32, ALL),
        HloCollective("all_gather", 48, ALL),
    ]


NAMED = [
    ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
    ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("mesh['a'=2,'b'=4] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
    ("mesh['a'=2,'b'=4] {'b','a'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
    (
        "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
        ((0, 2, 4, 6), (1, 3, 5, 7)),
    ),
    ("mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'a'}", ((0, 1), (3, 2))),
    ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ("mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
]


@pytest.mark.parametrize(("written", "groups"), NAMED)
def test_groups_along_named_axes(written, groups):
    line = f"%x = f32[8]{{0}} all-gather(%y), replica_groups={written}, dimensions={{0}}"
    assert compiled_collectives(line) == [HloCollective("all_gather", 32, groups)]


def test_groups_in_an_unknown_form_are_an_error():
    line = "%x = f32[8]{0} all-gather(%y), replica_groups=<everyone>, dimensions={0}"
    with pytest.raises(VerifyError, match=r"unknown form.*everyone"):
        compiled_collectives(line)


# ---------------------------------------------------------------------------------- time


def test_cycles_of_what_runs_are_summed_those_inside_of_fusions_are_not():
    module = parse(ASYNC)
    assert backend_for("v5e:2x2").cycles(module, executions(module)) == 1503


def test_time_is_cycles_by_the_clock_and_collectives_by_the_ring_model():
    mesh, hardware = Mesh.of("x=2,y=2"), load("tpu_v5e")
    time = compiled_time(1503, found_collectives(parse(ASYNC)), mesh, hardware)
    ring = interconnect(mesh, hardware)
    assert time.compute_time == pytest.approx(1e-6)
    assert time.exposed_time == pytest.approx(ring.collective_seconds("all_reduce", (1,), 32))
    assert time.hidden_time == pytest.approx(ring.collective_seconds("all_gather", (0, 1), 128))


COMBINED = """
ENTRY %main (a: f32[8], b: f32[24]) -> (f32[8], f32[24]) {
  %a = f32[8]{0} parameter(0)
  %b = f32[24]{0} parameter(1)
  ROOT %sum = (f32[8]{0}, f32[24]{0}) all-reduce(%a, %b), replica_groups={{0,1,2,3}}, to_apply=%add
}
"""


def test_what_is_combined_takes_the_time_of_one():
    mesh, hardware = Mesh.of("x=4"), load("tpu_v5e")
    found = found_collectives(parse(COMBINED))
    assert [each.collective.bytes for each in found] == [32, 96]
    time = compiled_time(1503, found, mesh, hardware)
    network = interconnect(mesh, hardware)
    assert time.exposed_time == pytest.approx(network.collective_seconds("all_reduce", (0,), 128))


@pytest.mark.parametrize(("cycles", "kind"), [(1503, "h100"), (0, "tpu_v5e")])
def test_no_time_without_cycles_or_a_clock(cycles, kind):
    assert compiled_time(cycles, [], Mesh.of("x=4"), load(kind)) is None


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (((0, 1, 2), (3, 4, 5)), (1,)),
        (((0, 3), (1, 4), (2, 5)), (0,)),
        (((5, 3, 4), (2, 0, 1)), (1,)),
        (((0, 1, 2, 3, 4, 5),), (0, 1)),
        (((0, 1), (2, 3), (4, 5)), None),
        ((), (0, 1)),
    ],
)
def test_axes_of_groups(groups, axes):
    assert axes_of(groups, Mesh.of("x=2,y=3")) == axes


# ------------------------------------------------------------------ padded reduce_scatters

PADDED = """
%scatter (p: f32[12,4], q: f32[8,4]) -> (f32[4,4], f32[2,4]) {
  %p = f32[12,4]{1,0} parameter(0)
  %q = f32[8,4]{1,0} parameter(1)
  %k = s32[] constant(0)
  %z = f32[] constant(0)
  %w = f32[16,4]{1,0} pad(%p, %z), padding=0_4x0_0
  %r = (f32[16,4]{1,0}, f32[8,4]{1,0}) all-reduce(%w, %q), replica_groups={{0,1,2,3}}, to_apply=%a
  %r0 = f32[16,4]{1,0} get-tuple-element(%r), index=0
  %r1 = f32[8,4]{1,0} get-tuple-element(%r), index=1
  %s0 = f32[4,4]{1,0} dynamic-slice(%r0, %k, %k), dynamic_slice_sizes={4,4}
  %s1 = f32[2,4]{1,0} dynamic-slice(%r1, %k, %k), dynamic_slice_sizes={2,4}
  ROOT %t = (f32[4,4]{1,0}, f32[2,4]{1,0}) tuple(%s0, %s1)
}
ENTRY %main (a: f32[12,4], b: f32[8,4]) -> f32[1,4] {
  %a = f32[12,4]{1,0} parameter(0)
  %b = f32[8,4]{1,0} parameter(1)
  %f = (f32[4,4]{1,0}, f32[2,4]{1,0}) fusion(%a, %b), kind=kCustom, calls=%scatter
  %g = f32[4,4]{1,0} get-tuple-element(%f), index=0
  %c = f32[1,4]{1,0} slice(%g), slice={[3:4], [0:4]}
  ROOT %h = f32[1,4]{1,0} collective-permute(%c), source_target_pairs={{0,1},{1,2},{2,3}}
}
"""


def test_what_is_scattered_counts_without_its_padding_and_without_the_patch():
    padded, other, patch = found_collectives(parse(PADDED))
    assert padded.collective == HloCollective("reduce_scatter", 12 * 4 * 4, ALL) and padded.padded
    assert other.collective == HloCollective("reduce_scatter", 8 * 4 * 4, ALL) and not other.padded
    assert patch.collective.kind == "collective_permute" and patch.patch
    comparison = side_by_side([], Mesh.of("x=4"), [padded, other, patch])
    assert comparison.compiled == Counter([padded.collective, other.collective])
    assert comparison.rewrites == {"padded shards": 1}


CUT = """
%piece (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %k = s32[] constant(0)
  ROOT %s = f32[2,4]{1,0} dynamic-slice(%p, %k, %k), dynamic_slice_sizes={2,4}
}
ENTRY %main (a: f32[8,4]) -> f32[2,4] {
  %a = f32[8,4]{1,0} parameter(0)
  %r = f32[8,4]{1,0} all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add
  %c = f32[8,4]{0,1} copy(%r)
  ROOT %f = f32[2,4]{1,0} fusion(%c), kind=kLoop, calls=%pieceOTHER
}
"""


def test_a_sum_of_which_every_reader_takes_a_piece():
    (found,) = found_collectives(parse(CUT.replace("OTHER", "")))
    assert found.collective.kind == "all_reduce" and found.cut
    also = "\n  %n = f32[8,4]{1,0} negate(%r)"
    (found,) = found_collectives(parse(CUT.replace("calls=%pieceOTHER", f"calls=%piece{also}")))
    assert not found.cut


# ----------------------------------------------------------------------------- agreement

PAIRS, OTHERS = ((0, 1), (2, 3)), ((0, 2), (1, 3))
AGREEMENTS = [
    ({("all_gather", 64, PAIRS): 2}, "equal"),
    ({("all_gather", 128, PAIRS): 1}, "bytes"),
    ({("all_reduce", 64, PAIRS): 2}, "different"),
    ({("all_gather", 64, OTHERS): 2}, "different"),
    ({("all_gather", 64, PAIRS): 1}, "different"),
    ({("all_to_all", 64, PAIRS): 2}, "different"),
]


@pytest.mark.parametrize(("compiled", "agreement"), AGREEMENTS)
def test_how_near_collectives_are(compiled, agreement):
    predicted = Counter({HloCollective("all_gather", 64, PAIRS): 2})
    made = Counter({HloCollective(*key): count for key, count in compiled.items()})
    assert Comparison(pt.Mesh.of("x=2,y=2"), predicted, made).agreement == agreement


# ------------------------------------------------------------------------ known rewrites

GATHER, SUM = HloCollective("all_gather", 64, ALL), HloCollective("all_reduce", 64, ALL)
ALWAYS = Becomes("always", SUM)
PERHAPS = Becomes("perhaps", SUM, always=False)
IF_CUT = Becomes("if cut", SUM, always=False, cut=True)
GONE = Becomes("gone", None, always=False)


def planned(kind, index):
    return Collective(kind, ("x",), 64, 1, "", "", 4, "f32", index)


def found(*collectives, cut=False):
    return [Found(each, 1, False, cut=cut) for each in collectives]


REWRITES = [
    ([ALWAYS], found(SUM), "rewritten", {"always": 1}),
    ([ALWAYS], found(GATHER), "equal", {}),
    ([PERHAPS], found(SUM), "rewritten", {"perhaps": 1}),
    ([PERHAPS], found(GATHER), "equal", {}),
    ([PERHAPS], found(SUM, SUM), "different", {"perhaps": 1}),
    ([IF_CUT], found(SUM), "different", {}),
    ([IF_CUT], found(SUM, cut=True), "rewritten", {"if cut": 1}),
    ([GONE], found(), "rewritten", {"gone": 1}),
    ([GONE], found(GATHER), "equal", {}),
    ([], found(SUM), "different", {}),
]


@pytest.mark.parametrize(("becomes", "made", "agreement", "rewrites"), REWRITES)
def test_a_known_rewrite_explains_what_was_compiled(becomes, made, agreement, rewrites):
    comparison = side_by_side([planned("all_gather", 0)], Mesh.of("x=4"), made, becomes=[becomes])
    assert (comparison.agreement, comparison.rewrites) == (agreement, rewrites)


def test_what_can_only_stay_as_it_is_comes_first():
    both = [planned("all_reduce", 0), planned("all_gather", 1)]
    comparison = side_by_side(both, Mesh.of("x=4"), found(SUM), becomes=[[], [PERHAPS]])
    assert comparison.rewrites == {} and comparison.agreement == "different"
    comparison = side_by_side(both, Mesh.of("x=4"), found(SUM, SUM), becomes=[[], [PERHAPS]])
    assert comparison.rewritten == Counter([Rewritten("perhaps", GATHER, SUM)])
    assert {comparison.remark(e) for e in (GATHER, SUM)} == {"rewritten"}


def test_what_stays_gives_way_to_what_can_only_become_the_same():
    """Of gathers of 128 and 64 bytes that may move half, 64 and 32 bytes are found: both do."""
    sizes = 128, 64, 32
    large, middle, small = (HloCollective("all_gather", size, ALL) for size in sizes)
    halves = [[Becomes("narrowed", made, always=False)] for made in (middle, small)]
    gathers = [
        dataclasses.replace(planned("all_gather", n), bytes=size)
        for n, size in enumerate(sizes[:2])
    ]
    made = found(middle, small)
    comparison = side_by_side(gathers, Mesh.of("x=4"), made, becomes=halves)
    both = Counter([Rewritten("narrowed", large, middle), Rewritten("narrowed", middle, small)])
    assert comparison.rewritten == both and comparison.agreement == "rewritten"
    comparison = side_by_side(gathers, Mesh.of("x=4"), found(middle, middle), becomes=halves)
    assert comparison.rewritten == Counter([Rewritten("narrowed", large, middle)])
    comparison = side_by_side(gathers, Mesh.of("x=4"), found(middle), becomes=halves)
    assert comparison.rewritten == Counter() and comparison.agreement == "different"


# --------------------------------------------------- what GPUs put together to sum it at once

TOGETHER = """
%scalars (a: f32[], b: f32[]) -> (f32[2], f32[]) {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %x = f32[1]{0} bitcast(%a)
  %y = f32[1]{0} bitcast(%b)
  %both = f32[2]{0} concatenate(%x, %y), dimensions={0}
  ROOT %t = (f32[2]{0}, f32[]) tuple(%both, %a)
}
%wrapped (p: f32[8], q: f32[2]) -> f32[10] {
  %p = f32[8]{0} parameter(0)
  %q = f32[2]{0} parameter(1)
  ROOT %c = f32[10]{0} concatenate(%p, %q), dimensions={0}
}
ENTRY %main (v: f32[8], a: f32[], b: f32[]) -> f32[10] {
  %v = f32[8]{0} parameter(0)
  %a.1 = f32[] parameter(1)
  %b.1 = f32[] parameter(2)
  %f = (f32[2]{0}, f32[]) fusion(%a.1, %b.1), kind=kLoop, calls=%scalars
  %g = f32[2]{0} get-tuple-element(%f), index=0
  %w = f32[10]{0} fusion(%v, %g), kind=kLoop, calls=%wrapped
  %s = f32[10]{0} all-reduce-start(%w), channel_id=1, replica_groups={{0,1,2,3}}, metadata={NAME}
  ROOT %d = f32[10]{0} all-reduce-done(%s)
}
"""


def test_sums_that_are_put_one_behind_the_other_count_one_by_one():
    text = TOGETHER.replace("NAME", 'scheduling_name="s"')
    assert [c.bytes for c in compiled_collectives(text)] == [32, 4, 4]


def test_what_the_program_itself_puts_together_is_one():
    text = TOGETHER.replace("NAME", 'op_name="jit(f)/psum"')
    assert [c.bytes for c in compiled_collectives(text)] == [40]


STARTED = """
ENTRY %main (v: f32[64,8]) -> f32[64,8] {
  %v = f32[64,8]{1,0} parameter(0)
  %s = ((f32[64,8]{1,0}), f32[64,8]{1,0}) all-to-all-start(%v), channel_id=1, \
replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %d = f32[64,8]{1,0} all-to-all-done(%s)
}
"""


def test_an_all_to_all_that_is_started_moves_its_operand_once():
    assert [(c.kind, c.bytes) for c in compiled_collectives(STARTED)] == [("all_to_all", 2048)]
