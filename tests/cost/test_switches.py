"""Times of collectives through switches that state them, against formulas written out by hand.

The made-up device has NVLink up to 8 devices, with figures for kinds of collectives, inside of
InfiniBand (10 GB/s, 20 us a step, of which nine tenths are reached).
"""

from __future__ import annotations

import math

import msgspec
import pytest

from partita.cost import interconnect, load
from partita.cost.devices.files import decode, encode
from partita.cost.devices.hardware import Efficiency, Hardware
from partita.cost.devices.network import CollectiveTime, Network
from partita.cost.devices.schema import Figure
from partita.errors import HardwareError
from partita.mesh import Mesh

MIB = 2**20
START, STEP, BANDWIDTH, OWN, CHUNK = 10e-6, 2e-6, 300e9, 600e9, 5e-6
SLOW, LATENCY, REACHED = 10e9, 20e-6, 0.9


def figure(value):
    return Figure(value, "made up for this test")


KINDS = {
    "all_gather": CollectiveTime(figure(START), figure(BANDWIDTH), figure(STEP), figure(OWN)),
    "reduce_scatter": CollectiveTime(figure(2 * START), figure(BANDWIDTH)),
    "all_reduce": CollectiveTime(figure(START), figure(BANDWIDTH), chunk=figure(CHUNK)),
    "all_to_all": CollectiveTime(figure(START), figure(BANDWIDTH)),
    "collective_permute": CollectiveTime(
        figure(START), figure(BANDWIDTH), narrow=figure(100e9), narrow_bytes=figure(3 * MIB)
    ),
}


def device(rails, kinds=KINDS):
    return Hardware(
        "toy",
        "made up",
        figure(2**30),
        figure(1e12),
        {"f32": figure(1e14)},
        Efficiency(figure(1.0), figure(1.0)),
        (
            Network("nvlink", "switch", 8, figure(450e9), figure(3e-6), collectives=kinds),
            Network(
                "infiniband",
                "switch",
                4096,
                figure(SLOW),
                figure(LATENCY),
                reached=figure(REACHED),
                rails=rails,
            ),
        ),
    )


def seconds(mesh, kind, axes, size=MIB, rails=True, kinds=KINDS):
    mesh = Mesh.of(mesh)
    numbers = tuple(mesh.axis(name) for name in axes.split("+"))
    return interconnect(mesh, device(rails, kinds)).collective_seconds(kind, numbers, size)


# -------------------------------------------------------------------------------- one switch

SENT = 7 / 8 * MIB / BANDWIDTH

ONE_NODE = [
    # Of 8 devices each sends 7/8 of the payload, and moves its own eighth in its memory.
    ("all_gather", START + 7 * STEP + SENT + MIB / 8 / OWN),
    ("reduce_scatter", 2 * START + SENT),
    # Twice the bytes; chunks cost the root of what sending takes.
    ("all_reduce", START + 2 * SENT + 2 * math.sqrt(CHUNK * 2 * SENT)),
    ("all_to_all", START + SENT),
]


@pytest.mark.parametrize(("kind", "expected"), ONE_NODE)
def test_a_kind_takes_what_the_file_states_of_it(kind, expected):
    assert seconds("x=8", kind, "x") == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "expected"), ONE_NODE)
def test_several_axes_on_a_switch_are_one_group(kind, expected):
    assert seconds("x=2,y=4", kind, "x+y") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mebibytes", "moving"),
    [
        (1, 1 * MIB / 100e9),  # up to 3 MiB by few channels
        (3, 3 * MIB / 100e9),
        (6, 3 * MIB / 100e9),  # all of them make up for it
        (12, 12 * MIB / 300e9),
    ],
)
def test_small_permutations_use_few_channels(mebibytes, moving):
    time = seconds("x=8", "collective_permute", "x", mebibytes * MIB)
    assert time == pytest.approx(START + moving)


def test_a_kind_of_which_nothing_is_stated_takes_latency_and_bandwidth():
    time = seconds("x=8", "all_gather", "x", kinds={})
    assert time == pytest.approx(7 / 8 * MIB / 450e9 + 7 * 3e-6)


# --------------------------------------------------------------------------- several nodes


def test_rails_sum_shards_while_the_switch_moves_the_next():
    """4 nodes of 8: scatter over NVLink, sum an eighth over a rail, gather over NVLink.

    All wait for all starts; the slower of both networks decides how long data move.
    """
    scatter, gather = SENT, SENT + MIB / 8 / OWN
    rail = 2 * 3 / 4 * MIB / 8 / (SLOW * REACHED)
    waiting = 2 * START + START + 7 * STEP + 2 * 3 * LATENCY
    assert rail > scatter + gather
    assert seconds("x=4,y=8", "all_reduce", "x+y") == pytest.approx(waiting + rail)
    assert seconds("x=32", "all_reduce", "x") == pytest.approx(waiting + rail)


def test_without_rails_one_ring_goes_through_all_devices():
    """31/32 of an eighth leave each of 8 ways out of a node, for 3/4 of it by rails."""
    ring = 31 / 32 * MIB / 8 / (SLOW * REACHED)
    waiting = START + 31 * STEP + 3 * LATENCY
    time = seconds("x=4,y=8", "all_gather", "x+y", rails=False)
    assert time == pytest.approx(waiting + ring)
    rail = 3 / 4 * MIB / 8 / (SLOW * REACHED)
    waiting = START + 7 * STEP + 3 * LATENCY
    assert seconds("x=4,y=8", "all_gather", "x+y") == pytest.approx(waiting + rail)


@pytest.mark.parametrize("rails", [True, False])
def test_what_the_switch_takes_longer_for_decides(rails):
    """A made-up NVLink slower than the rails of all devices together."""
    slow = {"all_gather": CollectiveTime(figure(START), figure(1e9))}
    devices = 8 if rails else 32
    time = seconds("x=4,y=8", "all_gather", "x+y", rails=rails, kinds=slow)
    assert time == pytest.approx(START + 3 * LATENCY + (devices - 1) / devices * MIB / 1e9)


def test_by_rails_shards_for_all_devices_go_over_both_networks():
    """With rails 3/4 of the payload leave the node, 7/8 first go to the right place in it."""
    out = 3 / 4 * MIB / (SLOW * REACHED)
    time = seconds("x=4,y=8", "all_to_all", "x+y")
    assert time == pytest.approx(START + 3 * LATENCY + out)
    slow = {"all_to_all": CollectiveTime(figure(START), figure(1e9))}
    inside = {
        rails: seconds("x=4,y=8", "all_to_all", "x+y", rails=rails, kinds=slow)
        for rails in (True, False)
    }
    assert inside[True] == pytest.approx(START + 3 * LATENCY + 7 / 8 * MIB / 1e9)
    # Straight to each: 7 of 32 shards are for devices of the own node.
    assert inside[False] == pytest.approx(START + 3 * LATENCY + 7 / 32 * MIB / 1e9)


def test_if_nothing_is_said_of_rails_one_network_works_after_the_other():
    rail = 3 * LATENCY + 3 / 4 * MIB / 8 / (SLOW * REACHED)
    switch = START + 7 * STEP + SENT + MIB / 8 / OWN
    assert seconds("x=4,y=8", "all_gather", "x+y", rails=None) == pytest.approx(switch + rail)


@pytest.mark.parametrize("rails", [True, False, None])
@pytest.mark.parametrize(("kind", "expected"), ONE_NODE)
def test_on_one_node_the_other_network_does_not_matter(rails, kind, expected):
    assert seconds("x=8", kind, "x", rails=rails) == pytest.approx(expected)
    assert seconds("x=1,y=8", kind, "x+y", rails=rails) == pytest.approx(expected)


def test_an_axis_between_nodes_has_a_way_out_for_each_device():
    """8 groups of 4 devices at once, each on its own rail."""
    expected = 3 * LATENCY + 3 / 4 * MIB / (SLOW * REACHED)
    assert seconds("x=4,y=8", "all_gather", "x") == pytest.approx(expected)


# ------------------------------------------------------------------------------ real figures


@pytest.mark.parametrize(
    ("kind", "collective", "devices", "mebibytes", "measured"),
    [
        # Rows that the fit does not use, from the tables beside tools/gpu/fit.py.
        ("h100", "all_gather", 8, 64, 213.6e-6),
        ("h100", "reduce_scatter", 8, 64, 218.6e-6),
        ("h100", "all_reduce", 8, 64, 379.8e-6),
        ("h100", "all_reduce", 2, 512, 2309e-6),
        ("h100", "all_to_all", 4, 512, 1272e-6),
        ("h100", "collective_permute", 8, 512, 1880e-6),
        ("b200", "all_gather", 8, 512, 825.4e-6),
        ("b200", "all_reduce", 4, 512, 1529e-6),
        ("gb200", "all_gather", 64, 512, 913.3e-6),
        ("gb200", "all_reduce", 64, 512, 1618e-6),
    ],
)
def test_what_was_measured(kind, collective, devices, mebibytes, measured):
    network = interconnect(Mesh(("x",), (devices,)), load(kind))
    time = network.collective_seconds(collective, (0,), mebibytes * MIB)
    assert time == pytest.approx(measured, rel=0.2)


def test_a_rack_joins_as_many_devices_as_there_are_up_to_72():
    def parts(mesh):
        axes = interconnect(Mesh.of(mesh), load("gb200")).parts
        return [" + ".join(f"{p.network.name} {p.size}" for p in axis) for axis in axes]

    assert parts("x=64") == ["nvlink 64"]
    assert parts("x=72") == ["nvlink 72"]
    assert parts("x=9,y=8") == ["nvlink 9", "nvlink 8"]
    # 128 devices are two racks of 64.
    assert parts("x=4,y=32") == ["nvlink 2 + infiniband 2", "nvlink 32"]


# ------------------------------------------------------------------------------------- files


def test_what_a_file_states_of_collectives_is_written_and_read():
    toy = device(True)
    assert decode(encode(toy), "toy", "the text") == toy
    assert "[networks.collectives.all_gather.start]" in encode(toy)
    assert "collectives" not in encode(device(True, {})).split("infiniband")[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("collectives.all_gather", "collectives.all_gathr", "unknown collective 'all_gathr'"),
        ('topology = "switch"', 'topology = "torus"', "only a switch has times of collectives"),
        ("value = 0.9", "value = 1.9", "reached is a fraction of the bandwidth, at most 1"),
        ("narrow_bytes", "narow_bytes", "unknown field `narow_bytes`"),
    ],
)
def test_invalid_figures(old, new, message):
    with pytest.raises(HardwareError, match=message):
        decode(encode(device(True)).replace(old, new), "toy", "the text")


def test_few_channels_have_a_bandwidth_and_a_size():
    time = KINDS["collective_permute"]
    with pytest.raises(ValueError, match="narrow and narrow_bytes must be stated together"):
        CollectiveTime(time.start, time.bandwidth, narrow=time.narrow)


def test_a_device_type_without_them_is_as_before():
    toy = msgspec.structs.replace(device(None, {}), networks=device(None, {}).networks[:1])
    time = interconnect(Mesh.of("x=8"), toy).collective_seconds("all_reduce", (0,), MIB)
    assert time == pytest.approx(2 * (7 / 8 * MIB / 450e9 + 7 * 3e-6))
