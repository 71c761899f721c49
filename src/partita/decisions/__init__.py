"""Decisions: what a partitioning is made of, as data. Stages are what they lead from and to."""

from partita.decisions.action import Action
from partita.decisions.color import EVERY_COLOR, ShardColor
from partita.decisions.decision import (
    UNCHANGED,
    Change,
    Decision,
    actions,
    apply,
    from_row,
    kinds,
    to_row,
    translated,
)
from partita.decisions.gather_again import GatherAgain, gathers
from partita.decisions.group import DecisionGroup
from partita.decisions.layouts import Layouts
from partita.decisions.members import NOWHERE, ShardClass, take_each
from partita.decisions.microbatches import Microbatches
from partita.decisions.references import LOST, Refers, Row
from partita.decisions.stage import Context, Progress, Stage, read_one_by_one, silent
from partita.decisions.values import Request, ShardValues, in_order, named_roles, sorted_roles

__all__ = [
    "EVERY_COLOR",
    "LOST",
    "NOWHERE",
    "UNCHANGED",
    "Action",
    "Change",
    "Context",
    "Decision",
    "DecisionGroup",
    "GatherAgain",
    "Layouts",
    "Microbatches",
    "Progress",
    "Refers",
    "Request",
    "Row",
    "ShardClass",
    "ShardColor",
    "ShardValues",
    "Stage",
    "actions",
    "apply",
    "from_row",
    "gathers",
    "in_order",
    "kinds",
    "named_roles",
    "read_one_by_one",
    "silent",
    "sorted_roles",
    "take_each",
    "to_row",
    "translated",
]
