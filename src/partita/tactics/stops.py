"""Reports on a propagation, in words: stops of the axis, conflicts, loops that now exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.decisions import Context, Stage, read_one_by_one
from partita.program import Program
from partita.tactics.protocol import Blocked, Outcome, Refusal
from partita.text import size
from partita.tiling import Assignment, Node, Propagation, Propagator, Stop


def after_propagation(
    stage: Stage, propagation: Propagation, axis: int, roles: Mapping[int, int]
) -> Outcome:
    """Returns the outcome of a propagation: its layouts, and what the axis met.

    Args:
      stage: that it started from.
      propagation: how far it came.
      axis: position of the axis in the mesh.
      roles: for conflicts, the role that gets the axis.
    """
    propagator = stage.context.single
    return Outcome(
        Assignment.of(propagation.tiling),
        refused=tuple(_size_stops(propagator, propagation.stops, axis)),
        conflicts=_conflicts(stage, propagation),
        warnings=_scanned(stage.context, propagation, axis),
        blocked=_blocked(propagator, propagation.stops, axis),
        resolved=_resolved(stage, propagation, roles),
    )


def _size_stops(propagator: Propagator, stops: Sequence[Stop], axis: int) -> list[Refusal]:
    """Operations at which propagation stopped because of a size, each kind and line once."""
    found: dict[tuple[str, str], Refusal] = {}
    for stop in stops:
        kind, index, _ = stop.node
        if not stop.divides and kind == "op":
            op = propagator.graph.ops[index].op
            if op.takes_apart:  # the parts take the axis instead
                continue
            where = f"{op.short} at {op.source}" if op.source else op.short
            inner = _micro(propagator.graph.program, index, propagator.mesh.sizes[axis])
            instead = f"the value is gathered there{inner and f'; {inner}'}"
            refusal = Refusal(where, stop.reason, instead)
            found.setdefault((where, stop.reason), refusal)
    return list(found.values())


def _micro(program: Program, index: int, devices: int) -> str:
    """What to write instead of a reshape that makes a dimension two, of which the inner one would
    divide; empty if it is none."""
    op = program.operations[index]
    if (len(op.operands), len(op.results)) != (1, 1):  # a reshape has one of each
        return ""
    sizes, (operand,), (result,) = op.rule.factors, op.rule.operands, op.rule.results
    for dim, made_of in enumerate(operand):
        parts = [sizes[factor].size for factor in made_of if sizes[factor].size > 1]
        apart = all((factor,) in result for factor in made_of if sizes[factor].size > 1)
        if len(parts) == 2 and apart and parts[1] % devices == 0:
            steps, each = parts
            one = f"; pt.microbatched(x, {steps}) does that" if dim == 0 else ""
            return (
                f"reshaped to {each} x {steps} instead, and these dimensions swapped, it would "
                f"stay where it is{one}"
            )
    return ""


def _blocked(propagator: Propagator, stops: Sequence[Stop], axis: int) -> tuple[Blocked, ...]:
    """Returns the places where something other than a size stopped the axis, each reason once."""
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
        part = program.values[op.results[0]].type
        often = f"{op.times} times" if op.times > 1 else "in every iteration"
        others = [
            dim
            for dim, color in enumerate(graph.values[op.operands[0]].colors)
            if color >= 0
            and color not in context.scanned
            and part.shape[dim] % context.mesh.sizes[axis] == 0
        ]
        instead = ""
        if others:
            plural = "dimension" if len(others) == 1 else "dimensions"
            instead = f"; sharded on {plural} {' or '.join(map(str, others))}, it would stay local"
        maker = program.values[op.operands[0]].producer
        if maker is not None and (better := _micro(program, maker, context.mesh.sizes[axis])):
            instead = f"; {better}"
        text = (
            f"{program.describe(op.operands[0])}: in each iteration the loop reads one index of "
            f"the sharded dimension, at {op.source}, and exchanges {part} "
            f"({size(part.bytes)}) {often}{instead}"
        )
        found[text] = None
    return tuple(found)


def _conflicts(stage: Stage, propagation: Propagation) -> tuple[str, ...]:
    colors = stage.context.colors
    return tuple(
        f"unresolved: {colors.conflict(number)}; choose with resolve=0, 1, ..."
        for number in sorted(propagation.unresolved)
    )
