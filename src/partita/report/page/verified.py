"""Comparison of predicted and compiled figures, for each compilation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.report.data import PlanData
from partita.report.page.markup import Html, join, listing, table, tag
from partita.text import seconds, size


def verified(plan: PlanData) -> Html:
    """Each compilation that was asked for; nothing if none was."""
    return join(map(_one, plan.verified))


def _one(found: Mapping[str, Any]) -> Html:
    passed = tag(
        "b",
        "as predicted" if found["passed"] else "differs",
        class_="good" if found["passed"] else "bad",
    )
    head = f"{found['form']} form, compiled for {found['topology'] or 'host devices'}: "
    rows = [*_memory(found["memory"]), *_time(found["time"])]
    parts = [tag("h3", head, passed), listing(found["problems"])]
    if found["collectives"]:
        parts.append(_collectives(found["collectives"]))
    if rows:
        columns = ["what", "predicted#", "compiled#", "off by#"]
        parts.append(table("Predicted beside compiled", columns, rows))
    return join(parts)


def _collectives(found: list[Mapping[str, Any]]) -> Html:
    keys = list(found[0])
    rows = [[_shown(each[key]) for key in keys] for each in found]
    return table("Collectives, predicted and compiled", keys, rows)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _memory(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    if found["compiled"] is None:
        return []
    return _pairs(found["predicted"], found["compiled"], size)


def _time(found: Mapping[str, Any] | None) -> list[tuple[str, str, str, str]]:
    return [] if found is None else _pairs(found["predicted"], found["compiled"], seconds)


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any], show: Any) -> list[Any]:
    return [
        (key.replace("_", " "), show(a), show(b), f"{a / b - 1:+.1%}" if b else "")
        for key, a in before.items()
        if isinstance(a, int | float) and isinstance(b := after.get(key), int | float)
    ]
