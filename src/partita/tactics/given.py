"""Shardings that a program gives itself: facts, placed before any tactic.

They decide the same from any stage, and no change of other decisions touches them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from partita.decisions import Action, Decision, Stage, named_roles
from partita.errors import AxisError, MeshError, UnsupportedError, closest
from partita.mesh import Mesh
from partita.program import Operation, Program
from partita.program.ir import GivenSharding, show_axes
from partita.program.op_traits import FULL_TO_SHARD, MANUAL, SHARD_TO_FULL
from partita.stablehlo.propagated import can_propagate
from partita.tactics.combine import joined
from partita.tactics.partitioner import as_xla_does
from partita.tactics.placement import sharing_a_buffer
from partita.tactics.protocol import Outcome, Tactic, searches
from partita.tactics.stops import after_propagation
from partita.tiling import Axes, Layout, Propagator

_CROSSINGS = (FULL_TO_SHARD, SHARD_TO_FULL)

_MANUAL = (
    "the program has computations that are manual over some axes, so that partita propagates the "
    "shardings, not Shardy; compile=True shows what XLA executes"
)

_Places = Mapping[int, Layout]
"""Values and how they are laid out."""


@dataclasses.dataclass(frozen=True)
class GivenShardings:
    """Lays out what the program gives a sharding, and all that follows from it.

    These are arguments, results, and operations inside: constraints and manual computations.
    Dimensions that are not said to be open are not sharded further by tactics that come later.
    Axes propagate from arguments first, then from operations in their order, then from results;
    where two facts meet, the value is moved from one layout to the other. A program that is to be
    partitioned as XLA does is decided as XLA has it instead.
    """

    given: tuple[GivenSharding, ...]
    """Shardings of arguments and results."""
    operations: tuple[Operation, ...] = ()
    """Operations that the program gives a sharding."""
    propagates: bool = True
    """True if axes propagate from operations and results; from arguments they always do."""
    decides: bool = False
    """True to resolve conflicts: for the role of the value that is given a sharding, or else
    for the role that comes first in the program."""

    @property
    def name(self) -> str:
        """Name in reports."""
        said = dict.fromkeys(map(_said, self._unnamed))
        return f"Shardings in the program ({len(self.given) + len(said)})"

    @property
    def _unnamed(self) -> list[Operation]:
        """Operations whose values have no name that is given a sharding, too, and no scalars."""
        named = {given.value for given in self.given}
        return [
            op
            for op in self.operations
            if named.isdisjoint(op.results) and len(op.rule.factors) > len(op.manual)
        ]

    def apply(self, stage: Stage) -> Outcome:
        """Places every sharding, then propagates each axis from where it is."""
        program, mesh = stage.context.analysis.program, stage.context.mesh
        ops, values = list(stage.assignment.ops), list(stage.assignment.values)
        placed = _placed(program, self.given, self.operations, mesh)
        for op in program.operations:
            if op.manual:
                ops[op.index] = _manual_layout(op, mesh)
        for op in self.operations:
            ops[op.index] = _given_layout(op, mesh)
        for value, layout in placed.items():
            values[value] = layout
        closed = [value for given in self.given if not given.open for value in [given.value]]
        pins = set(stage.assignment.pinned)
        for value in {v for each in closed for v in sharing_a_buffer(program, each)}:
            used = {axis for axes in values[value] for axis in axes}
            pins |= {(value, axis) for axis in range(len(mesh.names)) if axis not in used}
        pins |= set(_manual_pins(program, mesh))
        stage = stage.at(
            dataclasses.replace(
                stage.assignment, ops=tuple(ops), values=tuple(values), pinned=frozenset(pins)
            )
        )
        given = {v for each in self.given for v in sharing_a_buffer(program, each.value)}
        arguments = {v: placed[v] for v in given if program.values[v].producer is None}
        if program.by_xla and can_propagate(program):
            outcomes = [as_xla_does(stage, placed)]
        else:
            outcomes = [_propagate(stage, arguments, self.decides)]
            if self.propagates:
                after = stage.at(outcomes[0].assignment)
                facts = GivenPropagation(self.given, self.operations, self.decides)
                outcomes.append(facts.apply(after))
            if program.by_xla:
                outcomes.append(Outcome(outcomes[-1].assignment, warnings=(_MANUAL,)))
        done = joined(outcomes, outcomes[-1].assignment)
        keeps = [f"keeps {given.name} as {given}" for given in self.given]
        keeps += [f"keeps {each}" for each in dict.fromkeys(map(_said, self._unnamed))]
        return dataclasses.replace(
            done,
            decisions=tuple(dict.fromkeys(keeps)),
            actions=tuple(_actions(program, mesh)),
            blocked=(),
            decided=(KeepGiven(self.propagates, self.decides),),
        )


@dataclasses.dataclass(frozen=True)
class GivenPropagation:
    """Propagates axes from operations and results that the program gives a sharding.

    Where a schedule begins with tactics by hand, this comes after them: what is named goes first.
    """

    given: tuple[GivenSharding, ...]
    operations: tuple[Operation, ...]
    decides: bool = False

    @property
    def name(self) -> str:
        """Name in reports."""
        return "Propagate from the shardings in the program"

    def apply(self, stage: Stage) -> Outcome:
        """Propagates each axis from operations in their order, then from results."""
        program = stage.context.analysis.program
        outcomes = [Outcome(stage.assignment)]
        placed = _placed(program, self.given, self.operations, stage.context.mesh)
        for op in self.operations:
            outcomes.append(_propagate(stage, {v: placed[v] for v in op.results}, self.decides, op))
            stage = stage.at(outcomes[-1].assignment)
        made = {v: placed[v] for v in (given.value for given in self.given)}
        made = {v: layout for v, layout in made.items() if program.values[v].producer is not None}
        outcomes.append(_propagate(stage, made, self.decides))
        done = joined(outcomes, outcomes[-1].assignment)
        return dataclasses.replace(done, blocked=(), decided=(PropagateGiven(self.decides),))


class KeepGiven(Decision, frozen=True, tag="keep_given"):
    """A `GivenShardings`, as a decision."""

    propagates: bool
    decides: bool

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage after it."""
        given = GivenShardings(*_facts(stage), self.propagates, self.decides)
        return stage.at(given.apply(stage).assignment)

    def actions(self, stage: Stage) -> Iterator[Action]:
        """Returns where arguments and results get axes."""
        return _actions(stage.context.analysis.program, stage.context.mesh)


class PropagateGiven(Decision, frozen=True, tag="propagate_given"):
    """A `GivenPropagation`, as a decision."""

    decides: bool

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage after it."""
        return stage.at(GivenPropagation(*_facts(stage), self.decides).apply(stage).assignment)


def _actions(program: Program, mesh: Mesh) -> Iterator[Action]:
    """Yields the axes of arguments and results."""
    placed = given_layouts(program, mesh)
    for given in program.given:
        for value in sharing_a_buffer(program, given.value):
            for dim, axes in enumerate(placed[value]):
                for axis in axes:
                    yield Action(mesh.names[axis], f"{given.name} dim {dim}", ((value, dim),))


def _facts(stage: Stage) -> tuple[tuple[GivenSharding, ...], tuple[Operation, ...]]:
    """The arguments, results and operations that a program gives a sharding."""
    program = stage.context.analysis.program
    return program.given, tuple(op for op in program.operations if op.given)


def with_facts(
    program: Program, mesh: Mesh, tactics: Sequence[Tactic], decides: bool = False
) -> list[Tactic]:
    """A schedule with what the program says itself in its place.

    Everything is placed before any tactic. Axes propagate from constraints and results before the
    first search, so that what is said by hand can still say otherwise.

    Args:
      program: to be partitioned.
      mesh: over which.
      tactics: the schedule.
      decides: as of `GivenShardings`.

    Raises:
      MeshError, AxisError, UnsupportedError: what the program says does not fit the mesh.
    """
    operations = tuple(op for op in program.operations if op.given)
    if not (program.given or operations):
        return list(tactics)
    _placed(program, program.given, operations, mesh)  # complains before any work
    searching = (n for n, tactic in enumerate(tactics) if searches(tactic))
    by_hand = next(searching, len(tactics))
    inside = operations or any(program.values[g.value].producer is not None for g in program.given)
    later = bool(by_hand and inside)
    facts = GivenShardings(program.given, operations, not later, decides)
    after = [GivenPropagation(program.given, operations, decides)] if later else []
    return [facts, *tactics[:by_hand], *after, *tactics[by_hand:]]


def given_layouts(program: Program, mesh: Mesh) -> dict[int, Layout]:
    """The layouts that a program says itself, by value: of arguments, results and inside."""
    return _placed(program, program.given, (op for op in program.operations if op.given), mesh)


def _title(op: Operation) -> str:
    return f"{op.title} at {op.source}" if op.source else op.title


def _said(op: Operation) -> str:
    """Describes the sharding that the program gives an operation: of its result, or of both sides.

    Of a computation that is manual over some axes, all operands and results say the same: these.
    """
    assert op.given is not None
    axes = op.given.axes
    if op.kind in _CROSSINGS:
        over = [*(a for names in axes for a in names), *op.manual]
        names = [name for name, _ in op.given.mesh if name in over]
        return f"the shard_map at {op.source or 'an unknown line'}, manual over {', '.join(names)}"

    def side(tensors: Iterable[Iterable[tuple[int, ...]]]) -> str:
        return ", ".join(show_axes(axes[dim[0]] for dim in tensor) for tensor in tensors)

    sides = f"{side(op.rule.operands)} -> {side(op.rule.results)}"
    return f"{_title(op)} as {sides if op.kind == MANUAL else op.given}"


def _propagate(
    stage: Stage, values: _Places, decides: bool, op: Operation | None = None
) -> Outcome:
    """Propagates the axes of values from there, and those of the operation that makes them."""
    propagator, mesh = stage.context.single, stage.context.mesh
    layouts: list[tuple[str, int, Layout]] = [("value", v, layout) for v, layout in values.items()]
    if op is not None:
        layouts.append(("op", op.index, _given_layout(op, mesh)))
    outcomes = [Outcome(stage.assignment)]
    for axis, inside in _outer_first(layout for _, _, layout in layouts):
        seeds = [
            (kind, index, place)
            for kind, index, layout in layouts
            for place, axes in enumerate(layout)
            if axes[: len(inside) + 1] == (*inside, axis)
        ]
        around = [node for seed in seeds for node in propagator.neighbours.get(seed, [])]
        tiling = stage.tiling
        roles: dict[int, int] = named_roles(propagator, seeds) if decides else {}
        propagation = propagator.tile_nodes(tiling, around, axis, roles, inside)
        if decides and propagation.unresolved:
            roles |= {number: _first_role(propagator, number) for number in propagation.unresolved}
            propagation = propagator.tile_nodes(tiling, around, axis, roles, inside)
        outcomes.append(after_propagation(stage, propagation, axis, roles))
        stage = stage.at(outcomes[-1].assignment)
    return joined(outcomes, stage.assignment)


def _first_role(propagator: Propagator, conflict: int) -> int:
    """The role of a conflict whose dimension comes first, where the program first meets it."""
    return next(
        role
        for op in propagator.graph.ops
        for role in op.roles
        if role >= 0 and propagator.conflict_of[role] == conflict
    )


def _placed(
    program: Program,
    given: Iterable[GivenSharding],
    operations: Iterable[Operation],
    mesh: Mesh,
) -> dict[int, Layout]:
    """The layout of every value with a sharding, and of those that share its buffer."""
    placed: dict[int, tuple[str, str, Layout]] = {}

    def place(name: str, shown: str, value: int, layout: Layout) -> None:
        for each in sharing_a_buffer(program, value):
            before, was, known = placed.setdefault(each, (name, shown, layout))
            if known != layout:
                raise UnsupportedError(
                    f"{before} and {name} share a buffer, but have the shardings {was} and "
                    f"{shown}; take one out of the program, or do not donate"
                )

    for each in given:
        shape = program.values[each.value].type.shape
        layout = _layout(each.name, each.axes, each.mesh, mesh, shape)
        place(each.name, str(each), each.value, layout)
    for op in operations:
        of_factors = _given_layout(op, mesh)
        for value, dims in zip(op.results, op.rule.results, strict=True):
            layout = tuple(tuple(a for f in made_of for a in of_factors[f]) for made_of in dims)
            place(_title(op), show_axes(map(mesh.axis_names, layout)), value, layout)
    return {value: layout for value, (_, _, layout) in placed.items()}


def _given_layout(op: Operation, mesh: Mesh) -> Layout:
    """The axes of every factor of an operation, as the program gives them."""
    assert op.given is not None
    if op.kind in (MANUAL, *_CROSSINGS) and op.given.mesh != tuple(mesh):
        theirs = ",".join(f"{name}={size}" for name, size in op.given.mesh)
        where = op.source or "an unknown line"
        raise MeshError(
            f"the shard_map at {where} is over mesh {theirs}, but the plan is for mesh {mesh}; "
            f"plan for mesh {theirs}, in this order"
        )
    sizes = tuple(factor.size for factor in op.rule.factors)
    return _layout(_title(op), op.given.axes, op.given.mesh, mesh, sizes)


def _manual_layout(op: Operation, mesh: Mesh) -> Layout:
    """The axes of every factor of an operation that is manual over some, but for what is given."""
    others = len(op.rule.factors) - len(op.manual)
    return (*((),) * others, *((mesh.axis(axis),) for axis in op.manual))


def _manual_pins(program: Program, mesh: Mesh) -> Iterable[tuple[int, int]]:
    """Values with names, that tactics could ask for, and the axes over which they are manual."""
    for _, value in program.tagged:
        producer = program.values[value].producer
        op = None if producer is None else program.operations[producer]
        if op is not None and op.kind != SHARD_TO_FULL:
            yield from ((value, mesh.axis(axis)) for axis in op.manual)


def _layout(
    name: str,
    given: tuple[tuple[str, ...], ...],
    theirs: tuple[tuple[str, int], ...],
    mesh: Mesh,
    shape: tuple[int, ...],
) -> Layout:
    """A given sharding over the mesh of the plan, which must have its axes."""
    sizes, shown = dict(theirs), show_axes(given)
    for axis in (axis for axes in given for axis in axes):
        if not theirs:
            try:
                mesh.axis(axis)
            except AxisError as error:
                raise AxisError(f"{name} is given the sharding {shown}, but {error}") from None
        elif dict(mesh).get(axis) != sizes[axis]:
            other = ",".join(f"{name}={size}" for name, size in theirs)
            hint = "" if axis in mesh.names else closest(axis, mesh.names)
            raise MeshError(
                f"{name} comes with the sharding {shown} over mesh {other}, but the plan is "
                f"for mesh {mesh}; plan for a mesh that has {axis}={sizes[axis]}, or take the "
                f"sharding out of the program{hint}"
            )
    layout = tuple(tuple(mesh.axis(axis) for axis in axes) for axes in given)
    for dim, (size, axes) in enumerate(zip(shape, layout, strict=True)):
        if size % mesh.size(axes):
            by = " x ".join(f"{mesh.names[a]}={mesh.sizes[a]}" for a in axes)
            raise UnsupportedError(
                f"{name} comes with the sharding {shown}, but its dimension {dim} of {size} "
                f"does not divide by {by}; pad it, or take the sharding out of the program"
            )
    return layout


def _outer_first(layouts: Iterable[Layout]) -> list[tuple[int, Axes]]:
    """The axes in use, each with those that split the dimension before it; outer ones first.

    An axis propagates only to where the same ones come before it, as compilers have it: two layouts
    of one dimension are never mixed.
    """
    found = {
        (axes[number], axes[:number])
        for layout in layouts
        for axes in layout
        for number in range(len(axes))
    }
    return sorted(found, key=lambda each: (len(each[1]), each))
