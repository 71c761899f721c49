"""Plan files of earlier formats, as those of the present one. One function leads one format on.

They work on what JSON has decoded, before its form is checked, so that a format is described only
once, in `schema`. What an earlier file does not have is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from partita.program.names import matches

Raw = dict[str, Any]


def migrated(raw: Raw, version: int) -> Raw:
    """A file of some format, as one of the newest.

    Raises:
      msgspec.ValidationError: it lacks a field of its format.
    """
    try:
        for number in range(version, len(_MIGRATIONS) + 1):
            raw = {**_MIGRATIONS[number - 1](raw), "partita_plan": number + 1}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"a field of format {version} is missing or of another type ({error})"
        raise msgspec.ValidationError(problem) from None
    return raw


def _from_1(raw: Raw) -> Raw:
    """Other names of what is pinned, hoisted and replicated; tactics had no directives."""

    def layout(row: Raw) -> Raw:
        return _renamed(row, whole="pinned")

    def entry(row: Raw) -> Raw:
        row = _renamed(row, whole="replicated_uses")
        actions = [{**action, "move": None} for action in row["actions"]]
        return {**row, "actions": actions, "directives": []}

    raw = _renamed(raw, placements="layouts")
    return {
        **raw,
        "program": _renamed(raw["program"], lifted="closed_over"),
        "layouts": [layout(row) for row in raw["layouts"]],
        "history": [entry(row) for row in raw["history"]],
    }


def _from_2(raw: Raw) -> Raw:
    """Collectives had no source lines, operations and colors nothing to find them by."""
    traffic = raw["estimate"]["traffic"]
    collectives = [
        {
            **{field: each[field] for field in ("kind", "axes", "count", "bytes")},
            **{"source": "", "value": ""},
        }
        for each in traffic
    ]
    return {
        **raw,
        "program": {**raw["program"], "operations": {"kinds": [], "order": ""}},
        "collectives": collectives,
        "anchors": list(_anchors_by_name(raw)),
    }


def _from_3(raw: Raw) -> Raw:
    """Decisions were directives, and every layout that they led to was listed."""
    rows = raw["layouts"]

    def entry(row: Raw) -> Raw:
        reached = {
            "decision": "layouts",
            **{name: row[name] for name in ("operations", "values")},
            "layouts": rows,
        }
        before, after = (row[name]["capacity"] for name in ("before", "estimate"))
        decided = [_decision(each) for each in row["directives"]]
        kept = ("name", "decisions", "refused", "blocked", "conflicts", "resolved", "warnings")
        return {
            **{name: row[name] for name in kept},
            "decided": decided or [reached],
            **({"reached": reached} if decided else {}),
            "memory": None if before == after else after,
        }

    return {**raw, "layouts": "", "history": [entry(row) for row in raw["history"]]}


def _decision(row: Raw) -> Raw:
    """A directive of format 3 as a decision."""
    match row["directive"]:
        case "place":
            return _without(row, "directive", decision="shard_values")
        case "tile" | "moves":
            moves = map(_move, row["actions"])
            return {"decision": "group", "decisions": list(moves)}
        case "while_pinned":
            inner = [_decision(each) for each in row["directives"]]
            if [each["decision"] for each in inner] == ["group"]:
                inner = inner[0]["decisions"]
            return {"decision": "group", "decisions": inner, "pins": row["pins"]}
        case "given_shardings":
            return _without(row, "directive", decision="keep_given")
        case "given_propagation":
            return _without(row, "directive", decision="propagate_given")
    raise ValueError(f"no directive {row['directive']!r}")


def _move(row: Raw) -> Raw:
    match row.get("move", "tile"):
        case "tile":
            return _without(row, "move", decision="shard_color")
        case "local":
            return _without(row, "move", decision="shard_class")
    placed = _without(row["placement"], "directive", decision="shard_values")
    return {**placed, "folded": True, "what": row["what"]}


def _without(row: Raw, field: str, **more: str) -> Raw:
    """The same without a field, and with others."""
    return {**more, **{key: value for key, value in row.items() if key != field}}


def _from_4(raw: Raw) -> Raw:
    """What is gathered again was chosen again, whenever a file was loaded."""
    return {**raw, "gathered_again": None}


_MIGRATIONS: tuple[Callable[[Raw], Raw], ...] = (_from_1, _from_2, _from_3, _from_4)
"""Migrations, by the format that they start from."""

_DIM = re.compile(r"(.+) dim (\d+)")


def _anchors_by_name(raw: Raw) -> Iterator[Raw]:
    """The colors of searches: their actions name an argument that has it."""
    names = [argument["name"] for argument in raw["program"]["arguments"]]
    found: dict[int, list[Any]] = {}
    for action in (action for entry in raw["history"] for action in entry["actions"]):
        told = _DIM.fullmatch(action["what"])
        if told and action["color"] is not None and action["color"] >= 0:
            same = (n for n, name in enumerate(names) if matches(told[1], name))
            number = next(same, None)
            if number is not None:
                found[action["color"]] = ["value", number, int(told[2])]
    for color, node in found.items():
        yield {"nodes": [node], "color": color}


def _renamed(row: Raw, **names: str) -> Raw:
    """The same with other names of fields."""
    return {names.get(key, key): value for key, value in row.items()}
