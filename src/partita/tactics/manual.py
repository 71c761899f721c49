"""`ManualPartition`: the user names arguments or results, a dimension and an axis."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from partita.errors import TacticError, UnknownNameError, closest
from partita.program import Program
from partita.tactics.alternatives import alternatives
from partita.tactics.protocol import (
    Action,
    Blocked,
    Context,
    Outcome,
    Refusal,
    Request,
    Stage,
    read_one_by_one,
)
from partita.text import size
from partita.tiling import Assignment, Node, Propagation, Propagator, Stop, Tiling

Dims = int | Sequence[int] | Literal["replicate"]


@dataclasses.dataclass(frozen=True)
class ManualPartition:
    """Shards what the user names along one axis, and all that follows from it.

    Args:
      patterns: pytree paths of arguments and results as JAX prints them, or names of intermediate
        values (`jax.ad_checkpoint.checkpoint_name`), with `*` and `?` as wildcards; each with the
        dimension to shard, several dimensions to try in order (those that a value does not have
        are passed over, those that a loop reads index by index come last), or `"replicate"` to
        keep the value whole along this axis.
      axis: name of the mesh axis.
      resolve: where a conflict is met, the number of the role that gets the axis; by default the
        role of the dimensions named, if they are in the conflict and in one role of it.

    Example:
      >>> ManualPartition({"batch*": 0}, axis="data").name
      'ManualPartition(batch*: 0 -> data)'
    """

    patterns: Mapping[str, Dims]
    axis: str
    resolve: int | None = None

    @property
    def name(self) -> str:
        """What reports call it."""
        requests = ", ".join(f"{pattern}: {dims}" for pattern, dims in self.patterns.items())
        return f"ManualPartition({requests} -> {self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the named dimensions and propagates the axis from them."""
        program = stage.context.analysis.program
        axis = stage.context.mesh.axis(self.axis)
        requests: list[Request] = []
        kept: list[int] = []
        seen: set[int] = set()
        for pattern, dims in self.patterns.items():
            matched = [pair for pair in match(program, pattern) if pair[1] not in seen]
            seen.update(value for _, value in matched)
            for name, value in matched:
                if dims == "replicate":
                    kept += sharing_a_buffer(program, value)
                else:
                    tried = as_dims(dims, name, program, value)
                    requests.append(Request(name, value, tried, pattern))
        roles = chosen_roles(stage, self.resolve, self.name)
        placement = Placement(tuple(requests), axis, tuple(kept), roles)
        keeps = tuple(f"keeps {program.describe(v)} whole along {self.axis}" for v in kept)
        return dataclasses.replace(placement.apply(stage), decisions=keeps)


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


def keeping(stage: Stage, pins: Iterable[tuple[int, int]]) -> Stage:
    """A stage in which further values are kept whole, each along an axis."""
    pinned = stage.assignment.pins.union(pins)
    return dataclasses.replace(stage, assignment=dataclasses.replace(stage.assignment, pins=pinned))


def place(
    stage: Stage, requests: Iterable[Request], axis: int, roles: Mapping[int, int] | None = None
) -> Outcome:
    """Seeds what is requested, propagates the axis from there, and says what stood in the way.

    Args:
      stage: what has been decided so far.
      requests: what should take the axis.
      axis: position of the axis in the mesh.
      roles: for conflicts, the role that gets the axis; by default that of the seeds.
    """
    return Placement(tuple(requests), axis, roles=roles or {}).apply(stage)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Requests along one axis, with values to keep whole along it: what tactics come down to."""

    requests: tuple[Request, ...]
    axis: int
    kept: tuple[int, ...] = ()
    roles: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """For conflicts, the role that gets the axis; by default that of the seeds."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return ", ".join(f"{request.name}: {request.dims}" for request in self.requests)

    def apply(self, stage: Stage) -> Outcome:
        """Seeds the dimensions requested, and propagates the axis from them."""
        context, propagator, axis = stage.context, stage.context.single, self.axis
        now = keeping(stage, ((value, axis) for value in self.kept)).assignment
        tiling = Tiling(now.ops, now.values, now.pins)
        change = context.change
        seeds: list[Node] = []
        refused: list[Refusal] = []
        misfits: list[Request] = []
        actions: list[Action] = []
        for request in self.requests:
            if any((request.value, dim, axis) in change.without for dim in request.dims):
                continue
            dims = _in_order(context, request.value, request.dims)
            seed, refusal = _seed(propagator, tiling, request.name, request.value, dims, axis)
            if seed is not None:
                seeds.append(seed)
                what = f"{request.name} dim {seed[2]}"
                name = context.mesh.names[axis]
                actions.append(Action(name, what, (seed[1:],), request=request.told))
            elif refusal is not None:
                refused.append(refusal)
                if _misfit(propagator, tiling, request, axis):
                    misfits.append(request)
        roles = dict(self.roles or named_roles(propagator, seeds))
        roles |= {conflict: role for conflict, a, role in change.roles if a == axis}
        propagation = propagator.tile_nodes(tiling, seeds, axis, roles)
        outcome = after_propagation(stage, propagation, axis, roles)
        asked = self._with_ways_out(stage, misfits, refused)
        return dataclasses.replace(
            outcome, refused=(*asked, *outcome.refused), actions=tuple(actions)
        )

    def _with_ways_out(
        self, stage: Stage, misfits: Sequence[Request], refused: Sequence[Refusal]
    ) -> Iterable[Refusal]:
        """The refusals, each once, those because of a size with what can be done instead."""
        if not misfits:
            return dict.fromkeys(refused)
        program = stage.context.analysis.program

        def again(requests: Iterable[Request], whole: Iterable[Request]) -> Placement:
            kept = {v for request in whole for v in sharing_a_buffer(program, request.value)}
            kept = kept.union(self.kept)
            return dataclasses.replace(self, requests=tuple(requests), kept=tuple(sorted(kept)))

        ways = alternatives(stage, self.requests, misfits, self.axis, again)
        whats = {_asked(request.name, request.dims) for request in misfits}
        return dict.fromkeys(
            dataclasses.replace(refusal, alternatives=ways) if refusal.what in whats else refusal
            for refusal in refused
        )


def after_propagation(
    stage: Stage, propagation: Propagation, axis: int, roles: Mapping[int, int]
) -> Outcome:
    """Where the propagation of an axis has led, and what stood in its way."""
    propagator = stage.context.single
    return Outcome(
        Assignment(propagation.tiling.ops, propagation.tiling.values, propagation.tiling.pins),
        refused=tuple(_size_stops(propagator, propagation.stops)),
        conflicts=_conflicts(stage, propagation),
        warnings=_scanned(stage.context, propagation, axis),
        blocked=_blocked(propagator, propagation.stops, axis),
        resolved=_resolved(stage, propagation, roles),
    )


def match(program: Program, pattern: str) -> list[tuple[str, int]]:
    """Arguments, results and tagged values whose names match a pattern, as (name, value).

    Raises `UnknownNameError`, with the closest names, if there are none.
    """
    named = [
        *zip(program.argument_names, program.arguments, strict=True),
        *zip(program.result_names, program.results, strict=True),
        *program.tagged,
    ]
    found = [(name, value) for name, value in named if matches(pattern, name)]
    if not found:
        names = [name for name, _ in named]
        raise UnknownNameError(
            f"{pattern!r} matches no argument, result or tagged value of {program.name}"
            f"{closest(pattern, names)}; names are pytree paths as JAX prints them, such as "
            f"{names[0]!r}, or what jax.ad_checkpoint.checkpoint_name says, and * and ? are "
            "wildcards"
        )
    return found


def matches(pattern: str, name: str) -> bool:
    """Whether a name is as a pattern says, `*` and `?` standing for anything."""
    expression = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(expression, name) is not None


def sharing_a_buffer(program: Program, value: int) -> set[int]:
    """A value and those that are donated to it or from it, which are laid out alike."""
    pairs = ((program.arguments[a], program.results[r]) for a, r in program.aliases.items())
    return {value}.union(*(pair for pair in pairs if value in pair))


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


def _in_order(context: Context, value: int, dims: Sequence[int]) -> Sequence[int]:
    """Dimensions to try: those that a loop reads index by index come last, they cost most."""
    if len(dims) < 2:
        return dims
    colors = context.single.graph.values[value].colors
    return sorted(dims, key=lambda dim: colors[dim] in context.scanned)


def named_roles(propagator: Propagator, seeds: Sequence[Node]) -> dict[int, int]:
    """The roles that seeds are in: who names a dimension has chosen between it and its rivals."""
    chosen: dict[int, set[int]] = {}
    for seed in seeds:
        role = propagator.role(seed)
        if role >= 0:
            chosen.setdefault(propagator.conflict_of[role], set()).add(role)
    return {conflict: roles.pop() for conflict, roles in chosen.items() if len(roles) == 1}


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
    wished = tuple((value, dim) for dim, _ in reasons)
    asked = _asked(name, [dim for dim, _ in reasons])
    return None, Refusal(asked, reason, instead, mesh.names[axis], wished)


def _size_stops(propagator: Propagator, stops: Sequence[Stop]) -> list[Refusal]:
    """Operations at which propagation stopped because of a size, each kind and line once."""
    found: dict[tuple[str, str], Refusal] = {}
    for stop in stops:
        kind, index, _ = stop.node
        if not stop.divides and kind == "op":
            op = propagator.graph.ops[index].op
            where = f"{op.short} at {op.source}" if op.source else op.short
            refusal = Refusal(where, stop.reason, "the value is gathered there")
            found.setdefault((where, stop.reason), refusal)
    return list(found.values())


def _blocked(propagator: Propagator, stops: Sequence[Stop], axis: int) -> tuple[Blocked, ...]:
    """Where something else than a size stopped the axis, each reason once."""
    places: dict[str, list[Node]] = {}
    for stop in stops:
        if stop.divides:
            places.setdefault(stop.reason, []).append(stop.node)
    name = propagator.mesh.names[axis]
    return tuple(
        Blocked(name, reason, len(nodes), _describe(propagator, min(nodes)))
        for reason, nodes in places.items()
    )


def _describe(propagator: Propagator, node: Node) -> str:
    """A node in the user's words."""
    kind, index, place = node
    program = propagator.graph.program
    if kind == "value":
        return f"{program.describe(index)} dim {place}"
    op = program.operations[index]
    return f"{op.title} at {op.source}" if op.source else op.title


def _resolved(stage: Stage, propagation: Propagation, roles: Mapping[int, int]) -> tuple[str, ...]:
    """Conflicts that the axis met, and which role got it."""
    colors, groups = stage.context.colors, stage.context.analysis.groups.conflict_groups
    found = []
    for number in sorted(propagation.resolved):
        role = groups[number].index(roles[number])
        found.append(f"{colors.conflict(number)}; it went to {role}")
    return tuple(found)


def _scanned(context: Context, propagation: Propagation, axis: int) -> tuple[str, ...]:
    """Loops that now exchange what they read each time around, each stack and line once."""
    program, graph = context.analysis.program, context.single.graph
    found: dict[str, None] = {}
    for index, factor in propagation.ops.items():
        op = graph.ops[index].op
        if not read_one_by_one(program, op, factor):
            continue
        piece = program.values[op.results[0]].type
        often = f"{op.times} times" if op.times > 1 else "in every iteration"
        others = [
            dim
            for dim, color in enumerate(graph.values[op.operands[0]].colors)
            if color >= 0
            and color not in context.scanned
            and piece.shape[dim] % context.mesh.sizes[axis] == 0
        ]
        instead = ""
        if others:
            plural = "dimension" if len(others) == 1 else "dimensions"
            instead = f"; sharded on {plural} {' or '.join(map(str, others))}, it would stay local"
        text = (
            f"{program.describe(op.operands[0])}: in each iteration the loop reads one index of "
            f"the sharded dimension, at {op.source}, and exchanges {piece} "
            f"({size(piece.bytes)}) {often}{instead}"
        )
        found[text] = None
    return tuple(found)


def _conflicts(stage: Stage, propagation: Propagation) -> tuple[str, ...]:
    colors = stage.context.colors
    return tuple(
        f"unresolved: {colors.conflict(number)}; choose with resolve=0, 1, ..."
        for number in sorted(propagation.unresolved)
    )
