"""The program that `partita.stablehlo.reading` runs in a process of its own.

Its argument is `sys.path` as JSON; on standard input it takes a module, as bytecode, portable
artifact or text, and on standard output it gives the module as text with locations, or what MLIR
says against it, as JSON, with `REFUSED` as its exit code. It needs no JAX, which would take long
to import.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

REFUSED = 3

SECONDS = 8
"""Limit of processor time in seconds; a second is added for every 4 MiB."""

MEMORY = 2**34
"""Bytes that may be reserved, and 64 for every byte of the module."""


def _limit(size: int) -> None:
    with contextlib.suppress(ImportError, ValueError):  # none on Windows, or a lower one already
        import resource

        seconds = SECONDS + size // 2**22
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY + 64 * size,) * 2)


def _context(ir: Any) -> Any:
    """A context with the dialects that JAX has in its own."""
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy
    from jaxlib.mlir.dialects import stablehlo as hlo

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    context.enable_multithreading(False)
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    hlo.register_dialect(context)
    return context


def _decode(data: bytes) -> tuple[str, int]:
    """What to answer, and the exit code."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo as hlo

    with _context(ir) as context, ir.Location.unknown():
        try:
            module = ir.Module.parse(data)
        except ir.MLIRError as error:
            first = error.error_diagnostics[0]
            return json.dumps([first.message, str(first.location)]), REFUSED
        if any(op.operation.name.startswith("vhlo.") for op in module.body.operations):
            with context.attach_diagnostic_handler(lambda _: True):
                try:
                    module = hlo.deserialize_portable_artifact(context, data)
                except ValueError:
                    version = hlo.get_current_version()
                    reason = (
                        f"the StableHLO of this jaxlib ({version}) lacks something that this "
                        "portable artifact has; write it for an older version"
                    )
                    return json.dumps([reason, ""]), REFUSED
        return str(module.operation.get_asm(enable_debug_info=True)), 0


def main() -> None:
    """Reads, decodes and answers."""
    sys.path[:] = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    _limit(len(data))
    answer, code = _decode(data)
    sys.stdout.buffer.write(answer.encode())
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
