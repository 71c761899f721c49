"""Optional libraries are for those who pass their modules: nobody else needs or imports them."""

import importlib
import re
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "partita"


def test_nothing_but_its_front_end_imports_torch():
    files = {file.relative_to(SOURCE): file.read_text("utf-8") for file in SOURCE.rglob("*.py")}
    reads = {
        file for file, text in files.items() if re.search(r"^\s*(import|from) torch\b", text, re.M)
    }
    assert reads and {file.parts[0] for file in reads} == {"torch"}


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_nothing_imports_libraries_of_modules(library):
    files = [file.read_text("utf-8") for file in SOURCE.rglob("*.py")]
    assert not any(re.search(rf"^\s*(import|from) {library}\b", text, re.M) for text in files)


def test_without_torch_its_front_end_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "partita.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'partita\[torch\]'"):
        importlib.import_module("partita.torch")
