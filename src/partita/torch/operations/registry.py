"""The table of operations, by the name of the overload in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

OPERATIONS: dict[str, Function] = {}
"""Function of each operation, by the name that `str` gives its overload."""


def operation(*overloads: Any) -> Callable[[_F], _F]:
    """Registers what an operation computes, so that modules that use it can be planned.

    Args:
      *overloads: of the operation, such as `torch.ops.mylib.scale.default`, or their names. The
        function takes arrays where the operation takes tensors, and all else as it is.

    Example:
      >>> @operation("mylib.double.default")
      ... def double(x):
      ...     return 2 * x
    """

    def register(function: _F) -> _F:
        for overload in overloads:
            OPERATIONS[str(overload)] = function
        return function

    return register


def aten(names: str) -> Callable[[_F], _F]:
    """Registers a function for operations of ATen; a name without an overload is the default."""
    return operation(
        *(f"aten.{name if '.' in name else f'{name}.default'}" for name in names.split())
    )


def table(rows: Mapping[str, Function]) -> None:
    """Registers functions that compute what operations of ATen do, of the same arguments."""
    for names, function in rows.items():
        aten(names)(function)
