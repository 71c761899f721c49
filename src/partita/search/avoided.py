"""Collectives that a plan must not have, because its backend does not support them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from partita.spmd import Lowering, ValuePlan


class Avoided:
    """Tells which lowerings of one lowerer have a collective of some kinds."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = tuple(kinds)
        self._known = np.zeros(0, dtype=bool)
        """Memoised by number of `ValuePlan`: whether it has such a collective."""

    def __call__(self, lowering: Lowering) -> bool:
        """Returns whether a lowering has such a collective."""
        if not self.kinds:
            return False
        new = lowering.known.plans[len(self._known) :]
        if new:
            self._known = np.append(self._known, [self._has(plan) for plan in new])
        return bool(self._known[lowering.plans.numbers].any())

    def _has(self, plan: ValuePlan) -> bool:
        steps = (*plan.steps, *(step for _, steps in plan.reshards for step in steps))
        return any(step.kind in self.kinds for step in steps)
