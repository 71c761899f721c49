"""Lets one thread at a time work on the plans of a program, which share caches.

The caches hold forms of operations, costs and layouts. They number their entries, so two threads
must not add to them at once. Running a planned function uses none of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_S = TypeVar("_S")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def alone(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """Decorator of a method of a plan, during which no other thread works on plans of its program.

    The plan has it as `done`, a `Scheduled`.
    """

    @functools.wraps(method)
    def exclusively(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        plan: Any = self
        with plan.done.stage.context.exclusive:
            return method(self, *args, **kwargs)

    return exclusively
