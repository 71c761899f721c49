"""Compiling for host devices in half the time, for programs that are run once and compared."""

from __future__ import annotations

import math
from typing import Any

import jax

from partita.stablehlo.versions import compiler_options

QUICK = compiler_options({"xla_cpu_use_fusion_emitters": False})
"""XLA's former code generator, where there still is one. It gets some fused scatters wrong, which
a comparison with the original shows."""

_KEPT_FROM = "jax_persistent_cache_min_compile_time_secs"


def compiled(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    """A jitted function, compiled for these arguments, and not kept for other processes.

    What XLA reads from its cache may begin independent collectives in other orders on some host
    devices than on others, and so wait for ever; what has just been compiled does not.
    """
    kept = jax.config.values[_KEPT_FROM]
    jax.config.update(_KEPT_FROM, math.inf)
    try:
        return jitted.lower(*args, **kwargs).compile(compiler_options=QUICK)
    finally:
        jax.config.update(_KEPT_FROM, kept)
