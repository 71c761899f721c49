"""Meshes: every form a user may have one in, and the order of devices along axes."""

from __future__ import annotations

import itertools
import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from partita.errors import AxisError, MeshError, PartitaError
from partita.mesh import Mesh

DATA_MODEL = Mesh(("data", "model"), (4, 2))


def jax_mesh(**axes):
    devices = np.array(jax.devices()).reshape(*axes.values())
    return jax.sharding.Mesh(devices, tuple(axes))


# ------------------------------------------------------------------------------ input forms


@pytest.mark.parametrize(
    "form",
    [
        {"data": 4, "model": 2},
        "data=4,model=2",
        " data = 4 ,  model=2 ",
        jax_mesh(data=4, model=2),
        jax.sharding.AbstractMesh((4, 2), ("data", "model")),
        DATA_MODEL,
    ],
    ids=["dict", "string", "spaces", "jax", "abstract", "mesh"],
)
def test_forms(form):
    assert Mesh.of(form) == DATA_MODEL


@pytest.mark.parametrize("text", ["data=8", "data=8,model=4", "a=2,b=1,c_2=3"])
def test_str_is_read_back(text):
    assert str(Mesh.of(text)) == text


def test_order_of_axes_is_kept():
    assert Mesh.of({"z": 2, "a": 3}).names == ("z", "a")


def test_an_axis_of_one_device_is_a_mesh():
    assert Mesh.of("data=1").devices == 1


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("", "cannot read ''"),
        ("data", "cannot read 'data' in mesh \"data\"; expected axis=size"),
        ("data=8,", "cannot read ''"),
        ("data=8;model=4", "expected axis=size or axis=size@network, as in"),
        ("data=-1", "expected axis=size"),
        ("data=x", "expected axis=size"),
        ("8=data", "expected axis=size"),
        ("data=0", "axis 'data' has size 0; expected an integer >= 1"),
        ("data=2,data=4", "mesh data=2,data=4 names an axis twice"),
        ({}, "at least one axis, for example"),
        ({"data": 0}, "axis 'data' has size 0"),
        ({"data": -2}, "axis 'data' has size -2"),
        ({"data": 2.0}, "axis 'data' has size 2.0"),
        ({"data": True}, "axis 'data' has size True"),
        ({"data": "8"}, "axis 'data' has size '8'"),
        (8, "cannot read a mesh from int; expected a dict, a string"),
        (None, "cannot read a mesh from NoneType"),
        ([("data", 8)], "cannot read a mesh from list"),
        (np.ones((2, 4)), "cannot read a mesh from ndarray"),
    ],
)
def test_unreadable(form, message):
    with pytest.raises(MeshError, match=message):
        Mesh.of(form)


@pytest.mark.parametrize(
    ("names", "sizes", "message"),
    [
        (("a", "a"), (2, 2), "mesh a=2,a=2 names an axis twice"),
        (("a",), (2, 2), "a mesh of axes a has 2 sizes; expected 1"),
        (("a", "b"), (2,), "a mesh of axes a, b has 1 sizes; expected 2"),
        ((), (), "at least one axis"),
        (("a", ""), (2, 2), "a mesh has an axis ''; expected a name"),
        ((1,), (2,), "a mesh has an axis 1; expected a name"),
        (("a",), (0,), "mesh axis 'a' has size 0; expected an integer >= 1"),
        (("a",), (-2,), "mesh axis 'a' has size -2"),
        (("a",), (2.0,), "mesh axis 'a' has size 2.0"),
        (("a",), (True,), "mesh axis 'a' has size True"),
    ],
)
def test_no_mesh_is_made_of_other_axes_or_sizes(names, sizes, message):
    with pytest.raises(MeshError, match=re.escape(message)):
        Mesh(names, sizes)


def test_unknown_axis_suggests_a_known_one():
    with pytest.raises(AxisError) as error:
        DATA_MODEL.axis("modle")
    assert str(error.value) == (
        "mesh data=4,model=2 has no axis 'modle'; did you mean 'model'? (axes: data, model)"
    )


@pytest.mark.parametrize("kind", [MeshError, AxisError])
def test_errors_are_value_errors_of_partita(kind):
    assert issubclass(kind, PartitaError) and issubclass(kind, ValueError)


# ------------------------------------------------------------------------------- properties


def test_names_and_sizes():
    assert DATA_MODEL.devices == 8
    assert list(DATA_MODEL) == [("data", 4), ("model", 2)]
    assert [DATA_MODEL.axis(name) for name in ("data", "model")] == [0, 1]
    assert DATA_MODEL.axis_names((1, 0)) == ("model", "data")
    assert [DATA_MODEL.size(axes) for axes in [(), (0,), (1,), (1, 0)]] == [1, 4, 2, 8]


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ((0,), [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ((1,), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ((0, 1), [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ((1, 0), [[0, 2, 4, 6, 1, 3, 5, 7]]),
    ],
)
def test_groups(axes, groups):
    assert DATA_MODEL.groups(axes) == groups


CUBE = ("a", "b", "c")


@pytest.mark.parametrize(
    "names",
    [p for count in (1, 2, 3) for p in itertools.permutations(CUBE, count)],
    ids="".join,
)
def test_groups_are_in_the_order_in_which_jax_splits_an_array(names):
    grid = jax_mesh(a=2, b=2, c=2)
    mesh = Mesh.of(grid)
    groups = mesh.groups(tuple(mesh.axis(name) for name in names))
    assert sorted(d for group in groups for d in group) == list(range(8))

    size = 2 ** len(names)
    sharding = NamedSharding(grid, PartitionSpec(names))
    ids = {device: number for number, device in enumerate(grid.devices.flat)}
    held = {
        ids[device]: piece.indices(size)[0]
        for device, (piece,) in sharding.devices_indices_map((size,)).items()
    }
    for group in groups:
        assert [held[device] for device in group] == list(range(size))


def test_an_axis_may_be_laid_on_networks():
    mesh = Mesh.of("data=16@dcn, model = 8 @ ici + dcn")
    assert mesh.networks == (("dcn",), ("ici", "dcn"))
    assert str(mesh) == "data=16@dcn,model=8@ici+dcn"
    assert mesh == Mesh.of({"data": 16, "model": 8})
    assert Mesh.of({"data": 16}).networks == ((),)
