"""The time of a compiled step, from the order of its instructions."""

from __future__ import annotations

import msgspec
import pytest

from partita import cost
from partita.cost.devices.schema import Figure
from partita.cost.network.collectives import interconnect
from partita.mesh import Mesh
from partita.verify.hlo import parse
from partita.verify.kernels import Kernels
from partita.verify.loops import executions
from partita.verify.schedule import scheduled_time

MESH = Mesh.of("data=8")
H100 = cost.load("h100")
RATE = H100.memory_bandwidth.value * H100.efficiency.memory.value
LAUNCH = H100.launch.value
MIB = 2**20


def timed(text):
    module = parse(text)
    return scheduled_time(module, executions(module), MESH, H100)


def kernel(text, name="k"):
    module = parse(text)
    entry = module.computations[module.entry]
    return entry, entry.instructions[name], Kernels(module, H100)


def bytes_of(text, name="k"):
    entry, instruction, kernels = kernel(text, name)
    return kernels.bytes(entry, instruction)


# --------------------------------------------------------------------------------- kernels


COPY = """
ENTRY %main (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0} parameter(0)
  ROOT %k = f32[1024,1024]{0,1} copy(%p)
}
"""


def test_a_kernel_reads_its_operands_and_writes_its_result():
    assert bytes_of(COPY) == 2 * 4 * MIB


SLICED = """
%fused (a: f32[64,1024], b: s32[], c: f32[1024]) -> f32[1024] {
  %a = f32[64,1024]{1,0} parameter(0)
  %b = s32[] parameter(1)
  %c = f32[1024]{0} parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,1024]{1,0} dynamic-slice(%a, %b, %zero), dynamic_slice_sizes={1,1024}
  %flat = f32[1024]{0} bitcast(%row)
  ROOT %sum = f32[1024]{0} add(%flat, %c)
}

ENTRY %main (p: f32[64,1024], i: s32[], q: f32[1024]) -> f32[1024] {
  %p = f32[64,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %q = f32[1024]{0} parameter(2)
  ROOT %k = f32[1024]{0} fusion(%p, %i, %q), kind=kLoop, calls=%fused
}
"""


def test_of_what_a_fusion_slices_it_reads_the_slice():
    assert bytes_of(SLICED) == 3 * 4096 + 4


UPDATED = """
%fused (a: f32[64,1024], b: f32[1,1024], i: s32[]) -> f32[64,1024] {
  %a = f32[64,1024]{1,0} parameter(0)
  %b = f32[1,1024]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %new = f32[64,1024]{1,0} dynamic-update-slice(%a, %b, %i, %zero)
}

ENTRY %main (p: f32[64,1024], q: f32[1,1024], i: s32[]) -> f32[64,1024] {
  %p = f32[64,1024]{1,0} parameter(0)
  %q = f32[1,1024]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %k = f32[64,1024]{1,0} fusion(%p, %q, %i), kind=kLoop, calls=%fused
}
"""


def test_what_a_fusion_updates_in_place_is_neither_read_nor_written():
    assert bytes_of(UPDATED) == 2 * 4096 + 4


PRODUCT = """
ENTRY %main (p: bf16[4,2048,512], q: bf16[4,512,4096]) -> bf16[4,2048,4096] {
  %p = bf16[4,2048,512]{2,1,0} parameter(0)
  %q = bf16[4,512,4096]{2,1,0} parameter(1)
  %k = (bf16[4,2048,4096]{2,1,0}, s8[4194304]{0}) custom-call(%p, %q), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],\
"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}}}
  ROOT %r = bf16[4,2048,4096]{2,1,0} get-tuple-element(%k), index=0
}
"""


def test_a_product_takes_what_its_flops_take():
    entry, instruction, kernels = kernel(PRODUCT)
    start, ramp = H100.products.start.value, H100.products.ramp.value
    seconds = start + 2 * 4 * 2048 * (512 + ramp) * 4096 / H100.reached("bf16")
    assert kernels.seconds(entry, instruction) == pytest.approx(seconds)


def test_the_space_that_a_library_is_lent_is_not_written():
    assert bytes_of(PRODUCT) == 2 * (4 * 2048 * 512 + 4 * 512 * 4096 + 4 * 2048 * 4096)


@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("Forward", ("bf16[8,32,32,64]", "bf16[3,3,64,128]"), "bf16[8,32,32,128]"),
        ("BackwardInput", ("bf16[8,32,32,128]", "bf16[3,3,64,128]"), "bf16[8,32,32,64]"),
        ("BackwardFilter", ("bf16[8,32,32,64]", "bf16[8,32,32,128]"), "bf16[3,3,64,128]"),
    ],
)
def test_a_convolution_and_its_gradients_have_the_same_flops(target, operands, result):
    text = f"""
ENTRY %main (p: {operands[0]}, q: {operands[1]}) -> {result} {{
  %p = {operands[0]}{{3,2,1,0}} parameter(0)
  %q = {operands[1]}{{3,2,1,0}} parameter(1)
  %k = ({result}{{3,2,1,0}}, u8[0]{{0}}) custom-call(%p, %q), window={{size=3x3 pad=1_1x1_1}}, \
dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv{target}"
  ROOT %r = {result}{{3,2,1,0}} get-tuple-element(%k), index=0
}}
"""
    slow = msgspec.structs.replace(H100, peak_flops={"bf16": Figure(1e9, "test")})
    module = parse(text)
    entry = module.computations["main"]
    flops = 2 * (8 * 32 * 32 * 128) * 9 * 64
    reached = slow.efficiency.convolution.value
    seconds = Kernels(module, slow).seconds(entry, entry.instructions["k"])
    assert seconds == pytest.approx(LAUNCH + flops / 1e9 / reached)


# -------------------------------------------------------------------------------- schedules


def step(between, synchronous=False):
    """A gather of 512 MiB, with a copy of an array after it was started, or without."""
    sync = "true" if synchronous else "false"
    copy = "  %c = f32[16384,16384]{0,1} copy(%q)\n" if between else ""
    return f"""
ENTRY %main (p: f32[16777216], q: f32[16384,16384]) -> f32[134217728] {{
  %p = f32[16777216]{{0}} parameter(0)
  %q = f32[16384,16384]{{1,0}} parameter(1)
  %s = (f32[16777216]{{0}}, f32[134217728]{{0}}) all-gather-start(%p), channel_id=1, \
replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, \
backend_config={{"collective_backend_config":{{"is_sync":{sync}}}}}
{copy}  ROOT %d = f32[134217728]{{0}} all-gather-done(%s)
}}
"""


GATHER = interconnect(MESH, H100).collective_seconds("all_gather", (0,), 512 * MIB)
WORK = LAUNCH + 2 * 1024 * MIB / RATE


def test_what_a_collective_is_waited_for_is_exposed():
    time = timed(step(between=False))
    assert time.compute_time == time.hidden_time == 0
    assert time.exposed_time == pytest.approx(GATHER)


def test_work_between_start_and_end_hides_a_collective():
    assert WORK < GATHER
    time = timed(step(between=True))
    assert time.compute_time == pytest.approx(WORK)
    assert time.exposed_time == pytest.approx(GATHER - WORK)
    assert time.hidden_time == pytest.approx(WORK)
    assert time.step_time == pytest.approx(GATHER)


def test_nothing_runs_beside_one_that_is_synchronous():
    time = timed(step(between=True, synchronous=True))
    assert time.step_time == pytest.approx(GATHER + WORK)


def test_what_is_combined_travels_as_one():
    text = """
ENTRY %main (p: f32[1024], q: f32[1024]) -> f32[8192] {
  %p = f32[1024]{0} parameter(0)
  %q = f32[1024]{0} parameter(1)
  %s = ((f32[1024]{0}, f32[1024]{0}), (f32[8192]{0}, f32[8192]{0})) all-gather-start(%p, %q), \
channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %d = (f32[8192]{0}, f32[8192]{0}) all-gather-done(%s)
  ROOT %r = f32[8192]{0} get-tuple-element(%d), index=0
}
"""
    both = interconnect(MESH, H100).collective_seconds("all_gather", (0,), 2 * 32768)
    assert timed(text).exposed_time == pytest.approx(both)


LOOP = """
%body (a: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {
  %a = (s32[], f32[1024,1024]) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %x = f32[1024,1024]{1,0} get-tuple-element(%a), index=1
  %y = f32[1024,1024]{0,1} copy(%x)
  ROOT %t = (s32[], f32[1024,1024]) tuple(%i, %y)
}

%condition (a.1: (s32[], f32[1024,1024])) -> pred[] {
  %a.1 = (s32[], f32[1024,1024]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (p: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {
  %p = (s32[], f32[1024,1024]) parameter(0)
  ROOT %w = (s32[], f32[1024,1024]) while(%p), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"24"}}
}
"""


def test_the_body_of_a_loop_runs_as_often_as_it_says():
    assert timed(LOOP).compute_time == pytest.approx(24 * (LAUNCH + 8 * MIB / RATE))
