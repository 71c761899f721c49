"""Calls written out: all of a program in the function `main`."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import Any

from partita.errors import UnsupportedError
from partita.stablehlo.limits import OPERATIONS
from partita.stablehlo.mlir import find, inlined, ir, main_function

_SYMBOLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Operations that stand for a function of the module, and the attribute that names it."""


def inline(module: Any) -> None:
    """Brings all of a program into the function `main`, the only public one, as JAX expects it."""
    main = main_function(module)
    if calls := _calls(main):
        symbols = ir.SymbolTable(module.operation)
        _check_size(symbols, main)
        while calls:
            for call in calls:
                callee = symbols[_callee(call)]
                with ir.InsertionPoint(call):
                    results = inlined(callee, call.operands, call.location)
                for old, new in zip(call.results, results, strict=True):
                    old.replace_all_uses_with(new)
                call.erase()
            calls = _calls(main)
    for view in module.body.operations:
        if view.operation.name == "func.func":
            view.attributes["sym_visibility"] = ir.StringAttr.get("private")
    main.attributes["sym_visibility"] = ir.StringAttr.get("public")
    main.attributes["sym_name"] = ir.StringAttr.get("main")


def _calls(function: Any) -> list[Any]:
    return find(function.operation, lambda op: op.name in _SYMBOLS)


def _callee(call: Any) -> str:
    return str(call.attributes[_SYMBOLS[call.name]].value)


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
        own[name] = len(find(symbols[name].operation, lambda op: True))
        called[name] = Counter(map(_callee, _calls(symbols[name])))
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
