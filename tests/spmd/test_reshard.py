"""Resharding: the steps between two layouts, checked by running them on every device."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from partita.mesh import Mesh
from partita.program import TensorType
from partita.program.rule import Reach
from partita.spmd import COLLECTIVES, reshard
from partita.spmd.steps import permutation
from partita.tiling import local_type

NONE = frozenset()

# ------------------------------------------------------------------- the table, row by row

XY = Mesh.of("x=2,y=4")
X, Y = 0, 1


def show(steps, mesh):
    """Steps as text: `all_gather x 0` gathers dimension 0 along axis x."""
    return [
        " ".join(
            [
                step.kind,
                "+".join(mesh.axis_names(step.axes)),
                *(str(d) for d in (step.dim, step.split) if d >= 0),
            ]
        )
        for step in steps
    ]


ALONG = ["all_to_all x+y 0 1", "all_gather y 1"]
SCATTERED_ALONG = ["reduce_scatter y 0", "all_to_all x+y 0 1"]
UNWANTED_FIRST = ["all_gather y 1", "all_to_all x 0 1"]

ROWS = [
    # what, have, partial over, want, steps
    ("nothing to do", ((X,), ()), [], ((X,), ()), []),
    ("sharded -> replicated", ((X,), ()), [], ((), ()), ["all_gather x 0"]),
    ("partial -> replicated", ((), ()), [X], ((), ()), ["all_reduce x"]),
    ("partial -> sharded", ((), ()), [X], ((), (X,)), ["reduce_scatter x 1"]),
    ("dimension i -> j", ((X,), ()), [], ((), (X,)), ["all_to_all x 0 1"]),
    ("replicated -> sharded", ((), ()), [], ((X,), ()), ["slice x 0"]),
    # several axes
    ("both axes of a dimension", ((X, Y), ()), [], ((), ()), ["all_gather x+y 0"]),
    ("the minor axis only", ((X, Y), ()), [], ((X,), ()), ["all_gather y 0"]),
    ("one after the other", ((X,), (Y,)), [], ((), ()), ["all_gather x 0", "all_gather y 1"]),
    ("one sum over two axes", ((), ()), [X, Y], ((), ()), ["all_reduce x+y"]),
    ("one scatter over two axes", ((), ()), [X, Y], ((X, Y), ()), ["reduce_scatter x+y 0"]),
    (
        "scatter to two dimensions",
        ((), ()),
        [X, Y],
        ((Y,), (X,)),
        ["reduce_scatter y 0", "reduce_scatter x 1"],
    ),
    (
        "scatter first, then sum less",
        ((), ()),
        [X, Y],
        ((X,), ()),
        ["reduce_scatter x 0", "all_reduce y"],
    ),
    ("sum a shard", ((Y,), ()), [X], ((Y,), ()), ["all_reduce x"]),
    ("scatter under a shard", ((Y,), ()), [X], ((Y, X), ()), ["reduce_scatter x 0"]),
    ("slice before gathering", ((X,), ()), [], ((), (Y,)), ["slice y 1", "all_gather x 0"]),
    (
        "slice before exchanging",
        ((X,), (), ()),
        [],
        ((), (X,), (Y,)),
        ["slice y 2", "all_to_all x 0 1"],
    ),
    (
        "scatter before gathering",
        ((Y,), ()),
        [X],
        ((), (X,)),
        ["reduce_scatter x 1", "all_gather y 0"],
    ),
    ("change of axis", ((X,), ()), [], ((Y,), ()), ["all_gather x 0", "slice y 0"]),
    ("change of order", ((X, Y), ()), [], ((Y, X), ()), ["collective_permute x+y"]),
    # fused: never more gathered or reduced than is needed
    ("gather and slice of one axis", ((X,), ()), [], ((X,), ()), []),
    ("two axes go to one dimension", ((X, Y), ()), [], ((), (X, Y)), ["all_to_all x+y 0 1"]),
    (
        "two axes from two dimensions",
        ((Y,), (), (X,)),
        [],
        ((), (X, Y), ()),
        ["all_to_all x 2 1", "all_to_all y 0 1"],
    ),
    ("what is gathered comes along", ((X, Y), ()), [], ((), (X,)), ALONG),
    (
        "what is sliced goes along",
        ((X,), ()),
        [],
        ((), (X, Y)),
        ["slice y 0", "all_to_all x+y 0 1"],
    ),
    ("what is added up goes along", ((X,), ()), [Y], ((), (X, Y)), SCATTERED_ALONG),
    ("slice before a scatter", ((), ()), [X], ((Y, X), ()), ["slice y 0", "reduce_scatter x 0"]),
    (
        "slice elsewhere before a scatter",
        ((), ()),
        [X],
        ((X,), (Y,)),
        ["slice y 1", "reduce_scatter x 0"],
    ),
    (
        "exchange before a scatter",
        ((Y,), ()),
        [X],
        ((), (Y, X)),
        ["reduce_scatter x 0", "all_to_all y+x 0 1"],
    ),
    ("sum before gathering", ((Y,), ()), [X], ((), ()), ["all_reduce x", "all_gather y 0"]),
    ("gather what is not wanted first", ((X,), (Y,)), [], ((), (X,)), UNWANTED_FIRST),
]

SQUARE = Mesh.of("x=2,y=2")
SQUARE_ROWS = [
    ("axes of one size change places", ((X,), (Y,)), [], ((Y,), (X,)), ["collective_permute x+y"]),
    ("to another axis of that size", ((X,), ()), [], ((Y,), ()), ["collective_permute x+y"]),
    ("sum on the way", ((X,), ()), [Y], ((X,), ()), ["all_reduce y"]),
]


@pytest.mark.parametrize(
    ("mesh", "have", "partial", "want", "expected"),
    [
        pytest.param(mesh, *row, id=name)
        for mesh, rows in ((XY, ROWS), (SQUARE, SQUARE_ROWS))
        for name, *row in rows
    ],
)
def test_steps(mesh, have, partial, want, expected):
    type_ = TensorType((8, 16, 8)[: len(have)], "f32")  # of 512 bytes, or 4096
    steps = reshard(type_, have, frozenset(partial), want, mesh, latency_bytes=128)
    assert show(steps, mesh) == expected


@pytest.mark.parametrize(
    ("have", "partial", "want", "payload"),
    [
        (((X,), ()), [], ((), ()), 8 * 16 * 4),  # what comes out
        (((), ()), [X], ((), ()), 8 * 16 * 4),
        (((), ()), [X], ((X,), ()), 8 * 16 * 4),  # what goes in
        (((X,), (Y,)), [], ((X,), ()), 8 * 16 * 4 // 2),
        (((X,), ()), [], ((), (X,)), 8 * 16 * 4 // 2),
    ],
)
def test_payload_is_the_larger_side_of_one_device(have, partial, want, payload):
    (step,) = reshard(TensorType((8, 16), "f32"), have, frozenset(partial), want, XY)
    assert step.is_collective and step.kind in COLLECTIVES
    assert step.bytes == payload


def test_slices_are_no_collectives():
    (step,) = reshard(TensorType((8,), "f32"), ((),), NONE, ((X,),), XY)
    assert not step.is_collective


@pytest.mark.parametrize("combine", ["add", "max"])
def test_how_parts_combine_is_passed_to_the_step(combine):
    (step,) = reshard(TensorType((8,), "f32"), ((),), frozenset([X]), ((),), XY, combine)
    assert step.combine == combine


def test_local_type_divides_by_all_axes():
    type_ = local_type(TensorType((16, 6, 5), "bf16"), ((X, Y), (X,), ()), XY)
    assert str(type_) == "bf16[2,3,5]"


# ------------------------------------------------------- all devices, simulated with numpy


class Devices:
    """The pieces of one value on every device, and the collectives on them."""

    COMBINE = {"add": np.add, "max": np.maximum}  # noqa: RUF012

    def __init__(self, mesh):
        self.mesh = mesh
        self.places = list(itertools.product(*map(range, mesh.sizes)))
        self.pieces = {}

    def index(self, place, axes):
        """Number of a device among those that differ along these axes, major first."""
        number = 0
        for axis in axes:
            number = number * self.mesh.sizes[axis] + place[axis]
        return number

    def piece(self, whole, layout, place):
        """What a device holds of a whole value in a layout."""
        for dim, axes in enumerate(layout):
            parts = math.prod(self.mesh.sizes[axis] for axis in axes)
            whole = np.split(whole, parts, axis=dim)[self.index(place, axes)]
        return whole

    def hold(self, parts, layout, partial):
        """Starts from one whole addend for every place along the axes `partial`."""
        for place in self.places:
            self.pieces[place] = self.piece(parts[self.index(place, partial)], layout, place)

    def run(self, step):
        assert all(p.shape == step.before.shape for p in self.pieces.values())
        self.pieces = {place: self.after(step, place) for place in self.places}
        assert all(p.shape == step.after.shape for p in self.pieces.values())

    def after(self, step, place):
        """What a device holds after a step."""
        rest = [axis for axis in range(len(self.mesh.sizes)) if axis not in step.axes]
        peers = [p for p in self.places if all(p[axis] == place[axis] for axis in rest)]
        peers.sort(key=lambda p: self.index(p, step.axes))
        mine, count = self.index(place, step.axes), len(peers)
        received = [self.pieces[p] for p in peers]
        match step.kind:
            case "slice":
                return np.split(self.pieces[place], count, axis=step.dim)[mine]
            case "all_gather":
                return np.concatenate(received, axis=step.dim)
            case "all_reduce":
                return self.COMBINE[step.combine].reduce(received)
            case "reduce_scatter":
                total = self.COMBINE[step.combine].reduce(received)
                return np.split(total, count, axis=step.dim)[mine]
            case "all_to_all":
                sent = [np.split(piece, count, axis=step.split)[mine] for piece in received]
                return np.concatenate(sent, axis=step.dim)
            case "collective_permute":
                me = self.places.index(place)
                pairs = permutation(self.mesh, *step.layouts)
                assert [b for _, b in sorted(pairs, key=lambda p: p[1])] == [*range(len(pairs))]
                (sender,) = (a for a, b in pairs if b == me)
                return self.pieces[self.places[sender]]


@st.composite
def layouts(draw, rank, axes):
    """Some of the axes, in some order, given to dimensions."""
    layout = [()] * rank
    for axis in draw(st.permutations(axes)):
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            layout[dim] += (axis,)
    return tuple(layout)


@st.composite
def problems(draw):
    """A mesh, a shape, and two layouts, the first maybe partial over axes that it does not use."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    mesh = Mesh(tuple("xyz"[: len(sizes)]), tuple(sizes))
    rank = draw(st.integers(1, 3))
    axes = list(range(len(sizes)))
    have = draw(layouts(rank, axes))
    free = [axis for axis in axes if axis not in itertools.chain(*have)]
    partial = tuple(axis for axis in free if draw(st.booleans()))
    want = draw(layouts(rank, axes))
    shape = tuple(
        math.lcm(mesh.size(a), mesh.size(b)) * draw(st.integers(1, 2))
        for a, b in zip(have, want, strict=True)
    )
    return mesh, shape, have, partial, want


SENT_ON = Mesh(("x", "y", "z"), (3, 2, 3)), (3,), ((2,),), (1,), ((0,),)
"""Parts of a sum along `y` are sent on along `x` and `z`, each to where the others of it come."""


@settings(deadline=None, max_examples=300)
@given(problems(), st.sampled_from(["add", "max"]), st.integers(0, 2**32 - 1))
@example(SENT_ON, "add", 0)
def test_every_device_ends_with_its_piece_of_the_wanted_layout(problem, combine, seed):
    mesh, shape, have, partial, want = problem
    rng = np.random.default_rng(seed)
    parts = rng.integers(-1000, 1000, (mesh.size(partial), *shape))
    whole = Devices.COMBINE[combine].reduce(parts)

    steps = reshard(TensorType(shape, "i64"), have, frozenset(partial), want, mesh, combine)
    devices = Devices(mesh)
    devices.hold(parts, have, partial)
    for step in steps:
        event(step.kind)
        devices.run(step)
    for place in devices.places:
        np.testing.assert_array_equal(devices.pieces[place], devices.piece(whole, want, place))


@settings(deadline=None, max_examples=200)
@given(problems())
def test_steps_only_where_something_changes_and_each_partial_axis_is_reduced_once(problem):
    mesh, shape, have, partial, want = problem
    steps = reshard(TensorType(shape, "f32"), have, frozenset(partial), want, mesh)
    # Along an axis of one device there is nothing to do.
    partial = {a for a in partial if mesh.sizes[a] > 1}
    have, want = (
        tuple(tuple(a for a in axes if mesh.sizes[a] > 1) for axes in layout)
        for layout in (have, want)
    )
    assert bool(steps) == (have != want or bool(partial))
    reducing = [s for s in steps if s.kind in ("all_reduce", "reduce_scatter")]
    assert sorted(a for s in reducing for a in s.axes) == sorted(partial)
    for earlier, later in itertools.pairwise(steps):
        assert earlier.after == later.before


@settings(deadline=None, max_examples=200)
@given(problems())
def test_adding_axes_to_a_layout_costs_no_traffic(problem):
    mesh, shape, _, _, want = problem
    have = ((),) * len(shape)
    steps = reshard(TensorType(shape, "f32"), have, NONE, want, mesh)
    assert {s.kind for s in steps} <= {"slice"}


@pytest.mark.parametrize("kind", [*list(COLLECTIVES)[:-1], "slice"])
def test_the_simulated_devices_notice_a_missing_step(kind):
    """The property above would fail without the step: it is not vacuous."""
    mesh = Mesh.of("x=2,y=2")
    have, partial, want = {
        "all_gather": (((X,), ()), (), ((), ())),
        "all_reduce": (((), ()), (X,), ((), ())),
        "reduce_scatter": (((), ()), (X,), ((X,), ())),
        "all_to_all": (((X,), ()), (), ((), (X,))),
        "slice": (((), ()), (), ((X,), ())),
    }[kind]
    (step,) = reshard(TensorType((4, 4), "f32"), have, frozenset(partial), want, mesh)
    assert step.kind == kind
    devices = Devices(mesh)
    parts = np.arange(mesh.size(partial) * 16).reshape(-1, 4, 4)
    devices.hold(parts, have, partial)
    wanted = {p: devices.piece(parts.sum(0), want, p) for p in devices.places}
    assert not all(np.array_equal(devices.pieces[p], wanted[p]) for p in wanted)
    devices.run(step)
    assert all(np.array_equal(devices.pieces[p], wanted[p]) for p in wanted)


# ----------------------------------------------------------------------- halos


def test_a_halo_comes_from_both_neighbours_end_by_end():
    mesh = Mesh.of("x=2,y=4")
    layout = ((X,), (Y,))
    halo = (Reach.halo(8, 1, 1), Reach.halo(16, 0, 2))
    steps = reshard(TensorType((8, 16), "f32"), layout, NONE, layout, mesh, halo=halo)
    assert show(steps, mesh) == [
        "collective_permute x 0",
        "collective_permute y 1",
    ]
    assert [step.after.shape for step in steps] == [(6, 4), (6, 6)]
    assert [(step.send.starts, step.send.pairs) for step in steps] == [
        ((3, 0), ((0, 1), (1, 0))),  # of two devices each sends the row that is next to the other
        ((0,) * 4, ((1, 0), (2, 1), (3, 2))),  # two columns, of all six rows
    ]
    assert [step.bytes for step in steps] == [4 * 4, 6 * 2 * 4]


def test_along_an_axis_of_one_device_a_halo_is_nothing_but_padding():
    layout = ((X,),)
    mesh, halo = Mesh.of("x=1"), (Reach.halo(8, 1, 0),)
    (step,) = reshard(TensorType((8,), "f32"), layout, NONE, layout, mesh, halo=halo)
    assert not step.is_collective
    assert step.after.shape == (9,)


def test_of_ways_that_send_as_much_what_is_wanted_nowhere_is_gathered_first():
    """Before what is in the way of others. Exchanging z first would take a permutation as well."""
    mesh, type_ = Mesh.of("x=2,y=2,z=2"), TensorType((24, 24, 6), "f32")
    steps = reshard(type_, ((2,), (0, 1), ()), frozenset(), ((), (2,), (1,)), mesh)
    assert [(step.kind, step.axes) for step in steps] == [
        ("all_to_all", (1,)),
        ("all_gather", (0,)),
        ("all_to_all", (2,)),
    ]
