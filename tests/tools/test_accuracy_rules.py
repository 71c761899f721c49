"""What the rules of compilers change in plans, as `python -m tools.accuracy.rules` prints it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tools.accuracy.rules import changes, plans, view

from partita.cost.compilers import compiler, compilers


@pytest.fixture(scope="module")
def changed():
    """What rules change in plans of an MLP for H100."""
    return [each for plan, done in plans("mlp", "h100") for each in changes(done, plan)]


def test_rules_are_switched_off_one_by_one(changed):
    rules = [each.rule.name for each in changed]
    assert set(rules) < {rule.name for rule in compiler("xla_gpu").rules}
    assert "padded rows" not in rules  # of Blackwell
    most = {name: max(c.time for c in changed if c.rule.name == name) for name in rules}
    assert most["combined collectives"] > 0.02 > most["zeros first"] == 0


def test_memory_counts_what_may_be_held_longer(changed):
    held = [each for each in changed if each.rule.name == "buffers held longer"]
    assert held and all(each.memory > 0.02 and each.time == 0 for each in held)


def test_the_table_has_every_rule(changed):
    console = Console(width=240, file=io.StringIO())
    console.print(view(changed))
    lines = console.file.getvalue().splitlines()
    for each in compilers():
        for rule in each.rules:
            (line,) = [n for n in lines if n.split() and n.startswith(each.name) and rule.name in n]
            assert rule.since in line
