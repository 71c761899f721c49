"""What each class of operations reaches: small products, convolutions, gathers, slices."""

from __future__ import annotations

import jax.numpy as jnp
import msgspec
import pytest
from jax import lax

from partita.cost import CostModel
from partita.cost.devices.hardware import Efficiency, Hardware, Products, TileShape
from partita.cost.devices.network import Network
from partita.cost.devices.schema import Figure

FLOPS, BANDWIDTH = 1e12, 1e12
MATMUL, MEMORY, GATHER, CONVOLUTION = 0.8, 0.5, 0.125, 0.4
ROWS, COLUMNS = 128, 64


def figure(value):
    return Figure(value, "made up for this test")


# So slow that every product below is limited by FLOP/s.
TOY = Hardware(
    "toy",
    "made up",
    figure(2**40),
    figure(BANDWIDTH),
    {"f32": figure(FLOPS)},
    Efficiency(figure(MATMUL), figure(MEMORY), figure(GATHER), figure(CONVOLUTION)),
    (Network("ici", "torus", 64, figure(1e11), figure(1e-6)),),
    TileShape(figure(ROWS), figure(COLUMNS)),
)


def seconds(bench, *actions, hardware=TOY):
    model = CostModel(bench.graph, bench.analysis, bench.mesh, hardware)
    return model.cost(bench.lowerer.lower(bench.tile(*actions))).time.compute_time


def multiplied(*sizes, of=MATMUL):
    """Seconds of a product over these sizes, as they are padded."""
    total = 2.0
    for size in sizes:
        total *= size
    return total / (FLOPS * of)


def streamed(*elements):
    return 4 * sum(elements) / (BANDWIDTH * MEMORY)


def gathered(*elements):
    return 4 * sum(elements) / (BANDWIDTH * GATHER)


# -------------------------------------------------------------------------- small products

PRODUCTS = [
    ((256, 128, 512), (256, 128, 512)),  # multiples of the unit
    ((256, 64, 512), (256, 128, 512)),  # a head of 64 fills half of the rows
    ((256, 129, 512), (256, 256, 512)),
    ((256, 128, 500), (256, 128, 500)),  # the other side is held, so this one streams
    ((250, 128, 500), (250, 128, 512)),  # the one that loses less is padded
]


@pytest.mark.parametrize(("sizes", "padded"), PRODUCTS)
def test_products_are_padded_to_the_matrix_unit(bench, sizes, padded):
    m, k, n = sizes
    b = bench(lambda x, w: x @ w, f"f32[{m},{k}]", f"f32[{k},{n}]")
    assert seconds(b) == pytest.approx(multiplied(*padded))


def test_heads_are_no_side_of_a_product(bench):
    b = bench(lambda q, k: q @ k, "f32[16,256,64]", "f32[16,64,256]")
    assert seconds(b) == pytest.approx(multiplied(16, 256, 128, 256))


def test_it_is_the_local_sizes_that_are_padded(bench):
    b = bench(lambda x, w: x @ w, "f32[256,256]", "f32[256,256]", mesh="x=4")
    assert seconds(b, ("x", 1, "x")) == pytest.approx(multiplied(256, 128, 256))
    assert seconds(b, ("w", 1, "x")) == pytest.approx(multiplied(256, 256, 64))
    assert seconds(b, ("x", 0, "x")) == pytest.approx(multiplied(64, 256, 256))


def test_without_a_unit_small_products_are_as_fast_as_large_ones(bench):
    b = bench(lambda x, w: x @ w, "f32[256,60]", "f32[60,500]")
    plain = Hardware(**{f: getattr(TOY, f) for f in TOY.__struct_fields__ if f != "matrix_unit"})
    assert seconds(b, hardware=plain) == pytest.approx(multiplied(256, 60, 500))


# ----------------------------------------------------------------------------- convolutions


def convolve(stride=1, groups=1):
    return lambda x, w: lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


CONVOLUTIONS = [
    # images, side, channels, features, window, groups: per tap channels by features
    ((8, 16, 128, 64, 3, 1), (8 * 16 * 16, 9, 128, 64)),
    ((8, 16, 64, 48, 3, 1), (8 * 16 * 16, 9, 128, 64)),
    # A stem: the channels of a row of the window share a unit.
    ((8, 16, 3, 64, 7, 1), (8 * 16 * 16, 7, 128, 64)),
    # Depthwise: a row of the unit for each tap.
    ((8, 16, 64, 64, 3, 64), (8 * 16 * 16, 9, 128, 64)),
]


@pytest.mark.parametrize(("sizes", "padded"), CONVOLUTIONS)
def test_convolutions_are_products_for_every_tap(bench, sizes, padded):
    images, side, channels, features, window, groups = sizes
    b = bench(
        convolve(groups=groups),
        f"f32[{images},{side},{side},{channels}]",
        f"f32[{window},{window},{channels // groups},{features}]",
    )
    assert seconds(b) == pytest.approx(multiplied(*padded, of=CONVOLUTION))


def test_convolutions_reach_what_products_reach_if_the_file_does_not_say(bench):
    b = bench(convolve(), "f32[8,16,16,128]", "f32[3,3,128,64]")
    silent = msgspec.structs.replace(TOY, efficiency=Efficiency(figure(MATMUL), figure(MEMORY)))
    assert seconds(b, hardware=silent) == pytest.approx(multiplied(8 * 16 * 16, 9, 128, 64))


# ------------------------------------------------------------------------- rows and slices


def test_a_gather_moves_rows_and_not_the_table(bench):
    b = bench(lambda table, i: table.at[i].get(mode="clip"), "f32[100000,256]", "i32[64]")
    rows = 64 * 256
    assert seconds(b) == pytest.approx(gathered(rows, rows), rel=0.01)


def test_gathers_stream_if_the_file_does_not_say(bench):
    b = bench(lambda table, i: table.at[i].get(mode="clip"), "f32[100000,256]", "i32[64]")
    silent = msgspec.structs.replace(TOY, efficiency=Efficiency(figure(MATMUL), figure(MEMORY)))
    rows = 64 * 256
    assert seconds(b, hardware=silent) == pytest.approx(streamed(rows, rows), rel=0.01)


def test_a_scatter_reads_updates_and_changes_rows(bench):
    b = bench(
        lambda table, i, u: table.at[i].add(u, mode="clip"),
        "f32[1000,256]",
        "i32[64]",
        "f32[64,256]",
    )
    rows, table = 64 * 256, 1000 * 256
    expected = streamed(table, table) + gathered(rows, rows, rows)
    assert seconds(b) == pytest.approx(expected, rel=0.01)


def test_a_slice_reads_what_it_gives(bench):
    b = bench(lambda x: 2 * x[:8], "f32[1000,256]")
    assert seconds(b) == pytest.approx(streamed(8 * 256, 8 * 256))


def test_an_update_is_in_place(bench):
    def fn(cache, new, i):
        return lax.dynamic_update_slice(cache, new, (i, 0))

    b = bench(fn, "f32[1000,256]", "f32[8,256]", "i32[]")
    assert seconds(b) == pytest.approx(streamed(8 * 256, 8 * 256), rel=0.01)


def test_what_a_loop_carries_stays_where_it_is(bench):
    b = bench(
        lambda x: lax.fori_loop(0, 5, lambda i, x: lax.sort(x) + 1, x),
        "f32[1000,256]",
    )
    sorted_, added = streamed(256000, 256000), streamed(256000, 256000)
    assert seconds(b) == pytest.approx(5 * (sorted_ + added), rel=0.01)


def test_a_loop_over_layers_reads_each_of_them_once(bench):
    def fn(x, ws):
        return lax.scan(lambda x, w: (x @ w, None), x, ws)[0]

    b = bench(fn, "f32[512,256]", "f32[100,256,256]")
    # The slice of a layer hides nowhere, but it is a slice, not all layers each time.
    slices = 100 * streamed(256 * 256, 256 * 256)
    assert seconds(b) == pytest.approx(100 * multiplied(512, 256, 256) + slices, rel=0.05)


# ------------------------------------------------------------------------- starts of kernels

LAUNCH, START, RAMP = 2e-6, 5e-6, 100

STARTING = msgspec.structs.replace(
    TOY, launch=figure(LAUNCH), products=Products(figure(START), figure(RAMP))
)


def test_a_product_starts_and_contracts_a_ramp_more(bench):
    b = bench(lambda x, w: x @ w, "f32[256,60]", "f32[60,500]")
    # Nothing is padded: 60 + 100 elements contracted.
    expected = START + multiplied(256, 60 + RAMP, 500)
    assert seconds(b, hardware=STARTING) == pytest.approx(expected)


def test_what_is_contracted_on_one_device_has_the_ramp(bench):
    b = bench(lambda x, w: x @ w, "f32[256,256]", "f32[256,256]", mesh="x=4")
    split = seconds(b, ("x", 1, "x"), hardware=STARTING)
    assert split == pytest.approx(START + multiplied(256, 64 + RAMP, 256))
    split = seconds(b, ("x", 0, "x"), hardware=STARTING)
    assert split == pytest.approx(START + multiplied(64, 256 + RAMP, 256))


def test_batches_start_once(bench):
    b = bench(lambda q, k: q @ k, "f32[16,256,64]", "f32[16,64,256]")
    expected = START + multiplied(16, 256, 64 + RAMP, 256)
    assert seconds(b, hardware=STARTING) == pytest.approx(expected)


def test_every_kernel_is_launched(bench):
    b = bench(lambda x: jnp.sort(2 * x + 1), "f32[1000,256]")  # a chain that is stored, and a sort
    expected = 2 * LAUNCH + 2 * streamed(256000, 256000)
    assert seconds(b, hardware=STARTING) == pytest.approx(expected)


def test_what_is_computed_inside_of_a_kernel_has_no_launch(bench):
    b = bench(lambda x: jnp.tanh(2 * x + 1) * 3, "f32[1000,256]")
    assert seconds(b, hardware=STARTING) == pytest.approx(LAUNCH + streamed(256000, 256000))


def test_kernels_of_a_loop_are_launched_each_time(bench):
    b = bench(lambda x: lax.fori_loop(0, 5, lambda i, x: lax.sort(x) + 1, x), "f32[1000,256]")
    launches = seconds(b, hardware=STARTING) - seconds(b)
    # The sort, the addition, and that of the counter, five times; once the counter's first value.
    assert launches == pytest.approx((5 * 3 + 1) * LAUNCH)


def test_convolutions_are_launched_and_padded(bench):
    b = bench(convolve(), "f32[8,16,16,128]", "f32[3,3,128,64]")
    expected = LAUNCH + multiplied(8 * 16 * 16, 9, 128, 64, of=CONVOLUTION)
    assert seconds(b, hardware=STARTING) == pytest.approx(expected)


def test_products_of_float32_may_reach_another_share(bench):
    efficiency = msgspec.structs.replace(TOY.efficiency, matmul_f32=figure(0.5))
    slower = msgspec.structs.replace(TOY, efficiency=efficiency, peak_flops={"bf16": figure(FLOPS)})
    single = bench(lambda x, w: x @ w, "f32[256,128]", "f32[128,512]")
    half = bench(lambda x, w: x @ w, "bf16[256,128]", "bf16[128,512]")
    # Half of the peak of bfloat16, as the file states none of float32.
    assert seconds(single, hardware=slower) == pytest.approx(multiplied(256, 128, 512, of=0.25))
    assert seconds(half, hardware=slower) == pytest.approx(multiplied(256, 128, 512))


def test_nothing_contracted_is_a_ramp_alone(bench):
    b = bench(lambda x, y: x[:, None] @ y[None], "f32[512]", "f32[512]")
    expected = START + max(multiplied(512, 1 + RAMP, 512), streamed(512, 512, 512 * 512))
    assert seconds(b, hardware=STARTING) == pytest.approx(expected, rel=0.001)
