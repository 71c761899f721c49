"""Copies of layers of stacks: which there are, and what they take."""

from __future__ import annotations

import jax
import msgspec
import pytest
from jax import lax

import partita as pt
from decoding import WAYS, decoder
from partita.cost import load
from partita.cost.compute.copies import Copying
from partita.cost.kernels.layers import Copied, Filled, Laid, Used
from partita.cost.kernels.timing import Timing
from partita.program.ir import TensorType

V5E = load("tpu_v5e")
LAYER = 128 * 2048 * 8 * 128
"""Elements of the cache of a layer."""
COPY = 2 * 4 * LAYER / (V5E.memory_bandwidth.value * V5E.efficiency.memory.value)
"""Seconds of a copy of it: bfloat16 takes as long as float32."""


def planned(way, hardware=V5E, donated=(1,), **how):
    fn, arguments = decoder(way, **how)
    return pt.plan(fn, *arguments, mesh="x=1", hardware=hardware, donate_argnums=donated)


def copies(way, **how):
    """How often a layer is copied, for every layer, beyond what is read and written anyway."""
    without = msgspec.structs.replace(V5E, vector_unit=None)
    more = planned(way, **how).estimate.compute_time
    less = planned(way, without, **how).estimate.compute_time
    return (more - less) / (4 * max(how.get("steps", 0), 1) * COPY)


# Of copies that are counted as read once and as read and written, 3/4 and 1/2 are new. The zeros
# that are replaced are not written.
CUT, BACK, WHOLE, ZEROS = 3 / 4, 1 / 2, 1, -1 / 4


@pytest.mark.parametrize(
    ("way", "how", "expected"),
    [
        # cut out, brought into the order that the products want, written back; the stack copied
        (WAYS[0], {}, CUT + 1 + BACK + WHOLE + ZEROS),
        (WAYS[0], {"donated": ()}, CUT + 1 + BACK + ZEROS),
        (WAYS[0], {"order": "bhtk"}, CUT + BACK + WHOLE + ZEROS),
        (WAYS[1], {}, CUT + 1 + BACK),
        (WAYS[1], {"order": "bhtk"}, CUT + BACK),
        # only cut out, but the stack brought into another order and back
        (WAYS[2], {}, 1 + 2 * WHOLE),
        # scattered into it, it keeps its order
        (WAYS[1], {"scatter": True}, CUT + BACK),
        (WAYS[2], {"scatter": True}, 1),
        # in a loop, the stack lies as products want it
        (WAYS[0], {"steps": 16}, CUT + BACK + ZEROS),
        (WAYS[1], {"steps": 16}, CUT + BACK),
        (WAYS[2], {"steps": 16}, 1),
    ],
)
def test_what_is_copied(way, how, expected):
    assert copies(way, **how) == pytest.approx(expected, rel=0.01)


def test_what_is_only_read_is_not_copied():
    def fn(ws, x):
        return lax.scan(lambda h, w: (h @ w, None), x, ws)[0]

    arguments = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((4, 512, 512), (64, 512))]
    plan = pt.plan(fn, *arguments, mesh="x=1", hardware=V5E)
    timing = Timing(plan.done.stage.context.analysis, V5E)
    assert not timing.layers.copied


def test_zeros_that_the_results_of_all_layers_replace_are_not_written():
    def fn(x):
        return lax.scan(lambda h, _: (h * 2, h), x, None, length=8)[1]

    plan = pt.plan(fn, jax.ShapeDtypeStruct((1024, 1024), "float32"), mesh="x=1", hardware=V5E)
    timing = Timing(plan.done.stage.context.analysis, V5E)
    (zeros,) = timing.layers.unwritten
    assert plan.program.operations[zeros].short == "broadcast_in_dim"
    assert timing.accesses[zeros][-1] == 0


# --------------------------------------------------------------------------- what copies take


def seconds(copy, shape, dtype="bf16"):
    return Copying(V5E.vector_unit, V5E.tile, 1e12).seconds(copy, TensorType(shape, dtype))


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("bf16", 4), ("i8", 4), ("f64", 8)])
def test_narrow_elements_take_as_long_as_wide_ones(dtype, size):
    assert seconds(Copied(0), (64, 8, 128), dtype) == pytest.approx(2 * size * 64 * 8 * 128 / 1e12)


def test_what_is_read_and_written_anyway_counts_once():
    alone = seconds(Copied(0), (64, 8, 128))
    assert seconds(Copied(0, counted=2), (64, 8, 128)) == pytest.approx(alone / 2)


def test_small_tiles_take_longer():
    full = seconds(Copied(0, as_argument=True), (64, 8, 128))
    slower = [
        seconds(Copied(0, as_argument=True), (512 // rows, rows, 128)) / full for rows in (16, 4, 2)
    ]
    assert slower == pytest.approx([1, 1.548, 2.643], rel=0.01)
    assert seconds(Copied(0), (256, 2, 128)) == full  # elsewhere it lies in full tiles


def test_dimensions_of_a_single_index_have_no_order():
    batch = frozenset({0, 2})
    assert seconds(Copied(0, batch=batch), (32, 64, 8, 128)) > 0
    assert seconds(Copied(0, batch=batch), (32, 64, 1, 128)) == 0
    assert seconds(Copied(0, batch=frozenset({0, 1})), (32, 8, 64, 128)) == 0
    # What does not fill a row of a tile gives way: the dimensions are 0, 2, 3, 1 then.
    assert seconds(Copied(0, batch=batch), (32, 256, 8, 64)) == 0


# ----------------------------------------------------------- layers that fill tiles in part alone


def longer(copy, shape):
    """Copies of 64 times the elements of an array, over full ones."""
    part = Laid(0, copy, 64)
    return seconds(part, shape) / seconds(Copied(0), (64, *shape))


def test_layers_lie_in_tiles_of_the_sequences_that_a_device_makes():
    extra = [longer(Used(1, 0), (batch, 1, 32, 128)) for batch in (8, 4, 2)]
    assert extra == pytest.approx([0, 0.548, 1.643], rel=0.01)
    assert longer(Used(2, 0), (4, 1, 32, 128)) == pytest.approx(2 * extra[1])


def test_layers_of_one_sequence_lie_in_tiles_of_heads():
    assert longer(Used(1, 0), (1, 1, 32, 128)) == 0


def test_layers_fill_as_many_columns_as_the_larger_of_heads_and_features():
    """A device makes 8 features of all sequences, which are exchanged for all of some."""
    assert longer(Used(1, 0), (64, 1, 32, 8)) == pytest.approx(3)
    assert longer(Used(1, 0), (64, 1, 8, 8)) == 0  # the last dimension stays where it is
    layer = Filled(0, Used(1, 0), frozenset({2, 3}))
    filled = seconds(layer, (16, 64, 32, 32)) / seconds(Copied(0), (16, 64, 32, 32))
    assert filled == pytest.approx(3)
    assert seconds(layer, (16, 64, 128, 32)) == 0


def test_products_of_a_single_row_take_longer_on_parts_of_tiles():
    elements = 64 * 4 * 32 * 128
    expected = elements / V5E.vector_unit.product.value
    assert seconds(Laid(0, Used(0, 1), 64), (4, 1, 32, 128)) == pytest.approx(expected)
