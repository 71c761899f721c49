"""Times of collectives, against formulas written out by hand.

The made-up device has a torus of up to 8 (100 GB/s, 1 us a hop) inside a switch (10 GB/s, 20 us a
step), or a switch of up to 8 inside the same switch.
"""

from __future__ import annotations

import pytest

from partita.cost import interconnect, load
from partita.cost.devices.hardware import Efficiency, Hardware, Network
from partita.cost.devices.schema import Figure
from partita.errors import MeshError
from partita.mesh import Mesh
from partita.program import TensorType
from partita.spmd import reshard

FAST, HOP = 100e9, 1e-6
SLOW, STEP = 10e9, 20e-6
MIB = 2**20


def figure(value):
    return Figure(value, "made up for this test")


def network(name, kind, size, bandwidth, latency):
    return Network(name, kind, size, figure(bandwidth), figure(latency))


def hardware(*networks):
    return Hardware(
        "toy",
        "made up",
        figure(2**30),
        figure(1e12),
        {"f32": figure(1e14)},
        Efficiency(figure(1.0), figure(1.0)),
        networks,
    )


ETHERNET = network("ethernet", "switch", 4096, SLOW, STEP)
TORUS = hardware(network("ici", "torus", 8, FAST, HOP), ETHERNET)
LINES = hardware(Network("ici", "torus", 8, figure(FAST), figure(HOP), wrap=8), ETHERNET)
SWITCH = hardware(network("nvlink", "switch", 8, FAST, HOP), ETHERNET)


def seconds(device, mesh, kind, axes, size):
    mesh = Mesh.of(mesh)
    numbers = tuple(mesh.axis(name) for name in axes.split("+"))
    return interconnect(mesh, device).collective_seconds(kind, numbers, size)


# -------------------------------------------------------------------- one axis, kind by kind

ONE_AXIS = [
    # A ring of n sends (n-1)/n of the payload. On a torus both directions work, so the furthest
    # piece is n/2 hops away; through a switch there are n-1 steps.
    (TORUS, "x=8", "all_gather", 7 / 8 * MIB / FAST + 4 * HOP),
    (TORUS, "x=8", "reduce_scatter", 7 / 8 * MIB / FAST + 4 * HOP),
    (TORUS, "x=8", "all_reduce", 2 * (7 / 8 * MIB / FAST + 4 * HOP)),
    # Both directions of the ring: a piece travels n/4 links on average.
    (TORUS, "x=8", "all_to_all", 2 * MIB / FAST + 4 * HOP),
    # Two devices are joined by one link, of which each sends on one way: half of the bandwidth.
    (TORUS, "x=2", "all_to_all", 1 / 2 * MIB / (FAST / 2) + 1 * HOP),
    (TORUS, "x=2", "all_gather", 1 / 2 * MIB / (FAST / 2) + 1 * HOP),
    (SWITCH, "x=8", "all_gather", 7 / 8 * MIB / FAST + 7 * HOP),
    (SWITCH, "x=8", "reduce_scatter", 7 / 8 * MIB / FAST + 7 * HOP),
    (SWITCH, "x=8", "all_reduce", 2 * (7 / 8 * MIB / FAST + 7 * HOP)),
    (SWITCH, "x=8", "all_to_all", 7 / 8 * MIB / FAST + 7 * HOP),
    # Laid on the slow network as a whole.
    (TORUS, "x=16@ethernet", "all_gather", 15 / 16 * MIB / SLOW + 15 * STEP),
    (SWITCH, "x=16@ethernet", "all_reduce", 2 * (15 / 16 * MIB / SLOW + 15 * STEP)),
    # Too large for the fast network: 8 of it are inside, and two such parts are joined by the slow
    # one, which sees an eighth of the payload.
    (TORUS, "x=16", "all_gather", 7 / 8 * MIB / FAST + 4 * HOP + MIB / 16 / SLOW + STEP),
    (SWITCH, "x=16", "all_reduce", 2 * (7 / 8 * MIB / FAST + 7 * HOP + MIB / 16 / SLOW + STEP)),
    (SWITCH, "x=16", "all_to_all", 7 / 8 * MIB / FAST + 7 * HOP + MIB / 2 / SLOW + STEP),
    # A line of 4 that does not close to a ring has half of the bandwidth, and 3 hops end to end.
    (LINES, "x=4", "all_gather", 2 * (3 / 4 * MIB / FAST) + 3 * HOP),
    (LINES, "x=8", "all_gather", 7 / 8 * MIB / FAST + 4 * HOP),
    (LINES, "x=2", "all_gather", 1 / 2 * MIB / (FAST / 2) + HOP),
    (TORUS, "x=8", "slice", 0.0),
]


@pytest.mark.parametrize(("device", "mesh", "kind", "expected"), ONE_AXIS)
def test_one_axis(device, mesh, kind, expected):
    assert seconds(device, mesh, kind, "x", MIB) == pytest.approx(expected)


@pytest.mark.parametrize("device", [TORUS, SWITCH], ids=["torus", "switch"])
@pytest.mark.parametrize(
    ("mesh", "axes"), [("x=8", "x"), ("x=4,y=2", "x+y"), ("x=16,y=8", "x+y"), ("x=2,y=3", "y")]
)
@pytest.mark.parametrize("size", [4, 4096, 64 * MIB])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(device, mesh, axes, size):
    scatter = seconds(device, mesh, "reduce_scatter", axes, size)
    gather = seconds(device, mesh, "all_gather", axes, size)
    assert seconds(device, mesh, "all_reduce", axes, size) == pytest.approx(scatter + gather)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_time_grows_with_the_payload_and_is_latency_for_none(kind):
    times = [seconds(TORUS, "x=4", kind, "x", size) for size in (0, 1, MIB, 2 * MIB)]
    assert times == sorted(times) and times[0] > 0
    assert times[3] - times[2] == pytest.approx(times[2] - times[0])


# ------------------------------------------------------------------ which axis is on what net

LAYOUTS = [
    # the last axes of a mesh fill the fast network
    ("x=8", ["ici 8"]),
    ("x=2,y=4", ["ici 2", "ici 4"]),
    ("x=2,y=2,z=2", ["ici 2", "ici 2", "ici 2"]),
    ("x=4,y=8", ["ethernet 4", "ici 8"]),
    ("x=1,y=8", ["", "ici 8"]),
    # an axis that fits in part lies on both, the inner part on the fast one
    ("x=4,y=4", ["ici 2 + ethernet 2", "ici 4"]),
    ("x=2,y=16", ["ethernet 2", "ici 8 + ethernet 2"]),
    # an axis does not go back to the fast network once one before it has left it
    ("x=2,y=8,z=4", ["ethernet 2", "ici 2 + ethernet 4", "ici 4"]),
    # beyond the largest network there is no other
    ("x=5000,y=8", ["ethernet 5000", "ici 8"]),
    # the mesh may say it
    ("x=4@ici,y=16@ethernet", ["ici 4", "ethernet 16"]),
    ("x=4@ici,y=16", ["ici 4", "ici 2 + ethernet 8"]),
    ("x=16@ici+ethernet", ["ici 8 + ethernet 2"]),
]


@pytest.mark.parametrize(("mesh", "expected"), LAYOUTS)
def test_axes_lie_on_networks_fastest_last(mesh, expected):
    parts = interconnect(Mesh.of(mesh), TORUS).parts
    assert [" + ".join(f"{p.network.name} {p.size}" for p in axis) for axis in parts] == expected


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("x=4@icy,y=2", "lays x on 'icy', which toy does not have; did you mean 'ici'"),
        ("x=16@ici", "axes of 16 devices on 'ici', which joins up to 8 on toy; lay an axis on"),
        ("x=4@ici,y=4@ici", "axes of 16 devices on 'ici'"),
    ],
)
def test_a_mesh_that_does_not_fit_the_networks_is_refused(mesh, message):
    with pytest.raises(MeshError, match=message):
        interconnect(Mesh.of(mesh), TORUS)


def test_axes_of_a_torus_have_links_of_their_own_and_a_switch_is_shared():
    def links(mesh, device):
        return [[part.link for part in axis] for axis in interconnect(Mesh.of(mesh), device).parts]

    assert links("x=2,y=4", TORUS) == [[0], [1]]
    assert links("x=2,y=4", SWITCH) == [[0], [0]]
    assert links("x=4,y=4", TORUS) == [[0, 1], [2]]


def test_on_real_hardware_the_last_axes_are_inside_a_node():
    parts = interconnect(Mesh.of("data=16,model=8"), load("h100")).parts
    assert [axis[0].network.name for axis in parts] == ["infiniband", "nvlink"]


# ----------------------------------------------------------------------------- several axes


def test_several_axes_go_fast_one_first_so_that_the_slow_one_sees_a_part():
    # x=4 on ethernet, y=8 on ici: scatter 1 MiB over y, then an eighth of it over x.
    fast = 7 / 8 * MIB / FAST + 4 * HOP
    slow = 3 / 4 * (MIB / 8) / SLOW + 3 * STEP
    for axes in ("x+y", "y+x"):
        time = seconds(TORUS, "x=4,y=8", "reduce_scatter", axes, MIB)
        assert time == pytest.approx(fast + slow)
        time = seconds(TORUS, "x=4,y=8", "all_reduce", axes, MIB)
        assert time == pytest.approx(2 * (fast + slow))


TORI = [
    # The bandwidths of the axes add up, whatever goes along which first: of 16 devices each has
    # 15/16 of the payload to receive, from rings of 100 GB/s each, the furthest 2 + 2 hops away.
    ("x=4,y=4", "all_gather", 15 / 16 * MIB / (2 * FAST) + 4 * HOP),
    ("x=4,y=4", "reduce_scatter", 15 / 16 * MIB / (2 * FAST) + 4 * HOP),
    ("x=4,y=4", "all_reduce", 2 * (15 / 16 * MIB / (2 * FAST) + 4 * HOP)),
    ("x=4,y=4,z=4", "all_gather", 63 / 64 * MIB / (3 * FAST) + 6 * HOP),
    # Two devices are a line: half of a ring's bandwidth, one hop.
    ("x=2,y=4", "all_reduce", 2 * (7 / 8 * MIB / (1.5 * FAST) + 3 * HOP)),
    # Each axis of an all_to_all has a quarter of its length to go, at the same time.
    ("x=4,y=8", "all_to_all", 2 * MIB / FAST + (2 + 4) * HOP),
]


@pytest.mark.parametrize(("mesh", "kind", "expected"), TORI)
def test_axes_of_a_torus_work_at_the_same_time(mesh, kind, expected):
    device = hardware(network("ici", "torus", 64, FAST, HOP), ETHERNET)
    axes = "+".join(axis.partition("=")[0] for axis in mesh.split(","))
    assert seconds(device, mesh, kind, axes, MIB) == pytest.approx(expected)


def test_over_the_axes_of_a_large_torus_a_gather_takes_half_of_the_time_over_one():
    """Of a v5e pod, 16 x 16: V / (2 W) over both of its axes, V / W over one."""
    size, device = 2**30, load("tpu_v5e")
    both = seconds(device, "x=16,y=16", "all_gather", "x+y", size)
    one = seconds(device, "x=16,y=16", "all_gather", "y", size)
    assert both == pytest.approx(size / (2 * 90e9), rel=0.01)
    assert one == pytest.approx(15 / 16 * size / 90e9, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "devices", "bandwidth"),
    [
        # One way of a link of 90 GB/s both ways: so much do two chips have, and the ends of a line.
        ("tpu_v5e", 2, 45e9),
        ("tpu_v5e", 4, 45e9),
        ("tpu_v5e", 8, 45e9),
        ("tpu_v5e", 16, 90e9),
        ("tpu_v6e", 8, 90e9),
        ("tpu_v6e", 16, 180e9),
        # Cubes of 4x4x4 close to rings.
        ("tpu_v5p", 2, 90e9),
        ("tpu_v5p", 4, 180e9),
        ("tpu_v5p", 8, 180e9),
        ("tpu_v4", 2, 45e9),
        ("tpu_v4", 4, 90e9),
    ],
)
def test_which_axes_of_tpus_wrap_around(kind, devices, bandwidth):
    size = 2**30
    time = seconds(load(kind), f"x={devices}", "all_gather", "x", size)
    assert time == pytest.approx((devices - 1) / devices * size / bandwidth, rel=0.01)


def test_a_gather_over_four_chips_is_that_of_a_line():
    """bf16[2048, 8192] over 4 chips of v5e: 680 us measured, 560 by one-way links, 377 by a ring
    ('How to Scale Your Model', jax-ml.github.io/scaling-book, part 3)."""
    time = seconds(load("tpu_v5e"), "x=4", "all_gather", "x", 2 * 2048 * 8192)
    assert time == pytest.approx(560e-6, rel=0.02)


def test_a_step_of_a_reshard_is_priced_by_its_payload():
    mesh = Mesh.of("x=8")
    # 1 MiB sharded eight ways, gathered: the payload is the whole.
    (step,) = reshard(TensorType((512, 512), "f32"), ((0,), ()), frozenset(), ((), ()), mesh)
    assert step.bytes == MIB
    expected = 7 / 8 * MIB / FAST + 4 * HOP
    assert interconnect(mesh, TORUS).seconds(step) == pytest.approx(expected)


def test_a_local_slice_is_free():
    mesh = Mesh.of("x=8")
    (step,) = reshard(TensorType((512,), "f32"), ((),), frozenset(), ((0,),), mesh)
    assert step.kind == "slice" and interconnect(mesh, TORUS).seconds(step) == 0.0


@pytest.mark.parametrize(
    ("kind", "shape", "made"),
    [
        # XLA's TPU compiler cuts a shard out of the sum of a vector.
        ("tpu_v5e", (4096,), "all_reduce"),
        ("tpu_v5p", (1, 4096, 1), "all_reduce"),
        ("tpu_v5e", (4096, 2), "reduce_scatter"),
        ("h100", (4096,), "reduce_scatter"),
    ],
)
def test_a_scatter_of_a_vector_may_be_a_sum(kind, shape, made):
    mesh, dim = Mesh.of("x=4,y=2"), shape.index(4096)
    layout = tuple((0,) if number == dim else () for number in range(len(shape)))
    (step,) = reshard(TensorType(shape, "f32"), ((),) * len(shape), frozenset({0}), layout, mesh)
    on = interconnect(mesh, load(kind))
    assert step.kind == "reduce_scatter"
    assert on.seconds(step) == on.collective_seconds(made, (0,), step.bytes)


@pytest.mark.parametrize(
    ("mesh", "axes", "as_sum"),
    [
        ("x=4,y=2", (0, 1), True),
        ("x=8", (0,), True),
        ("x=4,y=2", (0,), False),
        ("x=4", (0,), False),
    ],
)
def test_a_scatter_over_a_whole_slice_may_be_a_sum(mesh, axes, as_sum):
    whole = Network("ici", "torus", 8, figure(FAST), figure(HOP), scattered_as_sums=(8,))
    on = interconnect(Mesh.of(mesh), hardware(whole, ETHERNET))
    assert on.is_sum("reduce_scatter", axes) == as_sum
    alike = on.collective_seconds("all_reduce" if as_sum else "all_gather", axes, MIB)
    assert on.collective_seconds("reduce_scatter", axes, MIB) == pytest.approx(alike)
