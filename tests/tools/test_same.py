"""What is recorded of plans, and how a difference is said."""

from __future__ import annotations

from rich.console import Console
from tools.same import compared, record


def test_plans_of_one_program_are_recorded_the_same_twice():
    silent = Console(quiet=True)
    before, after = record(["mlp"], silent), record(["mlp"], silent)
    assert len(before) == 10
    assert compared(before, after) == []
    plan = next(iter(before))
    assert {name.removeprefix("loaded: ") for name in before[plan]} >= {"layouts", "estimate"}
    for name, text in before[plan].items():
        if name.startswith("loaded: "):
            assert text == before[plan][name.removeprefix("loaded: ")]


def test_what_differs_is_named():
    before = {"a": {"layouts": "1", "estimate": "2"}, "b": {"layouts": "3"}}
    after = {"a": {"layouts": "1", "estimate": "4"}, "c": {"layouts": "3"}}
    assert compared(before, after) == ["a: estimate", "b: layouts", "c: layouts"]
