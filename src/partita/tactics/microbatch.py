"""`Microbatch`: a step runs in parts, one after the other, and adds up their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partita.decisions import Microbatches, Stage
from partita.errors import TacticError
from partita.program.names import match
from partita.tactics.options import check
from partita.tactics.parts import Patterns, examples
from partita.tactics.protocol import Outcome


@dataclasses.dataclass(frozen=True)
class Microbatch:
    """Runs a step in micro-batches: gradient accumulation, which the model need not know of.

    What is computed of examples takes a part of the memory. Gradients, losses and other sums over
    examples are added up, in float32 if they are narrower, and reduced over devices once, after the
    last micro-batch. What the step computes stays what it is, dropout masks and positions included.
    It goes before all other tactics, wherever it stands in a schedule: these partition the program
    that it makes, and each shares the examples of every micro-batch out among devices.

    Args:
      steps: number of micro-batches; divides the number of examples.
      patterns: what holds the examples, as for `DataParallel`.

    Example:
      >>> Microbatch(4).name
      'Microbatch(4)'
    """

    steps: int
    patterns: Patterns | None = None
    changes_program = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"Microbatch({self.steps})"

    def apply(self, stage: Stage) -> Outcome:
        """Finds the examples, and makes the program that runs on a part of them at a time.

        Raises:
          TacticError: what is computed of one example depends on others, as by batch
            normalisation; the steps do not divide the examples; or the program is sharded already.
        """
        decision = Microbatches(self.steps, self._examples(stage))
        after = decision.apply(stage)
        rows = sorted({_rows(stage, name, dim) for name, dim in decision.examples})
        each = " or ".join(f"{row // self.steps:,}" for row in rows)
        return Outcome(
            after.assignment,
            decisions=(f"{self.steps} micro-batches of {each} examples",),
            decided=(decision,),
            context=None if after.context is stage.context else after.context,
        )

    def _examples(self, stage: Stage) -> tuple[tuple[str, int], ...]:
        """Returns the arguments that hold examples, with the dimension that counts them."""
        program = stage.context.analysis.program
        names = dict(zip(program.arguments, program.argument_names, strict=True))
        if isinstance(self.patterns, Mapping):
            found = [
                (value, dim)
                for pattern, dim in self.patterns.items()
                for _, value in match(program, pattern)
            ]
        else:
            requests = examples(stage, self.name, self.patterns, 0)
            found = [(request.value, request.dims[0]) for request in requests]
        return tuple((names[value], self._checked(dim)) for value, dim in found if value in names)

    def _checked(self, dim: object) -> int:
        if isinstance(dim, int):
            return dim
        raise TacticError(
            f"{self.name}: patterns say which dimension of an argument counts examples, as in "
            f"{{'batch*': 0}}; got {dim!r}"
        )


def _rows(stage: Stage, name: str, dim: int) -> int:
    program = stage.context.analysis.program
    value = program.arguments[program.argument_names.index(name)]
    return program.values[value].type.shape[dim]
