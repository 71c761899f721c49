"""Hooks of the documentation site (mkdocs.yml): pages from outside of docs/, and links to them.

The README is its home, and contributing and changes are pages; their links, and those to them, are
those of the repository, so each page reads the same there. A page with every public name is made
from the docstrings. GitHub numbers equal headings `-1`, Python-Markdown `_1`.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import partita

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.txt",
}
"""Files of the repository, and what they are on the site."""

LINK = re.compile(r"(\]\()(?!https?:)([^)#\s]*)(#[^)\s]+)?(?=\))")
CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "api.md", content=api()))
    return files


def api() -> str:
    """A page with every public name, from the docstrings."""
    entries = "\n".join(f"::: partita.{name}\n" for name in partita.__all__)
    return (
        "# From docstrings\n\nEvery public name, as `help()` shows it. "
        f"[The reference](reference.md) has them by what they are for, with examples.\n\n{entries}"
    )


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points links to where their targets are on the site."""
    here = page.file.src_uri
    source = next((s for s, target in PAGES.items() if target == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        opening, path, anchor = match[1], match[2], match[3] or ""
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = PAGES.get(wanted, wanted.removeprefix("docs/"))
        if path:
            path = posixpath.relpath(target, posixpath.dirname(here) or ".")
        return f"{opening}{path}{_anchor(wanted if path else source, anchor)}"

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])


def _anchor(source: str, anchor: str) -> str:
    """An anchor of a page as Python-Markdown numbers it."""
    base, _, number = anchor.removeprefix("#").rpartition("-")
    if not number.isdigit() or (ROOT / source).suffix != ".md":
        return anchor
    text = CODE.sub("", (ROOT / source).read_text("utf-8"))
    headings = Counter(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.M)
    )
    return f"#{base}_{number}" if headings[base] > int(number) else anchor
