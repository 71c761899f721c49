"""Brings a module into the one shape that the importer and the emitter share: a single function
`main`, no calls, every use of a constant with its own copy, no dead operations.
"""

from __future__ import annotations

from typing import Any

from partita.errors import UnsupportedError
from partita.program.op_traits import traits
from partita.stablehlo import (
    composites,
    constraints,
    liveness,
    manual_regions,
    shard_map,
    tags,
    zeros,
)
from partita.stablehlo.dimensions import unmerge
from partita.stablehlo.expansions import expand
from partita.stablehlo.mlir import (
    attributes_of,
    hlo,
    inlined,
    ir,
    main_function,
    parse,
    run_passes,
)

COMPOSITE = "stablehlo.composite"

_SYMBOLS = {"func.call": "callee", COMPOSITE: "decomposition"}
"""Operations that stand for a function of the module, and the attribute that names it."""

_SHARDINGS = ("sdy.sharding", "mhlo.sharding")

_REWRITES = (
    "stablehlo-legalize-composite-to-call",
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}",
    "stablehlo-canonicalize-dynamism",
)


def prepare(text: str) -> str:
    """Inlines calls, splits shared constants, drops what is dead or adds zeros; the text."""
    module = parse(text)
    _rewrite(module)
    inline(module)
    constraints.note(module, main_function(module))
    shard_map.note(module, main_function(module))
    tags.note(main_function(module))
    # Handles to erased operations are unsafe to keep: go on with a fresh parse.
    module = parse(module.operation.get_asm(enable_debug_info=True))
    run_passes(module, "symbol-dce,sdy-constant-or-scalar-splitter")
    manual_regions.unfold(main_function(module))
    zeros.drop_added_zeros(main_function(module))
    _copy_for_each_use(main_function(module))
    liveness.drop_dead(main_function(module))
    unmerge(main_function(module))
    text = module.operation.get_asm(enable_debug_info=True)
    # The splitter turns constants into Shardy's own, which XLA does not take.
    return text.replace("sdy.constant dense", "stablehlo.constant dense")


def inline(module: Any) -> None:
    """Brings all of a program into the function `main`."""
    _inline_calls(module)
    _make_main(module)


def with_rules(text: str) -> Any:
    """Parses a prepared module and has Shardy attach a sharding rule to every operation."""
    module = parse(text)
    run_passes(module, "func.func(sdy-populate-op-sharding-rules)")
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


def _rewrite(module: Any) -> None:
    """Replaces operations that are other ones in disguise, if there are any."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if traits(op.name).treatment == "rewritten":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    found = [op for op in found if op.name != COMPOSITE or not composites.restore(op)]
    for op in found:
        expand(op)
    if found:
        hlo.register_stablehlo_passes()
        passes = ",".join(_REWRITES)
        run_passes(module, f"func.func({passes})")


def _calls(operation: Any) -> list[Any]:
    found = []

    def visit(op: Any) -> Any:
        if op.name in _SYMBOLS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found


def _inline_calls(module: Any) -> None:
    symbols = ir.SymbolTable(module.operation)
    main = main_function(module)
    while calls := _calls(main.operation):
        for call in calls:
            name = call.attributes[_SYMBOLS[call.name]].value
            callee = symbols[name]
            if not callee.regions[0].blocks:
                raise UnsupportedError(
                    f"the module calls the function {name!r}, which it declares but does not have"
                )
            with ir.InsertionPoint(call):
                results = inlined(callee, call.operands, call.location)
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()


def _make_main(module: Any) -> None:
    """Calls the function to plan `main` and makes it the only public one, as JAX expects it."""
    main = main_function(module)
    for view in module.body.operations:
        if view.operation.name == "func.func":
            view.attributes["sym_visibility"] = ir.StringAttr.get("private")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    main.attributes["sym_name"] = ir.StringAttr.get("main")


def _copy_for_each_use(main: Any) -> None:
    """Gives every use of a constant or iota its own copy, those by other constants included."""
    shared = []

    def visit(op: Any) -> Any:
        if traits(op.name).treatment == "generated" or op.name == "sdy.constant":
            uses = [(use.owner, use.operand_number) for use in op.results[0].uses]
            if len(uses) > 1:
                shared.append((op, uses[1:]))
        return ir.WalkResult.ADVANCE

    main.operation.walk(visit)
    for op, uses in shared:
        for owner, number in uses:
            with ir.InsertionPoint(op):
                owner.operands[number] = op.clone().results[0]
