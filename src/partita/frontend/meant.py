"""Keyword arguments of a call that mixes options of partita with arguments of the function.

`plan(fn, x, mesh="data=8", seed=3)` sets the seed of the search, and passes everything else to
`fn`. A function may have a parameter `seed`, too; then one of the two would be ignored silently. A
misspelt option would become an argument that the function does not know.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from partita.errors import OptionError, PartitaWarning, closest, warn
from partita.frontend.calling import name_of

_P = ParamSpec("_P")
_T = TypeVar("_T")


def apart(planner: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator of a function with options of its own that plans one called `fn`.

    Its `*args` and `**kwargs` are the arguments of `fn`.

    Raises:
      OptionError: a keyword argument is neither an option nor a parameter of `fn`; or it is both,
        and `fn` needs it.
    """
    parameters = list(inspect.signature(planner).parameters.values())
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    place = [p.name for p in parameters].index("fn")

    @functools.wraps(planner)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if len(args) > place:
            check(planner.__name__, options, args[place], args[place + 1 :], kwargs)
        return planner(*args, **kwargs)

    return checked


def options_only(planner: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates a function that plans another one, whose arguments are given later.

    Raises:
      OptionError: a keyword argument is not an option.
    """
    options = inspect.signature(planner).parameters

    @functools.wraps(planner)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs:
            if name not in options:
                raise OptionError(
                    f"{planner.__name__} has no option {name!r}{closest(name, options)}; arguments "
                    "of the function are given when it is called"
                )
        return planner(*args, **kwargs)

    return checked


def check(
    planner: str, options: Sequence[str], fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises or warns if a keyword argument is ambiguous between option and argument.

    Args:
      planner: name of the planning function, `plan` for one.
      options: the names of its options.
      fn: the function that it plans.
      args: positional arguments of that function.
      kwargs: all keyword arguments.
    """
    parameters = _parameters(fn)
    if parameters is None:
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if name not in options and name not in named and not takes_any:
            raise OptionError(
                f"{planner} has no option {name!r}, and {name_of(fn)} has no parameter of that "
                f"name{closest(name, [*options, *named])}"
            )
    given = {p.name for p in parameters[: len(args)]} | _bound(fn)
    for name in kwargs:
        if name in options and name in named and name not in given:
            _both(planner, name, name_of(fn), named[name])


def _both(planner: str, name: str, function: str, parameter: inspect.Parameter) -> None:
    """Warns that a name is both an option and a parameter, and is taken as the option; raises
    `OptionError` if the parameter has no default."""
    what = f"{name}= is an option of {planner}, and a parameter of {function}, too; it is taken as"
    bind = f"functools.partial({function}, {name}=...)"
    if parameter.default is parameter.empty:
        raise OptionError(
            f"{what} the option, and {function} lacks its own; give that by position, or plan "
            f"{bind}"
        )
    warn(
        f"{what} the option, and {function} keeps its own, which is {parameter.default!r}; plan "
        f"{bind} to say which it has",
        PartitaWarning,
    )


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    """The parameters of a function, if it says which it has."""
    if not callable(fn):
        return None
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None


def _bound(fn: Any) -> set[str]:
    """The parameters that `functools.partial` has bound."""
    found: set[str] = set()
    while isinstance(fn, functools.partial):
        found |= fn.keywords.keys()
        fn = fn.func
    return found
