"""JAX's internals and MLIR's bindings: all uses of them are in one package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("decoder", "internals", "mlir", "versions")
ALLOWED = {f"src/partita/stablehlo/{name}.py" for name in FILES}
INTERNAL = ("jax._src", "jax.extend", "jax.interpreters", "jaxlib")


def internals_in(source):
    """The internal modules that a source names, however it imports them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            named = ast.unparse(node.func).endswith(("import_module", "__import__"))
            found += [str(node.args[0].value)] if named else []
    return [name for name in found if f"{name}.".startswith(tuple(f"{i}." for i in INTERNAL))]


def test_jax_internals_are_used_in_one_place():
    files = {
        str(path.relative_to(ROOT)): path
        for folder in ("src", "tests", "tools", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    found = {name for name, path in files.items() if internals_in(path.read_text("utf-8"))}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import jaxlib",
        "import jaxlib.mlir.ir as ir",
        "from jax.extend.mlir import ir",
        "from jax.extend import mlir",
        "from jax import _src",
        "def late():\n    from jax._src import core",
        "import jax\njax._src.core",
        "import importlib\nimportlib.import_module('jax._src.core')",
    ],
)
def test_a_use_is_found_wherever_it_hides(line):
    assert internals_in(line)


@pytest.mark.parametrize("line", ["import jax", "from jax import extended", "jax.extension.x"])
def test_other_names_are_not_taken_for_one(line):
    assert not internals_in(line)
