"""What compilers do to a program that changes its time or memory: one module for each compiler.

A hardware file names its compiler, and has that compiler's rules, except for fields that it states
itself.
"""

from __future__ import annotations

import importlib
import pkgutil

from partita.cost.compilers.base import Compiler, Rule
from partita.errors import HardwareError, closest

__all__ = ["Compiler", "Rule", "compiler", "compilers"]


def compilers() -> tuple[Compiler, ...]:
    """Returns every compiler: what the modules of this package call `COMPILER`, by module name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(module.COMPILER for module in modules if hasattr(module, "COMPILER"))


def compiler(name: str) -> Compiler:
    """Returns the compiler of this name.

    Raises:
      HardwareError: there is none.

    Example:
        >>> [rule.name for rule in compiler("xla_tpu").rules][:2]
        ['fused products', 'rows in kernels']
    """
    known = {each.name: each for each in compilers()}
    if name not in known:
        raise HardwareError(
            f"unknown compiler {name!r}{closest(name, known)}; expected one of {', '.join(known)}"
        )
    return known[name]
