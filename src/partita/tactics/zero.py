"""`ZeRO`: what is learned is sharded over the devices that have different examples.

Gradients are values of the program, and the axis that splits optimizer state propagates into them
through the update. So the stages differ in what is replicated:

| stage | optimizer state | gradients | parameters | collectives of a parameter |
|---|---|---|---|---|
| 1 | sharded | replicated | replicated | `all_reduce` of gradients, `all_gather` after update |
| 2 | sharded | sharded | replicated | `reduce_scatter` of gradients, `all_gather` after update |
| 3 | sharded | sharded | sharded | `all_gather` before use, `reduce_scatter` of the gradient |

*ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, arXiv 1910.02054.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from partita.decisions import Request, ShardValues, Stage
from partita.errors import TacticError
from partita.program import Program
from partita.tactics.combine import in_turn
from partita.tactics.options import check
from partita.tactics.parts import Patterns, TrainState, arguments, train_state
from partita.tactics.placement import Placement, sharing_a_buffer
from partita.tactics.protocol import Outcome
from partita.tiling import uses_axis


@dataclasses.dataclass(frozen=True)
class ZeRO:
    """Shards optimizer state, gradients and parameters along the axis of the examples.

    It goes behind `DataParallel` on the same axis. Each tensor is sharded in its largest dimension
    that divides; one that a loop reads index by index (layers stacked for `scan`) comes last.

    - Stage 1: optimizer state is sharded. Every gradient is summed in full (`all_reduce`) where it
      arrives at the optimizer state; each device updates its shard, and the new parameters are
      gathered (`all_gather`).
    - Stage 2: gradients, too. They are summed into shards (`reduce_scatter`); the new parameters
      are gathered as before.
    - Stage 3: parameters, too. They are gathered where they are used.

    Stages 1 and 2 keep parameters replicated along the axis, and stage 1 what arrives at the
    optimizer state; later tactics do not shard them there, either.

    Args:
      stage: 1, 2 or 3.
      axis: name of the mesh axis.
      patterns: of the parameters. By default arguments and results with a part `params` or
        `parameters` in their path; if there are none, those that the optimizer state mirrors.
      optimizer: patterns of the optimizer state. By default what has a part `opt`, `opt_state`,
        `optimizer`, `optimizer_state`, `mu`, `nu`, `trace`, `momentum`, `v_row` or `v_col`.

    Example:
      >>> ZeRO(2).name
      'ZeRO(2, data)'
    """

    stage: int
    axis: str = "data"
    patterns: Patterns | None = None
    optimizer: Patterns | None = None

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.stage, bool) or self.stage not in (1, 2, 3):
            raise TacticError(f"ZeRO has the stages 1, 2 and 3, not {self.stage!r}")

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"ZeRO({self.stage}, {self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Pins what the stage says, then shards the rest, parameters first."""
        axis, program = stage.context.mesh.axis(self.axis), stage.context.analysis.program
        outcome = in_turn(stage, map(Placement, placements(self, stage)))
        return dataclasses.replace(
            outcome,
            decisions=_taken(program, train_state(program, self.patterns, self.optimizer)),
            warnings=(*self._warnings(stage, axis), *outcome.warnings),
        )

    def _warnings(self, stage: Stage, axis: int) -> tuple[str, ...]:
        if any(uses_axis(layout, axis) for layout in stage.assignment.ops):
            return ()
        return (
            f"nothing is computed along {self.axis} yet, so that computation will be sharded as "
            f"its parameters are; put DataParallel({self.axis!r}) before",
        )


def placements(tactic: ZeRO, stage: Stage) -> list[ShardValues]:
    """What to shard, parameters first, and what is pinned meanwhile and from there on."""
    axis, program = stage.context.mesh.axis(tactic.axis), stage.context.analysis.program
    found = train_state(program, tactic.patterns, tactic.optimizer)
    _check(tactic, found, program)
    pinned: set[int] = set()
    if tactic.stage < 3:
        pinned = {v for _, p in found.parameters for v in sharing_a_buffer(program, p)}
    if tactic.stage == 1:
        pinned |= _arriving(program, found)
    return [
        ShardValues(tuple(_requests(program, tensors)), axis, tuple(sorted(pinned)))
        for tensors in (found.parameters, found.optimizer)[tactic.stage < 3 :]
    ]


def _check(tactic: ZeRO, found: TrainState, program: Program) -> None:
    """Says what is missing."""
    if not found.parameters:
        raise TacticError(
            f"{tactic.name}: nothing of {program.name} has params or parameters in its path; say "
            f'what the parameters are, as in patterns=["state[0]*"]. {arguments(program)}'
        )
    if tactic.stage < 3 and not _tensors(program, found.optimizer):
        raise TacticError(
            f"{tactic.name}: {program.name} has no optimizer state (a part such as opt_state, mu "
            "or nu in a path); say what it is, as in "
            f'optimizer=["state[1]*"], or take stage 3. {arguments(program)}'
        )


def _requests(program: Program, tensors: Iterable[tuple[str, int]]) -> list[Request]:
    """A request for every tensor that does not use the axis yet, its largest dimension first."""
    found = []
    for name, value in tensors:
        shape = program.values[value].type.shape
        if shape:
            dims = sorted(range(len(shape)), key=lambda dim: -shape[dim])
            found.append(Request(name, value, tuple(dims), unless_used=True))
    return found


def _arriving(program: Program, found: TrainState) -> set[int]:
    """The gradients where they arrive at the optimizer state.

    These are the operands of what is computed from it, shaped as its result, that are not computed
    from it themselves, but from something else than parameters: from the examples.
    """
    tensors = _tensors(program, found.optimizer)
    kept = set(tensors)
    known = kept.union(value for _, value in found.parameters)
    examples = {value for value in program.arguments if value not in known}
    updated = _reached(program, kept)
    computed = _reached(program, examples) - updated
    values = program.values
    return {
        operand
        for op in program.operations
        if any(operand in updated for operand in op.operands)
        for operand in op.operands
        if operand in computed
        and values[operand].type.shape
        and values[operand].type.shape == values[op.results[0]].type.shape
    }


def _reached(program: Program, start: set[int]) -> set[int]:
    """All that is computed from some values."""
    found, grown = set(start), True
    while grown:  # again while loops carry more
        before = len(found)
        for op in program.operations:
            if not found.isdisjoint(op.operands):
                found.update(op.results)
        grown = len(found) > before
    return found


def _tensors(program: Program, named: Iterable[tuple[str, int]]) -> list[int]:
    """Returns the tensors that are no scalars."""
    return [value for _, value in named if program.values[value].type.shape]


def _taken(program: Program, found: TrainState) -> tuple[str, ...]:
    """Describes which argument was taken for what; results follow."""
    inputs = set(program.arguments)
    said = []
    for what, tensors in (("parameters", found.parameters), ("optimizer state", found.optimizer)):
        names = [name for name, value in tensors if value in inputs]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            said.append(f"{names[0]}{more} as {what}")
    return tuple(said)
