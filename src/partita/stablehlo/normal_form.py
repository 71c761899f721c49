"""The one shape of a module that the importer and the emitter share: a single function `main`, no
calls, every use of a constant with its own copy, no dead operations.
"""

from __future__ import annotations

from typing import Any

from partita.stablehlo import passes
from partita.stablehlo.mlir import attributes_of, ir, main_function, parse
from partita.stablehlo.passes.driver import run, run_checked

_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


def prepare(text: str) -> str:
    """Brings a module into this shape, by `passes.READING`; the text."""
    module = run(parse(text), passes.READING)
    text = module.operation.get_asm(enable_debug_info=True)
    # The splitter turns constants into Shardy's own, which XLA does not take.
    return text.replace("sdy.constant dense", "stablehlo.constant dense")


def with_rules(text: str) -> Any:
    """Parses a prepared module and has Shardy attach a sharding rule to every operation."""
    module = parse(text)
    run_checked(module, "func.func(sdy-populate-op-sharding-rules)")
    return module


def without_shardings(text: str) -> str:
    """A module without meshes and without the shardings of its arguments and results."""
    if "sdy.mesh" not in text and "mhlo.sharding" not in text:
        return text
    module = parse(text)
    main = main_function(module)
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh":
            view.operation.erase()
    for which in ("arg_attrs", "res_attrs"):
        kept = [
            ir.DictAttr.get({a.name: a.attr for a in attributes if a.name not in _SHARDINGS})
            for attributes in attributes_of(main, which, 0)
        ]
        if kept:
            main.attributes[which] = ir.ArrayAttr.get(kept)
    return str(module.operation.get_asm(enable_debug_info=True))
