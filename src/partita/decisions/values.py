"""`ShardValues`: named values take an axis, and it propagates from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from partita.decisions.action import Action
from partita.decisions.decision import UNCHANGED, Change, Decision
from partita.decisions.references import Axis, Dim, Resolved, Value
from partita.decisions.stage import Context, Stage
from partita.program import Program
from partita.tiling import Assignment, Node, Propagation, Propagator, Tiling, uses_axis
from partita.tiling.fused import tile_with_parts


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument or result that should be sharded, on the first of these dimensions that can."""

    name: str
    value: Value
    dims: tuple[Dim, ...]
    told: str = ""
    """Text of the user that it comes from."""
    unless_used: bool = False
    """True to skip it silently if the axis is in use there already."""

    def __post_init__(self) -> None:
        if not isinstance(self.dims, tuple):
            msgspec.structs.force_setattr(self, "dims", tuple(self.dims))


class ShardValues(Decision, frozen=True, omit_defaults=True, dict=True, tag="shard_values"):
    """Shards requested values along one axis, with values that are pinned along it from there on.

    Searches make such decisions `folded`: over the classes of a program, which is quicker than over
    its single operations and values.
    """

    requests: tuple[Request, ...]
    axis: Axis
    pinned: tuple[Value, ...] = ()
    roles: tuple[Resolved, ...] = ()
    """Roles that get the axis, by conflict; if empty, those of the seeds."""
    colors: bool = False
    """True if the whole color groups of the seeds take the axis, once it has propagated."""
    folded: bool = False
    """True if it is applied to classes."""
    what: str = ""
    """Description, if it is a part of a strategy, as in the name of a tactic."""
    instead: tuple[Resolved, ...] = ()
    """Roles that get the axis instead, as a change says."""

    def __hash__(self) -> int:
        return hash((self.what, self.axis, self.colors, len(self.requests)))

    @property
    def over_classes(self) -> bool:
        """True if it is applied to classes."""
        return self.folded

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage after it, as of single operations and values."""
        start = self.pinning(stage)
        seeds = [seed for _, seed in self.seeds(start) if seed is not None]
        return stage.at(self.colored(start, self.propagation(start, seeds), seeds))

    def take(self, propagator: Propagator, tiling: Tiling) -> Propagation:
        """Returns what takes the axis of the classes of a program, as by `apply`."""
        axis, classes = self.axis, propagator.graph.value_class
        pins = tiling.pinned.union((classes[value], axis) for value in self.pinned)
        start = tiling.pinning(pins)
        seeds = list(dict.fromkeys(self._class_seeds(propagator, start)))
        roles = self.resolution(propagator, seeds)
        taken = tile_with_parts(propagator, start, seeds, axis, roles, quick=True)
        if not self.colors:
            return taken
        ops, values = dict(taken.ops), dict(taken.values)
        tiled, graph = taken.tiling, propagator.graph
        for color in sorted({graph.values[value].colors[dim] for _, value, dim in seeds} - {-1}):
            more = propagator.tile_color(tiled, color, axis, self._color_roles)
            tiled = more.tiling
            ops.update(more.ops)
            values.update(more.values)
        return Propagation(tiled, ops, values)

    def changed(self, change: Change) -> Decision | None:
        """Returns it without some requests, and with other roles."""
        if change is UNCHANGED:
            return self
        if self in change.without_decisions:
            return None
        requests = tuple(
            request
            for request in self.requests
            if not any((request.value, dim, self.axis) in change.without for dim in request.dims)
        )
        instead = sorted_roles(change.winners(self.axis))
        return msgspec.structs.replace(self, requests=requests, instead=instead)

    def actions(self, stage: Stage) -> Iterator[Action]:
        """Returns where the axis starts: what is requested."""
        axis = stage.context.mesh.names[self.axis]
        if self.folded:
            for request in (each for each in self.requests if each.dims):
                seeds = tuple((request.value, dim) for dim in request.dims[:1])
                yield Action(axis, f"{request.name} dim {request.dims[0]}", seeds)
            return
        for request, seed in self.seeds(self.pinning(stage)):
            if seed is not None:
                text = f"{request.name} dim {seed[2]}"
                yield Action(axis, text, (seed[1:],), request=request.told)

    def describe(self, stage: Stage) -> str:
        """Returns it in words."""
        what = self.what or ", ".join(f"{r.name}: {r.dims}" for r in self.requests)
        return f"{what} -> {stage.context.mesh.names[self.axis]}"

    def problem(self, program: Program) -> str:
        """Returns that a value has no such dimension, if one has not."""
        for request in self.requests:
            rank = len(program.values[request.value].type.shape)
            for dim in request.dims:
                if dim >= rank:
                    return f"there is no dimension {dim} of a value {request.value}"
        return ""

    # ------------------------------------------------------- of single operations and values

    def pinning(self, stage: Stage) -> Stage:
        """Returns the stage in which what it pins is pinned."""
        return stage.pinned((value, self.axis) for value in self.pinned)

    def seeds(self, stage: Stage) -> Iterator[tuple[Request, Node | None]]:
        """Returns where each request takes the axis, None where it cannot; those that are passed
        over are left out."""
        context, tiling, axis = stage.context, stage.tiling, self.axis
        for request in self.requests:
            if request.unless_used and uses_axis(tiling.values[request.value], axis):
                continue
            dims = in_order(context, request.value, request.dims)
            nodes: list[Node] = [("value", request.value, dim) for dim in dims]
            can = (n for n in nodes if context.single.refusal(tiling, n, axis) is None)
            yield request, next(can, None)

    def resolution(self, propagator: Propagator, seeds: Sequence[Node]) -> dict[int, int]:
        """Returns the roles that get the axis in conflicts."""
        return (dict(self.roles) or named_roles(propagator, seeds)) | dict(self.instead)

    @property
    def _color_roles(self) -> dict[int, int]:
        return dict(self.roles) | dict(self.instead)

    def propagation(self, stage: Stage, seeds: Sequence[Node]) -> Propagation:
        """Returns how far the axis gets from seeds."""
        roles = self.resolution(stage.context.single, seeds)
        return tile_with_parts(stage.context.single, stage.tiling, seeds, self.axis, roles)

    def colored(self, stage: Stage, propagation: Propagation, seeds: Sequence[Node]) -> Assignment:
        """Returns where a propagation leads, with the colors of the seeds if `colors`."""
        tiling = propagation.tiling
        if self.colors:
            propagator = stage.context.single
            graph = propagator.graph
            for color in sorted({graph.values[value].colors[dim] for _, value, dim in seeds}):
                if color >= 0:
                    more = propagator.tile_color(tiling, color, self.axis, self._color_roles)
                    tiling = more.tiling
        return Assignment.of(tiling)

    # ------------------------------------------------------------------------------ of classes

    @cached_property
    def _wanted(self) -> dict[tuple[int, tuple[int, ...], bool], None]:
        """Values with dimensions to try in order, and whether they are passed over if used."""
        return dict.fromkeys((r.value, r.dims, r.unless_used) for r in self.requests)

    def _class_seeds(self, propagator: Propagator, tiling: Tiling) -> Iterator[Node]:
        classes = propagator.graph.value_class
        wanted = dict.fromkeys((classes[v], dims, unless) for v, dims, unless in self._wanted)
        for value, dims, unless_used in wanted:
            if unless_used and uses_axis(tiling.values[value], self.axis):
                continue
            for dim in dims:
                node: Node = ("value", value, dim)
                if propagator.refusal(tiling, node, self.axis) is None:
                    yield node
                    break


def named_roles(propagator: Propagator, seeds: Sequence[Node]) -> dict[int, int]:
    """Returns the roles that seeds are in: naming a dimension chooses between it and its rivals."""
    chosen: dict[int, set[int]] = {}
    for seed in seeds:
        role = propagator.role(seed)
        if role >= 0:
            chosen.setdefault(propagator.conflict_of[role], set()).add(role)
    return {conflict: roles.pop() for conflict, roles in chosen.items() if len(roles) == 1}


def sorted_roles(roles: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    """Returns roles by conflict as a decision keeps them."""
    return tuple(sorted((roles or {}).items()))


def in_order(context: Context, value: int, dims: Sequence[int]) -> Sequence[int]:
    """Returns dimensions to try; those that a loop reads index by index cost most, so come last."""
    if len(dims) < 2:
        return dims
    colors = context.analysis.value_colors(value)
    return sorted(dims, key=lambda dim: colors[dim] in context.scanned)
