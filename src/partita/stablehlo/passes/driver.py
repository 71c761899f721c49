"""The driver of rewrites: patterns, which replace operations of a module, and passes in order.

A *pass* changes a module in place: a function of the module, or a pipeline of MLIR's own passes in
MLIR's syntax. Most are a `Pattern`: which operations it is for, and what stands for their results.
Results of the old operation are then read from the new ones, which take over its names, and the old
operation is erased. What only it has read is dead; `liveness.drop_dead` erases that, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from partita.errors import UnsupportedError
from partita.program.ir import Operation, Program
from partita.stablehlo import tags
from partita.stablehlo.mlir import afresh, find, ir, main_function, run_passes
from partita.stablehlo.refusals import check_all

Pass = str | Callable[[Any], object]
"""A pipeline of MLIR, or a function that changes a module in place."""

Rewrite = Callable[[Any], Sequence[Any] | None]
"""A function from an operation to a value for each of its results, which it builds before it; None
leaves the operation as it is."""


@dataclasses.dataclass(frozen=True)
class ForDevices:
    """A pass that depends on the number of devices, and the operations that it is for."""

    concerns: Callable[[Program, Operation, int], bool]
    """A quick check of whether an operation of a program may be rewritten for so many devices."""
    rewrite: Callable[[int, Any], bool]
    """Changes a module in place for so many devices; returns whether it has."""


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Replaces operations by others that compute the same."""

    matches: Callable[[Any], bool]
    """Selects operations; all are found before the first is replaced."""
    rewrite: Rewrite

    def __call__(self, module: Any) -> bool:
        """Rewrites the function `main` of a module; returns whether anything has changed."""
        return self.run(main_function(module))

    def run(self, root: Any) -> bool:
        """Rewrites what is inside of a module or function, inner operations first, then in order.

        Returns:
          Whether anything has changed.
        """
        found = find(root.operation, self.matches)[::-1]
        changed = False
        while found:
            op = found.pop()  # a handle must not outlive what it is in
            with ir.InsertionPoint(op), op.location:
                values = self.rewrite(op)
                if values is None:
                    continue
                for old, new in zip(op.results, values, strict=True):
                    old.replace_all_uses_with(tags.named(new, tags.of(op)))
            op.erase()
            changed = True
        return changed


def run(module: Any, passes: Iterable[Pass]) -> Any:
    """Runs passes in order; returns the module, which has been read anew where MLIR changed it."""
    for each in passes:
        if isinstance(each, str):
            module = afresh(module)  # handles to what MLIR erases are unsafe to keep
            run_checked(module, each)
        else:
            each(module)
    return module


def run_checked(module: Any, passes: str) -> None:
    """Runs MLIR's passes; where one fails, what the program must not contain is the better reason.

    Raises:
      UnsupportedError: a pass fails.
    """
    try:
        run_passes(module, passes)
    except UnsupportedError:
        check_all(module)
        raise
