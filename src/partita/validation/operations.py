"""Transfer rule of operations: the state of results on the devices, given that of operands.

An operation runs with some of its factors split along axes. Its sharding rule says which dimensions
that splits; the rest follows from the kind of operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.mesh import Mesh
from partita.program.collectives import COLLECTIVES
from partita.program.combining import combines
from partita.program.ir import Operation, Program, TensorType
from partita.program.op_traits import CONSTRAINT, FULL_TO_SHARD, SHARD_TO_FULL
from partita.program.rule import Halo, Rule
from partita.tiling import Axes, Layout
from partita.validation import windows
from partita.validation.state import Mismatch, State, expect, real


def results_of(
    op: Operation, split: Layout, operands: Sequence[State], program: Program, mesh: Mesh
) -> list[State]:
    """Returns the states of the results of an operation.

    Args:
      op: the operation.
      split: the axes that split each factor.
      operands: the states of the operands.
      program: the program that contains it.
      mesh: the mesh of devices.

    Raises:
      Mismatch: the operation does not get what it needs.
    """
    _check_factors(op, split, mesh)
    for number, state in enumerate(operands):
        try:
            _check_operand(op.rule, split, number, state, _type(program, op, number), mesh)
        except Mismatch as error:
            raise Mismatch(f"operand {number} is {state.describe(mesh)}: {error}") from None
    along = frozenset(axis for axes in split for axis in real(axes, mesh))
    unreduced = _unreduced(op, operands, along, program)
    summed = {
        axis: op.combine or "add"
        for factor, axes in zip(op.rule.factors, split, strict=True)
        if factor.kind == "reduction"
        for axis in real(axes, mesh)
    }
    known = op.combine or not op.traits.reduces
    expect(not summed or bool(known), "it is not known how its parts are combined")
    varying = _varying(op, operands, split, mesh)
    if op.kind not in (FULL_TO_SHARD, SHARD_TO_FULL):
        held = {axis for state in operands for axis in state.varying}
        expect(held.isdisjoint(along - _confined(op, mesh)), "it splits what differs already")
    zero = _is_zero(op, operands)
    return [
        State(_layout(op.rule, dims, split, mesh), {**unreduced, **summed}, varying, zero=zero)
        for dims in op.rule.results
    ]


def _type(program: Program, op: Operation, number: int) -> TensorType:
    return program.values[op.operands[number]].type


def _check_factors(op: Operation, split: Layout, mesh: Mesh) -> None:
    """Checks that each factor may take its axes, and that splits fixed by the program are kept."""
    taken: list[int] = []
    for number, (factor, axes) in enumerate(zip(op.rule.factors, split, strict=True)):
        if factor.kind in ("given", "manual"):
            names = op.given.axes[number] if op.given else ()
            if factor.kind == "given" and op.kind != CONSTRAINT:  # that changes no number
                said = mesh.axis_names(axes)
                expect(said == tuple(names), f"it is split as {said}; the program says {names}")
            continue
        taken += axes
        expect(factor.kind != "blocked" or not axes, "a factor is split that must not be")
        expect(factor.size % mesh.size(axes) == 0, "a factor does not divide")
    expect(len(taken) == len(set(taken)), "an axis splits two factors")


def _check_operand(
    rule: Rule, split: Layout, number: int, state: State, type_: TensorType, mesh: Mesh
) -> None:
    needs = _layout(rule, rule.operands[number], split, mesh)
    expect(state.layout == needs, lambda: f"the operation reads {State(needs).describe(mesh)}")
    if not rule.halos and not state.windows:
        return
    halo: Halo = rule.halos[number] if rule.halos else ()
    for dim, made_of in enumerate(rule.operands[number]):
        axes = _carried(rule, made_of, split)
        reach = halo[dim] if halo and axes else None
        held = state.windows.get(dim)
        if reach is None:
            expect(held is None, f"dimension {dim} overlaps between devices")
            continue
        size, shards = type_.shape[dim], mesh.size(axes)
        own = windows.own(size, shards) if held is None else held
        needed = windows.required(reach, size, shards)
        expect(np.array_equal(own, needed), f"it needs other indices along dimension {dim}")


def _layout(rule: Rule, dims: tuple[tuple[int, ...], ...], split: Layout, mesh: Mesh) -> Layout:
    return tuple(real(_carried(rule, made_of, split), mesh) for made_of in dims)


def _carried(rule: Rule, made_of: tuple[int, ...], split: Layout) -> Axes:
    """Returns the axes that shard a dimension made of factors, major first.

    After a factor that is left in blocks, none can be split: its shards would not be contiguous.
    After one that is split into single indices, the next factor can be split, too.
    """
    found: list[int] = []
    blocks = False
    for number in made_of:
        factor = rule.factors[number]
        if blocks:
            expect(not split[number], "a minor factor of a dimension is split")
        elif factor.size > 1:
            found += split[number]
            blocks = factor.kind != "given"
    return tuple(found)


def _unreduced(
    op: Operation, operands: Sequence[State], along: frozenset[int], program: Program
) -> dict[int, str]:
    """Returns the axes along which results are partial sums because operands are.

    An operation passes partial sums on if it adds them or writes them into each other, or if it is
    linear in one operand and the others are the same on all devices. Every other operation needs
    the reduced value.
    """
    axes = {axis for state in operands for axis in state.unreduced}
    if not axes:
        return {}
    traits = op.traits
    expect(along.isdisjoint(axes), "it works along an axis over which an operand is unreduced")
    expect(len(op.results) == 1, "it makes several results of a part of a sum")
    expect(not traits.reduces or op.combine == "add", "it does not add parts of a sum")
    integers = any(
        program.values[v].type.dtype.lstrip("su").startswith("i")
        for v in (op.operands[0], op.results[0])
    )
    expect(not (traits.rounds_integers and integers), "it rounds parts of a sum")
    made = program.values[op.results[0]].type.dtype
    expect(combines(made, "add"), f"{made} has no parts of a sum")
    for axis in axes:
        parts = [n for n, state in enumerate(operands) if axis in state.unreduced]
        expect(all(operands[n].unreduced[axis] == "add" for n in parts), "parts are not of a sum")
        if all(map(traits.joint, parts)):
            others = (s for n, s in enumerate(operands) if traits.joint(n) and n not in parts)
            whole = [state for state in others if not state.zero]
            expect(not whole, "it adds a whole value to parts of a sum, on every device")
        else:
            expect(
                len(parts) == 1 and parts[0] in traits.linear, "it is not linear in a part of a sum"
            )
    return dict.fromkeys(sorted(axes), "add")


def _is_zero(op: Operation, operands: Sequence[State]) -> bool:
    """Returns whether the operation makes zeros from the operands that are zero."""
    traits = op.traits
    joint = [state for number, state in enumerate(operands) if traits.joint(number)]
    if joint:
        return all(state.zero for state in joint)
    started = not traits.reduces or op.zero_init
    return started and any(operands[n].zero for n in traits.linear)


def _varying(op: Operation, operands: Sequence[State], split: Layout, mesh: Mesh) -> frozenset[int]:
    """Returns the axes along which devices hold different results."""
    found = frozenset(axis for state in operands for axis in state.varying)
    here = _confined(op, mesh)
    if op.kind == FULL_TO_SHARD:
        return found | _crossed(op, split, mesh)
    if op.kind == SHARD_TO_FULL:
        return found - _crossed(op, split, mesh) - here
    if op.traits.collective and op.work is not None:
        for each in op.work.collectives:
            axes = frozenset(map(mesh.axis, each.axes))
            found = found - axes if COLLECTIVES[each.kind].replicates else found | axes
        return found
    return found | here if op.traits.in_manual else found


def _crossed(op: Operation, split: Layout, mesh: Mesh) -> frozenset[int]:
    """Returns the axes that shard a value on only one side of a manual computation's boundary."""
    one, other = (
        {factor for made_of in dims for factor in made_of}
        for dims in (op.rule.operands[0], op.rule.results[0])
    )
    return frozenset(axis for n in one ^ other for axis in real(split[n], mesh))


def _confined(op: Operation, mesh: Mesh) -> frozenset[int]:
    """Returns the axes over which the computation around an operation is manual."""
    return frozenset(map(mesh.axis, op.manual))
