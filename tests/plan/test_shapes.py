"""The meshes of a number of devices: their shapes, which are alike, and which are worth a plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array
from partita.cost import load
from partita.planning.shapes import MOST_MESHES, Used, candidates, check_devices

V5E, V5P, H100 = load("tpu_v5e"), load("tpu_v5p"), load("h100")
ANY = Used()


def shapes(devices, hardware=V5E, sizes=(4096,), used=ANY, told=False):
    return [mesh.sizes for mesh in candidates(devices, hardware, sizes, used, told)]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [(1,)]),
        (2, [(2,)]),
        (4, [(4,), (2, 2)]),
        (8, [(8,), (4, 2), (2, 2, 2)]),
        (64, [(64,), (32, 2), (16, 4), (8, 8), (16, 2, 2), (8, 4, 2), (4, 4, 4)]),
    ],
)
def test_a_shape_has_one_to_three_axes_and_on_one_network_its_order_says_nothing(devices, expected):
    assert shapes(devices, V5P) == expected


def test_on_a_torus_of_fewer_sides_than_axes_the_order_says_which_share_a_side():
    assert [sizes for sizes in shapes(64) if sizes not in shapes(64, V5P)] == [
        (2, 32),
        (8, 2, 4),
        (2, 16, 2),
        (2, 2, 16),
    ]


def test_axes_are_called_x_y_and_z():
    assert [str(mesh) for mesh in candidates(8, V5E, [64], ANY)] == [
        "x=8",
        "x=4,y=2",
        "x=2,y=2,z=2",
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([12, 4], [(12,), (6, 2), (4, 3), (3, 2, 2)]),
        ([64], [(4, 3), (3, 2, 2)]),  # an axis of 3 is idle, whatever the others are
        ([5], [(12,), (6, 2), (4, 3), (3, 2, 2)]),  # all are idle: none is better than another
    ],
)
def test_shapes_are_left_out_that_leave_more_devices_idle_than_others(sizes, expected):
    assert shapes(12, sizes=sizes) == expected


def test_between_nodes_the_order_of_axes_is_their_placement():
    """On two nodes of 8, the last axes lie on NVLink, what is left of them between the nodes."""
    assert shapes(16, H100) == [(16,), (8, 2), (4, 4), (2, 8), (4, 2, 2), (2, 4, 2)]


def test_inside_of_a_node_it_is_none():
    assert shapes(8, H100) == [(8,), (4, 2), (2, 2, 2)]


@pytest.mark.parametrize(
    ("hardware", "mesh", "turned", "alike"),
    [
        ("tpu_v5e", "x=4,y=2", "y=2,x=4", True),
        ("tpu_v5p", "x=16,y=4,z=2", "z=2,y=4,x=16", True),
        ("h100", "x=4,y=2", "y=2,x=4", True),
        ("h100", "z=2,x=4,y=2", "z=2,y=2,x=4", True),  # z lies between the nodes in both
        ("h100", "x=8,y=2", "y=2,x=8", False),
    ],
)
def test_meshes_that_are_taken_to_be_alike_cost_the_same(hardware, mesh, turned, alike):
    tactics = [pt.ManualPartition({"x": 0}, axis="x"), pt.ManualPartition({"w": 1}, axis="y")]
    x, w = array(512, 512), array(512, 512)

    def layer(x, w):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w.T)))(w)

    one, other = (
        pt.plan(layer, x, w, hardware=hardware, mesh=each, tactics=tactics).estimate
        for each in (mesh, turned)
    )
    assert (one.step_time == pytest.approx(other.step_time)) is alike
    assert one.peak_memory == other.peak_memory


# ----------------------------------------------------------------------- axes that have names

X, Y = pt.DataParallel("x"), pt.Megatron("y")


@pytest.mark.parametrize(
    ("tactics", "expected"),
    [
        ([X], [(8,)]),
        ([X, Y], [(8, 1), (4, 2), (2, 4), (1, 8)]),
        ([X, pt.AutomaticPartition("y")], [(8, 1), (4, 2), (2, 4), (1, 8)]),
        (
            [X, pt.AutomaticPartition()],
            [(8,), (4, 2), (2, 4), (1, 8), (4, 2), (2, 2, 2), (1, 4, 2)],
        ),
    ],
    ids=["one", "two", "two, one searched", "one, and a search over all"],
)
def test_axes_that_tactics_name_are_there_and_told_apart(tactics, expected):
    found = shapes(8, used=Used.by(tactics))
    assert sorted(found) == sorted(dict.fromkeys(expected))


def test_a_shape_is_tried_in_every_order_if_the_program_names_axes():
    assert shapes(8, told=True) == [(8,), (4, 2), (2, 4), (2, 2, 2)]


def test_tactics_name_axes_that_such_meshes_have():
    with pytest.raises(
        pt.AxisError,
        match=r"DataParallel\(.*\) is for the axis 'data', but the meshes that devices= tries have "
        r"the axes x, y, z; name these, or give mesh=",
    ):
        Used.by([pt.DataParallel()])


# ------------------------------------------------------------------------ numbers of devices


def test_the_number_of_meshes_has_a_limit():
    assert len(shapes(5040, sizes=[5040])) == MOST_MESHES


def test_those_with_axes_that_divide_more_are_kept(monkeypatch):
    monkeypatch.setattr("partita.planning.shapes.MOST_MESHES", 2)
    assert shapes(16, sizes=[16, 4, 4, 4]) == [(4, 4), (4, 2, 2)]


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        (0, pt.OptionError, "devices=0: expected an integer of at least 1"),
        (2**21, pt.MeshError, "devices=2097152: a mesh has at most 1,048,576; give fewer"),
        (10**5, pt.MeshError, "devices=100000: 'dcn', the widest network of tpu_v5e, joins up to"),
    ],
)
def test_numbers_that_no_mesh_has(devices, error, message):
    with pytest.raises(error, match=message):
        check_devices(devices, V5E)


def test_a_number_of_numpy_is_one():
    assert check_devices(np.int64(8), V5E) == 8
