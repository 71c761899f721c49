"""A plan as one HTML file that loads nothing: text and tables from here, charts by D3.

`static/` has the template, the style and the scripts. D3 is `static/vendor/d3.min.js`, the file
`dist/d3.min.js` of the npm package d3 in `D3_VERSION`, unchanged, with its licence beside it;
`make page-library` fetches it, and a test compares its digest. It is embedded whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from partita.report.data import PlanData
from partita.report.page.markup import Html, join, tag
from partita.report.page.sections import sections, summary
from partita.version import __version__

D3_VERSION = "7.9.0"

SCRIPTS = ("common.js", "timeline.js", "memory.js", "search.js", "tables.js")
"""The scripts of a page, in order."""


def page(plan: PlanData) -> str:
    """The page of one plan."""
    parts = sections(plan)
    data = dataclasses.asdict(plan)
    shown = {
        "timeline": data["details"] and data["details"]["timeline"],
        "memory": data["details"] and data["details"]["memory"],
        "searches": [t["search"]["curve"] for t in data["history"] if t["search"]],
        "collectives": [
            [m["number"], m["kind"], m["axes"], m["bytes"]]
            for m in (data["details"] or {"moves": []})["moves"]
        ],
    }
    title = f"{plan.program} on {plan.hardware}: plan"
    body = join([summary(plan), *(part.__html__() for part in parts)])
    return document(title, [(part.anchor, part.title) for part in parts], body, shown)


def document(title: str, links: Sequence[tuple[str, str]], body: Html, data: Any) -> str:
    """A whole file.

    Args:
      title: of the window.
      links: anchors and titles of the navigation.
      body: what it shows.
      data: what scripts draw.
    """
    # So no text can end the element that holds it, or begin another.
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    scripts = [_static("vendor/d3.min.js"), *map(_static, SCRIPTS)]
    return Template(_static("template.html")).substitute(
        title=tag("span", title)[len("<span>") : -len("</span>")],
        version=__version__,
        library=D3_VERSION,
        style=_static("page.css"),
        navigation=join(tag("a", told, href=f"#{anchor}") for anchor, told in links),
        content=body,
        data=embedded,
        scripts="\n".join(scripts),
    )


def _static(name: str) -> str:
    """A file of the page, as text."""
    return files(__package__).joinpath("static", *name.split("/")).read_text("utf-8")
