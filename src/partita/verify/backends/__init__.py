"""The backends of verification, one module each: a compiler, and the devices it compiles for."""

from __future__ import annotations

import importlib
import pkgutil

from partita.errors import VerifyError
from partita.verify.backends.protocol import Backend

__all__ = ["Backend", "backend_for", "backends", "topologies"]


def backends() -> tuple[type[Backend], ...]:
    """Every backend: what the modules of this package call `BACKEND`, sorted by their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(module.BACKEND for module in modules if hasattr(module, "BACKEND"))


def backend_for(topology: str | None) -> Backend:
    """The backend that compiles for a topology; None stands for host devices.

    Raises:
      VerifyError: no backend spells its topologies so.
    """
    for each in backends():
        found = each.of(topology)
        if found is not None:
            return found
    raise VerifyError(f"unknown topology {topology!r}; expected {topologies()}")


def topologies() -> str:
    """The topologies that there are backends for, and the extras that these need, in one line."""
    return "; ".join(
        f"{each.described()} (pip install 'partita[{each.extra}]')"
        if each.extra
        else each.described()
        for each in backends()
    )
