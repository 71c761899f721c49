"""Brings a module into the one shape that the importer and the emitter share: a single function
`main`, no calls, every use of a constant with its own copy, no dead operations.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import Any

from partita.errors import UnsupportedError
from partita.program.op_traits import traits
from partita.stablehlo import (
    composites,
    constraints,
    liveness,
    manual_regions,
    rolls,
    shard_map,
    tags,
    unread,
    zeros,
)
from partita.stablehlo.dimensions import unfuse, unmerge
from partita.stablehlo.expansions import expand
from partita.stablehlo.limits import OPERATIONS
from partita.stablehlo.mlir import (
    afresh,
    attributes_of,
    find,
    hlo,
    inlined,
    ir,
    main_function,
    parse,
    run_passes,
)
from partita.stablehlo.refusals import check_all

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
    rolls.note(module, main_function(module))
    module = afresh(module)  # handles to erased operations are unsafe to keep
    _run(module, "symbol-dce,sdy-constant-or-scalar-splitter")
    manual_regions.unfold(main_function(module))
    zeros.drop_added_zeros(main_function(module))
    unread.drop_unread(main_function(module))
    _copy_for_each_use(main_function(module))
    liveness.drop_dead(main_function(module))
    unmerge(main_function(module))
    unfuse(main_function(module))
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
    _run(module, "func.func(sdy-populate-op-sharding-rules)")
    return module


def _run(module: Any, passes: str) -> None:
    """Runs passes; where one fails, what the program must not contain is the better reason."""
    try:
        run_passes(module, passes)
    except UnsupportedError:
        check_all(module)
        raise


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
    found = find(module.operation, lambda op: traits(op.name).treatment == "rewritten")
    found = [op for op in found if op.name != COMPOSITE or not composites.restore(op)]
    for op in found:
        expand(op)
    if found:
        hlo.register_stablehlo_passes()
        passes = ",".join(_REWRITES)
        _run(module, f"func.func({passes})")


def _calls(operation: Any) -> tuple[list[Any], int]:
    """The calls in an operation, and how many operations it contains."""
    found, count = [], 0

    def visit(op: Any) -> Any:
        nonlocal count
        count += 1
        if op.name in _SYMBOLS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    operation.walk(visit)
    return found, count


def _callee(call: Any) -> str:
    return str(call.attributes[_SYMBOLS[call.name]].value)


def _inline_calls(module: Any) -> None:
    symbols = ir.SymbolTable(module.operation)
    main = main_function(module)
    if not (calls := _calls(main.operation)[0]):
        return
    _check_size(symbols, main)
    while calls:
        for call in calls:
            callee = symbols[_callee(call)]
            with ir.InsertionPoint(call):
                results = inlined(callee, call.operands, call.location)
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()
        calls, _ = _calls(main.operation)


def _check_size(symbols: Any, main: Any) -> None:
    """Raises `UnsupportedError` if a program cannot be inlined, or would be too large then."""
    called: dict[str, Counter[str]] = {}
    own: dict[str, int] = {}
    waiting = [main.name.value]
    while waiting:
        name = waiting.pop()
        if not symbols[name].regions[0].blocks:
            raise UnsupportedError(
                f"the module calls the function {name!r}, which it declares but does not have"
            )
        calls, own[name] = _calls(symbols[name].operation)
        called[name] = Counter(map(_callee, calls))
        waiting += [callee for callee in called[name] if callee not in called]
    try:
        order = list(TopologicalSorter(called).static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise UnsupportedError(
            f"the function {error.args[1][0]!r} calls itself ({circle}); write it as a loop"
        ) from None
    sizes: dict[str, int] = {}
    for name in order:  # what is called comes first
        calls_of = called[name].items()
        size = own[name] + sum(count * sizes[callee] for callee, count in calls_of)
        sizes[name] = min(size, OPERATIONS + 1)
    if sizes[main.name.value] > OPERATIONS:
        raise UnsupportedError(
            f"with its calls inlined the program has more than {OPERATIONS:,} operations, the most "
            "that can be planned; write what is repeated as a loop"
        )


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
