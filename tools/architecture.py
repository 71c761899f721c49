"""`make architecture`: the layers of the package and what imports what, drawn from the sources."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = "partita"


def layers() -> list[str]:
    """The layers, high to low, as `pyproject.toml` has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(list(c["layers"]) for c in contracts if c["type"] == "layers")


def imports() -> dict[str, set[str]]:
    """For each layer, those that it imports; imports inside of functions count."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    found: dict[str, set[str]] = {layer: set() for layer in layers()}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            above, below = _layer(module), _layer(imported)
            if above in found and below in found and above != below:
                found[above].add(below)
    return found


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Edges without those that follow from others, so that a picture of them can be read."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        for below in edges[start]:
            found |= {below} | reached(below)
        return found

    return {
        above: {b for b in below if not any(b in reached(o) for o in below if o != b)}
        for above, below in edges.items()
    }


def purpose(layer: str) -> str:
    """The first line of a layer's docstring."""
    folder = ROOT / "src" / PACKAGE / layer
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return text.splitlines()[0]


def diagram() -> str:
    """The layers as a Mermaid diagram; an arrow goes from who imports to what is imported."""
    lines = ["flowchart TD"]
    for above, below in reduced(imports()).items():
        lines += [f"    {above} --> {name}" for name in layers() if name in below]
    return "\n".join(lines)


def table() -> str:
    """The layers as a Markdown table, high to low."""
    rows = (f"| `{layer}` | {purpose(layer)} |" for layer in layers())
    return "\n".join(["| layer | what |", "|---|---|", *rows])


def page() -> Iterator[str]:
    """What the architecture page shows: diagram and table."""
    yield f"```mermaid\n{diagram()}\n```"
    yield table()


def _layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


if __name__ == "__main__":
    print("\n\n".join(page()))
