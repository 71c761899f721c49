"""Axes on the sides of a torus: who has links of its own, who shares them, and what that costs."""

from __future__ import annotations

import math

import pytest

from partita.cost import interconnect, load
from partita.cost.network.torus import equal_sides, lay
from partita.mesh import Mesh
from partita.planning.meshes import networks_of
from partita.planning.shapes import Used, candidates

V5E, V5P = load("tpu_v5e"), load("tpu_v5p")


def placed(mesh, hardware=V5E):
    """Of every axis its parts, as link, size, stride, and whether it closes to a ring."""
    return [
        [(part.link, part.size, part.stride, part.wraps) for part in axis]
        for axis in interconnect(Mesh.of(mesh), hardware).parts
    ]


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        # As many axes as sides: each has its own.
        ("x=4,y=8", [[(0, 4, 1, False)], [(1, 8, 1, False)]]),
        ("x=16,y=16", [[(0, 16, 1, True)], [(1, 16, 1, True)]]),
        # The longest has a side of its own; the others share one, the last of them innermost.
        ("x=2,y=2,z=8", [[(0, 2, 2, False)], [(0, 2, 1, False)], [(1, 8, 1, False)]]),
        ("x=8,y=2,z=2", [[(0, 8, 1, False)], [(1, 2, 2, False)], [(1, 2, 1, False)]]),
        ("x=4,y=4,z=2", [[(0, 4, 1, False)], [(1, 4, 2, False)], [(1, 2, 1, False)]]),
        # Of a side that closes to a ring, the outer axis goes around, the inner one does not.
        ("x=16,y=4,z=4", [[(0, 16, 1, True)], [(1, 4, 4, True)], [(1, 4, 1, False)]]),
        # Longer than any side.
        ("x=32", [[(0, 8, 1, False), (1, 4, 1, False)]]),
        ("x=8,y=32", [[(0, 8, 2, True)], [(1, 16, 1, True), (0, 2, 1, False)]]),
    ],
)
def test_axes_of_a_torus_of_two_sides(mesh, expected):
    assert placed(mesh) == expected


def test_a_torus_of_three_sides_has_links_for_three_axes():
    links = [axis[0][0] for axis in placed("x=4,y=4,z=2", V5P)]
    assert links == [0, 1, 2]
    assert placed("x=2,y=4,z=4,w=2", V5P)[0] == [(0, 2, 2, True)]  # 4 x 4 x 4, one of them shared


@pytest.mark.parametrize("sizes", [(3, 4, 2), (5, 7, 3), (6, 6, 6), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize(("sides", "longest"), [(2, 16), (2, None), (3, 4), (1, None)])
def test_every_device_has_one_place(sizes, sides, longest):
    """Along every side the strides are those of a mixed radix."""
    laid = lay(dict(enumerate(sizes)), sides, longest)
    assert [math.prod(a.size for a in parts) for parts in laid.values()] == list(sizes)
    for side in {a.side for parts in laid.values() for a in parts}:
        along = sorted(
            (a.stride, a.size) for parts in laid.values() for a in parts if a.side == side
        )
        stride = 1
        for each, size in along:
            assert each == stride
            stride *= size


def test_sides_are_as_equal_as_they_can_be():
    assert [equal_sides(n, 2, 16) for n in (8, 32, 64, 128, 256)] == [
        (4, 2),
        (8, 4),
        (8, 8),
        (16, 8),
        (16, 16),
    ]
    assert equal_sides(64, 3) == (4, 4, 4)


# ------------------------------------------------------------------------------- what that costs


def seconds(mesh, axes, kind="all_gather", size=2**26):
    mesh = Mesh.of(mesh)
    axes = tuple(map(mesh.axis, axes))
    return interconnect(mesh, V5E).collective_seconds(kind, axes, size)


def test_lines_that_share_links_have_a_part_of_them_each():
    inner, outer = seconds("x=4,y=4,z=16", "y"), seconds("x=4,y=4,z=16", "x")
    assert outer == pytest.approx(2 * inner, rel=0.01)  # a fourth of the links, but a ring


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "all_reduce"])
def test_two_axes_that_share_a_side_are_together_what_one_is(kind):
    together = seconds("x=4,y=4,z=16", "xy", kind)
    assert together == pytest.approx(seconds("x=16,y=16", "x", kind))


def test_axes_on_different_sides_work_at_the_same_time():
    assert seconds("x=4,y=2,z=8", "yz") < seconds("x=4,y=2,z=8", "z")


# --------------------------------------------------------------------------------- which meshes


def test_meshes_whose_axes_share_other_sides_are_different_ones():
    shapes = [mesh.sizes for mesh in candidates(32, V5E, [64], Used())]
    assert {(8, 4), (8, 2, 2), (4, 4, 2), (4, 2, 4)} <= set(shapes)
    assert len([shape for shape in shapes if sorted(shape) == [2, 2, 8]]) == 1


def test_it_is_said_how_far_apart_devices_are():
    lies = networks_of(Mesh.of("x=2,y=2,z=8"), V5E)
    assert lies == {"x": "ici (2 apart)", "y": "ici", "z": "ici"}
