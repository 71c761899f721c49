"""Transfer rules of resharding steps: the state of a value after each kind of step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partita.mesh import Mesh
from partita.program.collectives import COLLECTIVE_PERMUTE, COLLECTIVES, MASK, SLICE
from partita.program.ir import TensorType
from partita.spmd.steps import Step
from partita.tiling import Axes, Layout
from partita.validation import windows
from partita.validation.state import State, expect, laid_out, real

Transfer = Callable[[State, Step, TensorType, Mesh], State]


def after(state: State, step: Step, type_: TensorType, mesh: Mesh) -> State:
    """Returns the state of a value after a step.

    Args:
      state: the state before the step.
      step: the step of a reshard.
      type_: the type of the value, unsharded.
      mesh: the mesh of devices.

    Raises:
      Mismatch: the devices do not hold the value after the step.
    """
    return STEPS[step.kind](state, step, type_, mesh)


def _exchanged(state: State, step: Step, type_: TensorType, mesh: Mesh) -> State:
    """Transfer rule of collectives within groups of devices: what their entries say they do."""
    kind, axes = step.collective, real(step.axes, mesh)
    expect(kind.reduces or kind.gathers or kind.splits, f"what a {kind.name} does is not known")
    for dim in (step.dim, step.split):
        _expect_no_window(state, dim)
    if kind.reduces:
        state = _reduced(state, step.combine, axes)
    if kind.gathers:
        state = _without(state, step.dim, axes)
    if kind.splits:
        state = _split(state, step.dim if kind.scatters else step.split, axes)
    return state


def _reduced(state: State, combine: str, axes: Axes) -> State:
    for axis in axes:
        how = state.unreduced.get(axis)
        expect(how == combine, f"it is reduced by {combine}, its parts by {how}")
    rest = {axis: how for axis, how in state.unreduced.items() if axis not in axes}
    return state.replace(unreduced=rest)


def _slice(state: State, step: Step, type_: TensorType, mesh: Mesh) -> State:
    axes = real(step.axes, mesh)
    if step.layouts:
        expect(not type_.elements, "it has elements, which are not exchanged")
        before, wanted = (laid_out(layout, mesh) for layout in step.layouts)
        expect(before == state.layout, "it comes from another layout")
        return State(wanted)
    if step.window is None:
        _expect_no_window(state, step.dim)
        return _split(state, step.dim, axes)
    if not step.after.elements:  # nothing is cut out of it
        state = state.replace(layout=_at(state.layout, step.dim, axes))
        return _windowed(state, step.dim, np.zeros((mesh.size(axes), step.window.size), np.int64))
    if state.layout[step.dim] == axes:
        held = state.windows.get(step.dim, windows.own(type_.shape[step.dim], mesh.size(axes)))
        return _windowed(state, step.dim, windows.put_together(held, step.window))
    _expect_no_window(state, step.dim)
    whole = windows.own(type_.shape[step.dim], 1)
    held = np.repeat(whole, mesh.size(axes), axis=0)
    state = _split(state, step.dim, axes)
    return _windowed(state, step.dim, windows.put_together(held, step.window))


def _mask(state: State, step: Step, type_: TensorType, mesh: Mesh) -> State:
    axes = real(step.axes, mesh)
    _expect_replicated(state, axes)
    return state.replace(unreduced={**state.unreduced, **dict.fromkeys(axes, "add")})


def _permute(state: State, step: Step, type_: TensorType, mesh: Mesh) -> State:
    if step.send is not None:
        dim, axes = step.dim, real(step.axes, mesh)
        expect(state.layout[dim] == axes, "shards are exchanged along other axes than theirs")
        held = state.windows.get(dim, windows.own(type_.shape[dim], mesh.size(axes)))
        held = windows.received(held, step.send)
        if step.window is not None:
            held = windows.put_together(held, step.window)
        return _windowed(state, dim, held)
    before, wanted = (laid_out(layout, mesh) for layout in step.layouts)
    expect(before == state.layout, "shards are sent on from another layout than theirs")
    for dim in range(len(before)):
        _expect_no_window(state, dim)
    _expect_moved(state, before, wanted, step.pairs(mesh), mesh)
    return state.replace(layout=wanted)


def _expect_moved(
    state: State, before: Layout, wanted: Layout, pairs: list[tuple[int, int]], mesh: Mesh
) -> None:
    """Checks that each device gets the shard that it is to hold, of the same part of every sum."""
    places = np.indices(mesh.sizes).reshape(len(mesh.sizes), -1)
    senders, receivers = np.array(pairs, np.int64).reshape(-1, 2).T
    expect(
        sorted(receivers.tolist()) == list(range(mesh.devices)), "a device gets no shard, or two"
    )
    for had, has in zip(before, wanted, strict=True):
        sent = _numbers(had, places, mesh)[senders]
        got = _numbers(has, places, mesh)[receivers]
        alike = mesh.size(had) == mesh.size(has) and bool((sent == got).all())
        expect(alike, "a device gets another shard than it is to hold")
    for axis in {*state.unreduced, *state.varying}:
        alike = bool((places[axis, senders] == places[axis, receivers]).all())
        expect(alike, f"parts that differ along {mesh.names[axis]} are mixed")


def _numbers(axes: Axes, places: np.ndarray, mesh: Mesh) -> np.ndarray:
    """Returns the number of each device's shard along a dimension."""
    number = np.zeros(places.shape[1], np.int64)
    for axis in axes:
        number = number * mesh.sizes[axis] + places[axis]
    return number


def _without(state: State, dim: int, axes: Axes) -> State:
    """Returns the state with the shards of a dimension along its minor axes joined."""
    have = state.layout[dim]
    expect(
        bool(axes) and have[len(have) - len(axes) :] == axes,
        f"shards of dimension {dim} are put together along axes that are not its minor ones",
    )
    return state.replace(layout=_at(state.layout, dim, have[: len(have) - len(axes)]))


def _split(state: State, dim: int, axes: Axes) -> State:
    """Returns the state with a dimension split further, along axes over which it is replicated."""
    _expect_replicated(state, axes)
    return state.replace(layout=_at(state.layout, dim, (*state.layout[dim], *axes)))


def _windowed(state: State, dim: int, held: np.ndarray) -> State:
    return state.replace(windows={**state.windows, dim: held})


def _at(layout: Layout, dim: int, axes: Axes) -> Layout:
    return (*layout[:dim], axes, *layout[dim + 1 :])


def _expect_replicated(state: State, axes: Axes) -> None:
    held = {*state.axes, *state.unreduced, *state.varying}
    expect(held.isdisjoint(axes), "devices along the axes of the step do not hold the same")


def _expect_no_window(state: State, dim: int) -> None:
    expect(dim not in state.windows, f"dimension {dim} overlaps between devices")


STEPS: dict[str, Transfer] = {
    **dict.fromkeys(COLLECTIVES, _exchanged),
    SLICE.name: _slice,
    MASK.name: _mask,
    COLLECTIVE_PERMUTE.name: _permute,
}
"""The transfer rule of every kind of step, by name."""
