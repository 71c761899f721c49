"""`python -m tools.sanitized FOLDER ARGS...`: pytest with other builds of the inner loops in C.

`make test-native` runs it with a build by the sanitizers of the compiler.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest


def main(folder: Path, arguments: list[str]) -> int:
    """The exit status of pytest, once the builds in a folder stand for those of the package."""
    found = sorted(folder.glob("*.abi3.so"))
    if not found:
        raise SystemExit(f"{folder} holds no builds")
    for file in found:
        name = f"partita.native.{file.name.partition('.')[0]}"
        loader = ExtensionFileLoader(name, str(file))
        spec = spec_from_loader(name, loader)
        assert spec is not None
        sys.modules[name] = module = module_from_spec(spec)
        loader.exec_module(module)
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
