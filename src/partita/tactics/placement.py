"""Placing an axis: what is requested takes it, and it propagates from there.

Tactics come down to this, whatever they look for. A `Placement` is a tactic by itself, and the
directive by which the same is placed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from partita.errors import TacticError
from partita.program import Program
from partita.program.names import match
from partita.tactics.fused import tile_with_parts
from partita.tactics.protocol import (
    UNCHANGED,
    Action,
    Change,
    Context,
    Outcome,
    Refusal,
    Request,
    Stage,
)
from partita.tactics.stops import after_propagation
from partita.tactics.suggestions import suggestions
from partita.tiling import Assignment, Node, Propagation, Propagator, Tiling, uses_axis

Dims = int | Sequence[int] | Literal["replicate"]
"""The dimension of a value to shard, several to try in order, or that it stays replicated."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Requests along one axis, with values that are pinned along it from there on."""

    requests: tuple[Request, ...]
    axis: int
    """Position in the mesh."""
    pinned: tuple[int, ...] = ()
    roles: tuple[tuple[int, int], ...] = ()
    """For conflicts, the role that gets the axis; if there are none, that of the seeds."""
    colors: bool = False
    """Whether the color groups of the seeds take the axis as a whole, once it has propagated."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(f"{request.name}: {request.dims}" for request in self.requests)

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimensions requested, propagates the axis from them, and says what it met."""
        context, axis = stage.context, self.axis
        start = stage.pinned((value, axis) for value in self.pinned)
        tried = list(self._tried(start, UNCHANGED))
        refused = [(request, refusal) for request, _, refusal in tried if refusal is not None]
        seeds = [(request, seed) for request, seed, _ in tried if seed is not None]
        roles = self._roles(context.single, [seed for _, seed in seeds], UNCHANGED)
        propagation = self._propagation(start, [seed for _, seed in seeds], roles)
        outcome = after_propagation(stage, propagation, axis, roles)
        actions = (
            Action(
                context.mesh.names[axis],
                f"{request.name} dim {seed[2]}",
                (seed[1:],),
                request=request.told,
            )
            for request, seed in seeds
        )
        return dataclasses.replace(
            outcome,
            assignment=self._colored(start, propagation, [seed for _, seed in seeds], UNCHANGED),
            refused=(*self._with_suggestions(stage, start.tiling, refused), *outcome.refused),
            actions=tuple(actions),
            directives=(self,),
        )

    def follow(self, stage: Stage, change: Change) -> Assignment:
        """Where it leads from a stage."""
        start = stage.pinned((value, self.axis) for value in self.pinned)
        seeds = [seed for _, seed, _ in self._tried(start, change) if seed is not None]
        roles = self._roles(stage.context.single, seeds, change)
        propagation = self._propagation(start, seeds, roles)
        return self._colored(start, propagation, seeds, change)

    def _tried(
        self, stage: Stage, change: Change
    ) -> Iterator[tuple[Request, Node | None, Refusal | None]]:
        """What becomes of every request: where it takes the axis, or why it does not."""
        context, tiling, axis = stage.context, stage.tiling, self.axis
        for request in self.requests:
            value = request.value
            if any((value, dim, axis) in change.without for dim in request.dims):
                continue
            if request.unless_used and uses_axis(tiling.values[value], axis):
                continue
            dims = in_order(context, value, request.dims)
            yield request, *_seed(context.single, tiling, request.name, value, dims, axis)

    def _roles(
        self, propagator: Propagator, seeds: Sequence[Node], change: Change
    ) -> dict[int, int]:
        """For conflicts, the role that gets the axis."""
        return (dict(self.roles) or named_roles(propagator, seeds)) | change.winners(self.axis)

    def _propagation(
        self, stage: Stage, seeds: Sequence[Node], roles: Mapping[int, int]
    ) -> Propagation:
        return tile_with_parts(stage.context.single, stage.tiling, seeds, self.axis, roles)

    def _colored(
        self, stage: Stage, propagation: Propagation, seeds: Sequence[Node], change: Change
    ) -> Assignment:
        """Where the propagation leads, with the colors of the seeds if these take the axis."""
        tiling = propagation.tiling
        if self.colors:
            propagator = stage.context.single
            roles = dict(self.roles) | change.winners(self.axis)
            graph = propagator.graph
            for color in sorted({graph.values[value].colors[dim] for _, value, dim in seeds}):
                if color >= 0:
                    tiling = propagator.tile_color(tiling, color, self.axis, roles).tiling
        return Assignment(tiling.ops, tiling.values, tiling.pinned)

    def _with_suggestions(
        self, stage: Stage, tiling: Tiling, refused: Sequence[tuple[Request, Refusal]]
    ) -> Iterable[Refusal]:
        """The refusals, each once, those because of a size with what can be done instead."""
        propagator, program = stage.context.single, stage.context.analysis.program
        misfits = [
            request for request, _ in refused if _misfit(propagator, tiling, request, self.axis)
        ]
        if not misfits:
            return dict.fromkeys(refusal for _, refusal in refused)

        def again(requests: Iterable[Request], pinned: Iterable[Request]) -> Placement:
            more = {v for request in pinned for v in sharing_a_buffer(program, request.value)}
            return dataclasses.replace(
                self, requests=tuple(requests), pinned=tuple(sorted(more.union(self.pinned)))
            )

        found = suggestions(stage, self.requests, misfits, self.axis, again)
        whats = {_asked(request.name, request.dims) for request in misfits}
        return dict.fromkeys(
            dataclasses.replace(refusal, suggestions=found) if refusal.what in whats else refusal
            for _, refusal in refused
        )


def place(
    stage: Stage,
    requests: Iterable[Request],
    axis: int,
    roles: Mapping[int, int] | None = None,
) -> Outcome:
    """Seeds what is requested, propagates the axis from there, and says what it met.

    Args:
      stage: what has been decided so far.
      requests: what should take the axis.
      axis: position of the axis in the mesh.
      roles: for conflicts, the role that gets the axis; by default that of the seeds.
    """
    return Placement(tuple(requests), axis, roles=_sorted(roles)).apply(stage)


def place_named(
    stage: Stage,
    patterns: Mapping[str, Dims | None],
    axis: int,
    roles: Mapping[int, int] | None = None,
    colors: bool = False,
) -> Outcome:
    """Places an axis on what patterns select; what is to stay replicated is pinned along it.

    Args:
      stage: what has been decided so far.
      patterns: of arguments, results and tagged values, each with what to do, None for nothing;
        the first pattern that a value matches counts.
      axis: position of the axis in the mesh.
      roles: for conflicts, the role that gets the axis; by default that of the seeds.
      colors: whether the color groups of what is sharded take the axis as a whole.

    Raises:
      UnknownNameError: a pattern matches nothing.
      TacticError: a value has no such dimension.
    """
    program = stage.context.analysis.program
    requests: list[Request] = []
    pinned: list[int] = []
    seen: set[int] = set()
    for pattern, dims in patterns.items():
        matched = [pair for pair in match(program, pattern) if pair[1] not in seen]
        seen.update(value for _, value in matched)
        for name, value in matched:
            if dims is None:
                continue
            if dims == "replicate":
                pinned += sharing_a_buffer(program, value)
            else:
                tried = tuple(as_dims(dims, name, program, value))
                requests.append(Request(name, value, tried, pattern))
    placement = Placement(tuple(requests), axis, tuple(pinned), _sorted(roles), colors)
    along = stage.context.mesh.names[axis]
    said = tuple(f"keeps {program.describe(v)} replicated along {along}" for v in pinned)
    return dataclasses.replace(placement.apply(stage), decisions=said)


def _sorted(roles: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((roles or {}).items()))


def chosen_roles(stage: Stage, resolve: int | None, name: str) -> dict[int, int]:
    """For every conflict, its role of this number; none if there is no number.

    Args:
      stage: whose program has the conflicts.
      resolve: number of the role.
      name: of the tactic, for the message.

    Raises:
      TacticError: no conflict has so many roles.
    """
    groups = stage.context.analysis.groups.conflict_groups
    if resolve is None:
        return {}
    most = max((len(roles) for roles in groups), default=0)
    if not 0 <= resolve < most:
        roles = f"roles 0 to {most - 1}" if most else "no roles: there are none"
        raise TacticError(f"{name}: resolve={resolve}, but conflicts of this program have {roles}")
    return {n: roles[resolve] for n, roles in enumerate(groups) if resolve < len(roles)}


def named_roles(propagator: Propagator, seeds: Sequence[Node]) -> dict[int, int]:
    """The roles that seeds are in: who names a dimension has chosen between it and its rivals."""
    chosen: dict[int, set[int]] = {}
    for seed in seeds:
        role = propagator.role(seed)
        if role >= 0:
            chosen.setdefault(propagator.conflict_of[role], set()).add(role)
    return {conflict: roles.pop() for conflict, roles in chosen.items() if len(roles) == 1}


def sharing_a_buffer(program: Program, value: int) -> set[int]:
    """A value and those that are donated to it or from it, which are laid out alike."""
    return {value, *program.donated.get(value, ())}


def as_dims(dims: Dims, name: str, program: Program, value: int) -> list[int]:
    """The dimensions of a value that are meant, counted from the front."""
    type_ = program.values[value].type
    rank = len(type_.shape)
    if isinstance(dims, int) and not isinstance(dims, bool):
        if not -rank <= dims < rank:
            raise TacticError(
                f"{name} has {rank} dimensions ({type_}); there is no dimension {dims}"
            )
        return [dims % rank]
    several = dims if isinstance(dims, list | tuple) else []
    if not several or not all(type(dim) is int for dim in several):
        raise TacticError(
            f"{name}: expected a dimension, a list of them or 'replicate', got {dims!r}"
        )
    return [dim % rank for dim in several if -rank <= dim < rank]


def _asked(name: str, dims: Sequence[int]) -> str:
    """A request in words."""
    return f"{name} dimension {', '.join(map(str, dims))}"


def _misfit(propagator: Propagator, tiling: Tiling, request: Request, axis: int) -> bool:
    """Whether it is the size of the one dimension requested that stands in the way."""
    if len(request.dims) != 1:
        return False
    refusal = propagator.refusal(tiling, ("value", request.value, request.dims[0]), axis)
    return refusal is not None and not refusal[1]


def in_order(context: Context, value: int, dims: Sequence[int]) -> Sequence[int]:
    """Dimensions to try: those that a loop reads index by index come last, they cost most."""
    if len(dims) < 2:
        return dims
    colors = context.analysis.value_colors(value)
    return sorted(dims, key=lambda dim: colors[dim] in context.scanned)


def _seed(
    propagator: Propagator, tiling: Tiling, name: str, value: int, dims: Sequence[int], axis: int
) -> tuple[Node | None, Refusal | None]:
    """The first of some dimensions that can take the axis, or why none can."""
    type_ = propagator.graph.program.values[value].type
    rank = len(type_.shape)
    reasons = []
    for dim in dims:
        node: Node = ("value", value, dim)
        refusal = propagator.refusal(tiling, node, axis)
        if refusal is None:
            return node, None
        reasons.append((dim, refusal))
    if not reasons:
        return None, Refusal(name, f"{type_} has none of these dimensions")
    if all(axis in tiling.values[value][dim] for dim, _ in reasons):
        return None, None
    mesh = propagator.mesh
    others = [
        dim
        for dim in range(rank)
        if dim not in {d for d, _ in reasons}
        and propagator.refusal(tiling, ("value", value, dim), axis) is None
    ]
    instead = ""
    if others:
        plural = "dimension" if len(others) == 1 else "dimensions"
        instead = (
            f"{plural} {', '.join(map(str, others))} could be sharded along {mesh.names[axis]}"
        )
    reason = "; ".join(dict.fromkeys(text for _, (text, _) in reasons))
    asked_for = tuple((value, dim) for dim, _ in reasons)
    asked = _asked(name, [dim for dim, _ in reasons])
    return None, Refusal(asked, reason, instead, mesh.names[axis], asked_for)
