"""A further tactic is one class with a name and `apply`: it is planned, reported, and explained."""

from __future__ import annotations

import dataclasses

import partita as pt
from checks import array, planner


@dataclasses.dataclass(frozen=True)
class Everything:
    """Splits dimension 0 of all arguments along one axis."""

    axis: str

    @property
    def name(self):
        return f"Everything({self.axis})"

    def apply(self, stage: pt.Stage) -> pt.Outcome:
        return pt.ManualPartition({"*": 0}, self.axis).apply(stage)


def test_a_tactic_of_ones_own_is_planned_and_reported():
    plan = planner(mesh="x=4")(
        lambda a, b: a + b, array(8, 4), array(8, 4), tactics=Everything("x")
    )
    (entry,) = plan.history
    assert entry.name == "Everything(x)"
    assert entry.tiled == {"a": ("x", None), "b": ("x", None)}
    assert "dim 0 along x: history[0], Everything(x)" in str(plan.explain("a"))
