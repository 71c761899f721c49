"""`Microbatch`: a step runs in parts, one after the other, and adds up their gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from partita.decisions import Microbatches, Stage
from partita.errors import TacticError
from partita.options import wrong
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
      steps: number of micro-batches, which divides the number of examples. By default the plan
        gets as many as it needs to fit: a power of two, or none.
      patterns: what holds the examples, as for `DataParallel`.
      coupled: what becomes of values that are made of all examples and needed for each, as by batch
        normalisation or a loss that balances experts. `refuse` names their lines. With
        `per_microbatch` those of a micro-batch stand for all, as where micro-batches are written by
        hand: the step computes something else then.

    Example:
      >>> Microbatch(4).name
      'Microbatch(4)'
    """

    steps: int | None = None
    patterns: Patterns | None = None
    coupled: Literal["refuse", "per_microbatch"] = "refuse"

    changes_program: ClassVar[bool] = True
    """See `Tactic`."""

    def __post_init__(self) -> None:
        check(self)
        if self.coupled not in ("refuse", "per_microbatch"):
            raise wrong("coupled", self.coupled, "'refuse' or 'per_microbatch'", TacticError)

    @property
    def name(self) -> str:
        """Name in reports."""
        said = [] if self.steps is None else [str(self.steps)]
        if self.coupled != "refuse":
            said.append(f"coupled={self.coupled}")
        return f"Microbatch({', '.join(said)})"

    def apply(self, stage: Stage) -> Outcome:
        """Finds the examples, and makes the program that runs on a part of them at a time.

        Raises:
          TacticError: what is computed of one example depends on others, as by batch
            normalisation; the steps do not divide the examples; or the program is sharded already.
        """
        steps = self.steps or 1  # a schedule that fits needs none
        decision = Microbatches(steps, self._examples(stage), self.coupled != "refuse")
        after = decision.apply(stage)
        batches = "1 micro-batch" if steps == 1 else f"{steps} micro-batches"
        said = f"{batches} of {self.rows(stage) // steps:,} examples"
        return Outcome(
            after.assignment,
            decisions=(said,),
            decided=(decision,),
            context=None if after.context is stage.context else after.context,
        )

    def rows(self, stage: Stage) -> int:
        """The number of examples of a step.

        Raises:
          TacticError: no argument holds examples.
        """
        program = stage.context.analysis.program
        values = dict(zip(program.argument_names, program.arguments, strict=True))
        held = self._examples(stage)
        return math.gcd(*(program.values[values[name]].type.shape[dim] for name, dim in held))

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
