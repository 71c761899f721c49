"""Placing an axis: what is requested takes it, and it propagates from there.

Tactics come down to this, whatever they look for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from partita.decisions import Request, ShardValues, Stage, in_order, sorted_roles
from partita.errors import TacticError
from partita.program import Program
from partita.program.names import match
from partita.tactics.protocol import Outcome, Refusal
from partita.tactics.stops import after_propagation
from partita.tactics.suggestions import suggestions
from partita.tiling import Propagator, Tiling

Dims = int | Sequence[int] | Literal["replicate"]
"""The dimension of a value to shard, several to try in order, or that it stays replicated."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """A `ShardValues` as a tactic: it says what the axis meets on its way."""

    shard: ShardValues

    @property
    def name(self) -> str:
        """Name in reports."""
        return ", ".join(f"{request.name}: {request.dims}" for request in self.shard.requests)

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimensions requested, propagates the axis from them, and says what it met."""
        shard, axis = self.shard, self.shard.axis
        start = shard.pinning(stage)
        tried = list(shard.seeds(start))
        missed = [request for request, seed in tried if seed is None]
        refused = [(r, why) for r in missed if (why := _refusal(start, r, axis)) is not None]
        seeds = [seed for _, seed in tried if seed is not None]
        roles = shard.resolution(stage.context.single, seeds)
        propagation = shard.propagation(start, seeds)
        outcome = after_propagation(stage, propagation, axis, roles)
        return dataclasses.replace(
            outcome,
            assignment=shard.colored(start, propagation, seeds),
            refused=(*self._with_suggestions(stage, start.tiling, refused), *outcome.refused),
            actions=tuple(shard.actions(stage)),
            decided=(shard,),
        )

    def _with_suggestions(
        self, stage: Stage, tiling: Tiling, refused: Sequence[tuple[Request, Refusal]]
    ) -> Iterable[Refusal]:
        """The refusals, each once, those because of a size with what can be done instead."""
        propagator, program = stage.context.single, stage.context.analysis.program
        shard, axis = self.shard, self.shard.axis
        misfits = [request for request, _ in refused if _misfit(propagator, tiling, request, axis)]
        if not misfits:
            return dict.fromkeys(refusal for _, refusal in refused)

        def again(requests: Iterable[Request], pinned: Iterable[Request]) -> Placement:
            more = {v for request in pinned for v in sharing_a_buffer(program, request.value)}
            pins = tuple(sorted(more.union(shard.pinned)))
            changed = msgspec.structs.replace(shard, requests=tuple(requests), pinned=pins)
            return Placement(changed)

        found = suggestions(stage, shard.requests, misfits, axis, again)
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
    return Placement(ShardValues(tuple(requests), axis, roles=sorted_roles(roles))).apply(stage)


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
    shard = ShardValues(tuple(requests), axis, tuple(pinned), sorted_roles(roles), colors)
    along = stage.context.mesh.names[axis]
    said = tuple(f"keeps {program.describe(v)} replicated along {along}" for v in pinned)
    return dataclasses.replace(Placement(shard).apply(stage), decisions=said)


def chosen_roles(stage: Stage, resolve: int | None, name: str) -> dict[int, int]:
    """Returns the role with this number of every conflict; none without a number.

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
    """Returns whether a request fails because of the size of its one dimension."""
    if len(request.dims) != 1:
        return False
    refusal = propagator.refusal(tiling, ("value", request.value, request.dims[0]), axis)
    return refusal is not None and not refusal[1]


def _refusal(stage: Stage, request: Request, axis: int) -> Refusal | None:
    """Why none of the dimensions requested can take the axis; None if all have it already."""
    propagator, tiling, value = stage.context.single, stage.tiling, request.value
    type_ = propagator.graph.program.values[value].type
    rank = len(type_.shape)
    reasons = []
    for dim in in_order(stage.context, value, request.dims):
        refusal = propagator.refusal(tiling, ("value", value, dim), axis)
        if refusal is not None:
            reasons.append((dim, refusal))
    if not reasons:
        return Refusal(request.name, f"{type_} has none of these dimensions")
    if all(axis in tiling.values[value][dim] for dim, _ in reasons):
        return None
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
    asked = _asked(request.name, [dim for dim, _ in reasons])
    return Refusal(asked, reason, instead, mesh.names[axis], asked_for)
