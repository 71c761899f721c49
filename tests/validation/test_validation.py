"""The checker of lowered programs: it takes what the lowering makes, and no mutant of it."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import array, planner
from partita import errors
from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.spmd import SpmdProgram, Step, steps, unreduced
from partita.spmd.steps import permutation
from partita.validation import validate
from partita.validation.state import Mismatch, State
from partita.validation.steps import after
from validation.mutants import changed, with_step, without

plan = planner(mesh="x=4,y=2")
M = pt.ManualPartition


def until_any(y):
    return lax.while_loop(lambda y: jnp.any(y < 10), lambda y: y + 1, y)


def by_the_largest(x, y):
    return lax.cond(jnp.max(x) > 0, lambda y: y + 1, lambda y: y * 2, y)


def summed_in_one_branch(x, w, y):
    return lax.cond(y[0, 0] > 0, lambda: x @ w, lambda: y)


def accumulated(x, w):
    def body(total, batch):
        return total + batch.T @ jnp.tanh(batch @ w), None

    return lax.scan(body, jnp.zeros_like(w), x)[0]


def accumulated_stacks(x, ws):
    def stack(batch):
        def one(n, found):
            made = batch.T @ jnp.tanh(batch @ ws[n])
            return lax.dynamic_update_index_in_dim(found, made, n, 0)

        return lax.fori_loop(0, 2, one, jnp.zeros_like(ws))

    return lax.scan(lambda total, batch: (total + stack(batch), None), jnp.zeros_like(ws), x)[0]


def accumulated_until_large(x, w):
    def more(total):
        return total + x.T @ jnp.tanh(x @ w)

    return lax.while_loop(lambda total: jnp.sum(total) < 10, more, jnp.zeros_like(w))


def blurred(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def mean_square(x, w):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def updated(w, x):
    return w - jax.grad(mean_square, 1)(x, w)


ROWS, WIDE = array(16, 8), array(8, 32)

PLANS = {
    "data parallel": (jax.grad(mean_square, 1), (ROWS, WIDE), [M({"x": 0}, "x")]),
    "weights gathered": (updated, (WIDE, ROWS), [M({"x": 0}, "x"), M({"w": 0}, "x")]),
    "inner dimension": (mean_square, (ROWS, WIDE), [M({"x": 1}, "x"), M({"x": 0}, "y")]),
    "condition of a loop": (until_any, (ROWS,), [M({"y": 0}, "x"), M({"y": 1}, "y")]),
    "choice of a branch": (by_the_largest, (ROWS, ROWS), [M({"x": 0}, "x"), M({"y": 0}, "x")]),
    "a sum in one branch": (
        summed_in_one_branch,
        (ROWS, WIDE, array(16, 32)),
        [M({"x": 1}, "x")],
    ),
    "sums of a loop": (accumulated, (array(4, 16, 8), WIDE), [M({"x": 1}, "x")]),
    "stacks of sums of nested loops": (
        accumulated_stacks,
        (array(4, 16, 8), array(2, 8, 8)),
        [M({"x": 1}, "x")],
    ),
    "sums that a condition reads": (accumulated_until_large, (ROWS, WIDE), [M({"x": 0}, "x")]),
    "windows": (blurred, (array(4, 4096, 8), array(3, 8, 8)), [M({"x": 1}, "x")]),
    "dimension to dimension": (
        lambda x: jnp.sort(jnp.sort(x, 0), 1),
        (ROWS,),
        [M({"x": 1}, "x")],
    ),
}


@functools.cache
def lowered(name):
    fn, args, tactics = PLANS[name]
    return plan(fn, *args, tactics=tactics).spmd


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="edge"),
        lambda x: lax.associative_scan(jnp.maximum, x),
        lambda x: jnp.sum(x[:, :0].T @ x, 0),
    ],
    ids=["pad", "scan", "product"],
)
@pytest.mark.parametrize("tactic", [M({"result": 0}, "x"), M({"x": 0}, "y")], ids=str)
def test_values_of_no_elements_have_any_layout_for_nothing(fn, tactic):
    """Inside of these are slices of size 0, whose shards are neither exchanged nor cut."""
    x = np.arange(96.0, dtype=np.float32).reshape(12, 8)
    made = pt.plan(lambda x: fn(x), x, mesh="x=2,y=4", hardware="cpu", tactics=tactic)
    np.testing.assert_array_equal(made.jit()(x), fn(x))


@pytest.mark.parametrize("name", PLANS)
def test_what_is_lowered_passes(name):
    assert any(item.step.is_collective for item in lowered(name).reshards())
    validate(lowered(name))


@pytest.mark.parametrize("name", PLANS)
def test_no_step_can_be_left_out(name):
    for number in range(len(list(lowered(name).reshards()))):
        with pytest.raises(errors.LoweringError):
            validate(without(lowered(name), number))


@pytest.mark.parametrize("name", PLANS)
def test_no_collective_can_be_along_other_axes(name):
    spmd = lowered(name)
    for number, item in enumerate(spmd.reshards()):
        others = [a for a in ((0,), (1,), (0, 1)) if set(a) != set(item.step.axes)]
        for axes in others if item.step.is_collective else ():
            with pytest.raises(errors.LoweringError):
                validate(with_step(spmd, number, axes=axes))


def test_parts_are_combined_as_the_operation_says():
    spmd = lowered("choice of a branch")
    (number,) = (n for n, item in enumerate(spmd.reshards()) if item.step.kind == "all_reduce")
    with pytest.raises(errors.LoweringError, match="reduced by add, its parts by max"):
        validate(with_step(spmd, number, combine="add"))


# ------------------------------------------------------------------------ faults of the lowering


def test_a_condition_that_each_device_decides_by_its_own_part():
    spmd = lowered("condition of a loop")
    left_out = changed(spmd, lambda item: None if item.step.kind == "all_reduce" else item)
    with pytest.raises(errors.LoweringError, match="every device decides by its own part"):
        validate(left_out)


def test_sums_that_stay_outstanding_for_an_operation_that_is_not_linear(monkeypatch):
    monkeypatch.setattr(unreduced, "_may_stay", lambda graph, value: bool(value.uses))
    made = plan(mean_square, ROWS, WIDE, tactics=[M({"x": 1}, "x")])
    with pytest.raises(errors.LoweringError, match=r"tanh .*not linear in a part of a sum"):
        _ = made.spmd


def test_slices_of_whole_stacks_that_are_parts_of_sums(monkeypatch):
    """A stack that starts from ones is whole on every device; its slices must be, too."""

    def from_ones(x, ws):
        def one(n, found):
            made = x.T @ jnp.tanh(x @ ws[n])
            return lax.dynamic_update_index_in_dim(found, made, n, 0)

        def outer(_, total):
            return total + lax.fori_loop(0, 2, one, jnp.ones_like(ws))

        return lax.fori_loop(0, 3, outer, jnp.zeros_like(ws))

    args = ROWS, array(2, 8, 8)
    validate(plan(from_ones, *args, tactics=[M({"x": 0}, "x")]).spmd)
    monkeypatch.setattr(unreduced, "_may_stay", lambda carried, value: bool(value.uses))
    made = plan(from_ones, *args, tactics=[M({"x": 0}, "x")])
    with pytest.raises(errors.LoweringError):
        _ = made.spmd


def test_the_message_names_the_place_and_says_that_nothing_has_run(monkeypatch):
    monkeypatch.setattr(unreduced, "_may_stay", lambda graph, value: bool(value.uses))
    made = plan(mean_square, ROWS, WIDE, tactics=[M({"x": 1}, "x")])
    with pytest.raises(errors.LoweringError, match=r"test_validation\.py:\d+.*Nothing has run"):
        made.jit()


def test_parts_of_different_sums_that_are_mixed(monkeypatch):
    """Shards that move between axes of one size, while parts along a third axis are outstanding."""
    mesh, type_ = Mesh.of("x=3,y=3,z=2"), TensorType((9, 4), "f32")
    layouts = ((0,), ()), ((1,), ())
    shard = TensorType((3, 4), "f32")
    step = Step("collective_permute", (0, 1), -1, -1, shard, shard, layouts=layouts)
    state = State(layouts[0], {2: "add"})
    assert after(state, step, type_, mesh).same(State(layouts[1], {2: "add"}))

    def mixed(mesh, before, wanted):
        """The right shards go to the right devices, but of the other part of the sum."""
        senders, receivers = np.array(permutation(mesh, before, wanted)).T
        x, y, z = np.unravel_index(senders, mesh.sizes)
        return list(zip(np.ravel_multi_index((x, y, 1 - z), mesh.sizes), receivers, strict=True))

    monkeypatch.setattr(steps, "permutation", mixed)
    with pytest.raises(Mismatch, match="parts that differ along z are mixed"):
        after(state, step, type_, mesh)


def test_an_initial_value_that_several_devices_add(monkeypatch):
    monkeypatch.setattr(SpmdProgram, "sums", lambda self, op: frozenset())
    with pytest.raises(errors.LoweringError, match="starts from several initial values"):
        validate(lowered("inner dimension"))


def test_windows_that_do_not_reach_far_enough():
    spmd = lowered("windows")

    def narrow(item):
        if item.step.send is None:
            return item
        starts = tuple(0 for _ in item.step.send.starts)
        send = dataclasses.replace(item.step.send, starts=starts)
        return dataclasses.replace(item, step=dataclasses.replace(item.step, send=send))

    with pytest.raises(errors.LoweringError, match="other indices"):
        validate(changed(spmd, narrow))


def test_results_have_the_layout_that_the_plan_states():
    spmd = lowered("weights gathered")
    other = tuple(tuple(() for _ in layout) for layout in spmd.result_layouts)
    with pytest.raises(errors.LoweringError, match="result"):
        validate(dataclasses.replace(spmd, result_layouts=other))


def test_sums_that_a_loop_carries_start_from_zeros():
    spmd = lowered("sums of a loop")
    operations = tuple(
        dataclasses.replace(op, zero_init=False) if op.kind == "partita.carry" else op
        for op in spmd.program.operations
    )
    program = dataclasses.replace(spmd.program, operations=operations)
    with pytest.raises(errors.LoweringError, match=r"on every device|first, then"):
        validate(dataclasses.replace(spmd, program=program))
