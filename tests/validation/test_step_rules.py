"""Transfer rules of resharding steps: which values a step may be taken of."""

from __future__ import annotations

import pytest

from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.spmd import Step, steps
from partita.validation.state import Mismatch, State
from partita.validation.steps import after

MESH, TYPE = Mesh.of("x=4,y=2"), TensorType((16, 16), "f32")
X, Y, NEITHER = (0,), (1,), ()


def taken(kind, axes, dim, state, split=-1, **fields):
    """What devices hold after a step; local types do not matter here."""
    return after(state, Step(kind, axes, dim, split, TYPE, TYPE, **fields), TYPE, MESH)


WHOLE = State((NEITHER, NEITHER))
PART = State((NEITHER, NEITHER), {0: "add"})
DIFFERENT = State((NEITHER, NEITHER), varying=frozenset({0}))
COLUMNS = State((NEITHER, X))
NOT_ALIKE = "devices along the axes of the step do not hold the same"


@pytest.mark.parametrize("state", [PART, DIFFERENT, COLUMNS], ids=["part", "different", "shard"])
@pytest.mark.parametrize("kind", ["slice", "mask"])
def test_only_what_all_devices_hold_alike_is_sliced_and_masked(kind, state):
    taken(kind, X, 0, WHOLE)
    with pytest.raises(Mismatch, match=NOT_ALIKE):
        taken(kind, X, 0, state)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_shards_are_put_together_along_minor_axes(kind):
    both = State(((*X, *Y), NEITHER))
    assert taken(kind, Y, 0, both, split=1).layout[0] == X
    assert taken(kind, (*X, *Y), 0, both, split=1).layout[0] == NEITHER
    for axes in (X, (*Y, *X), NEITHER):
        with pytest.raises(Mismatch, match="axes that are not its minor ones"):
            taken(kind, axes, 0, both, split=1)


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("state", [WHOLE, State(WHOLE.layout, {0: "max"})], ids=["whole", "max"])
def test_only_parts_of_a_sum_are_added_up(kind, state):
    assert not taken(kind, X, 0, PART).unreduced
    with pytest.raises(Mismatch, match="it is reduced by add, its parts by"):
        taken(kind, X, 0, state)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (lambda a, b: (a, (b + 1) % 8), "another shard than it is to hold"),
        (lambda a, b: (a, 0), "a device gets no shard, or two"),
    ],
    ids=["next", "one"],
)
def test_a_permutation_sends_each_device_its_shard(monkeypatch, sent, message):
    layouts, right = ((X, Y), (Y, X)), steps.permutation
    square = Mesh.of("x=2,y=2,z=2")
    state = State(layouts[0])

    def permuted():
        step = Step("collective_permute", (0, 1), -1, -1, TYPE, TYPE, layouts=layouts)
        return after(state, step, TYPE, square)

    assert permuted().layout == layouts[1]
    monkeypatch.setattr(steps, "permutation", lambda *of: [sent(*pair) for pair in right(*of)])
    with pytest.raises(Mismatch, match=message):
        permuted()
