"""Compiling for host devices in half the time, for programs that are run once and compared."""

from __future__ import annotations

from typing import Any

from partita.stablehlo.versions import compiler_options

QUICK = compiler_options({"xla_cpu_use_fusion_emitters": False})
"""XLA's former code generator, where there still is one. It gets some fused scatters wrong, which
a comparison with the original shows."""


def compiled(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    """A jitted function, compiled for these arguments."""
    return jitted.lower(*args, **kwargs).compile(compiler_options=QUICK)
