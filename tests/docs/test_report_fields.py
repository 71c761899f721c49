"""The data of a report: every field is in its page, and the JSON Schema is that of the classes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import re
from pathlib import Path

import msgspec

from partita.report import data

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
SCHEMA = PAGE.with_name("report-schema.json")


def told(kind):
    """What the source says of every field: the string behind it."""
    body = ast.parse(inspect.getsource(kind)).body[0].body
    found = {}
    for one, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign):
            said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
            found[one.target.id] = " ".join(behind.value.value.split()) if said else ""
    return found


def classes():
    """The classes of the data, that of a plan first."""
    every = [c for c in vars(data).values() if dataclasses.is_dataclass(c)]
    return sorted(every, key=lambda c: c is not data.PlanData)


def fields():
    """The fields as lists for the page."""
    for kind in classes():
        yield f"**{kind.__name__.removesuffix('Data').lower()}**: {inspect.getdoc(kind)}"
        rows = (
            f"- `{name}`: {said}" if said else f"- `{name}`" for name, said in told(kind).items()
        )
        plain, explained = [], []
        for row in rows:
            (explained if ": " in row else plain).append(row)
        names = ", ".join(row.removeprefix("- ") for row in plain)
        yield "\n".join([*([f"- {names}"] if names else []), *explained])


def test_every_field_is_in_the_page():
    text = PAGE.read_text("utf-8")
    shown = "\n\n".join(fields())
    made = re.search(r"<!-- fields -->\n(.*?)<!-- end -->", text, re.S)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{text[: made.start(1)]}\n{shown}\n\n{text[made.end(1) :]}", "utf-8")
    assert made[1].strip() == shown.strip(), "UPDATE_DOCS=1 pytest tests/docs writes it"


def without_defaults(schema):
    """A schema without what is there if a field is not; versions of msgspec differ in that."""
    if isinstance(schema, dict):
        return {k: without_defaults(v) for k, v in schema.items() if k != "default"}
    return [without_defaults(each) for each in schema] if isinstance(schema, list) else schema


def test_the_schema_is_that_of_the_classes():
    made = json.dumps(without_defaults(msgspec.json.schema(data.PlanData)), indent=1) + "\n"
    if os.environ.get("UPDATE_DOCS"):
        SCHEMA.write_text(made, "utf-8")
    assert SCHEMA.read_text("utf-8") == made
