"""Calls back to the host in what JAX has traced: found, taken out, and made results instead.

A print or another callback that gives nothing back needs no place in the program: what it is called
with becomes a result, and it is called once that is there. So it is in order, called once, and with
whole arrays, however these are sharded. In loops, branches and what is differentiated by rules of
its own there is no such result, and the callback is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from partita.errors import UnsupportedError
from partita.stablehlo.internals import LoweringRule, bind_again, lines_of

_QUIET = frozenset({"debug_print", "debug_callback", "io_callback", "inspect_sharding"})
"""Primitives that call the host, and may give nothing back."""

_ANSWERING = frozenset({"pure_callback", "io_callback"})
"""Primitives that call the host for a result."""

_EFFECTS = frozenset({"DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect"})

_CALLS = frozenset({"jit", "pjit", "closed_call"})
"""Primitives that call a function, which can as well be written out."""

_NAMES = {
    "inspect_sharding": "jax.debug.inspect_array_sharding",
    "io_callback": "jax.experimental.io_callback",
    "shard_alike": "jax.experimental.shard_alike",
}
"""Names of primitives, as users call them."""

_LIBRARIES = ("equinox/", "flax/", "optax/", "haiku/")
"""Whose lines say less than those that call them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Callback:
    """A callback that gives nothing back."""

    equation: Any
    count: int
    """Number of arrays that it is called with."""

    def __call__(self, *operands: Any) -> None:
        """Calls the host, or has it called where operands are traced."""
        bind_again(self.equation, operands)


def refuse(jaxpr: Any) -> None:
    """Raises `UnsupportedError` for a callback whose result the program needs."""
    for equation, outer in _every(jaxpr.jaxpr):
        if equation.primitive.name in _ANSWERING and equation.outvars:
            lines = _lines(equation, outer)
            line = _own(lines)
            if lines and lines[0].startswith("equinox/"):
                raise UnsupportedError(
                    f"equinox.error_if at {line} calls back to the host for its result, which "
                    "devices of a partitioned program cannot; set EQX_ON_ERROR=nan, which gives "
                    "NaN where it fails, or EQX_ON_ERROR=off, or check outside of the function"
                )
            raise UnsupportedError(
                f"{_public(equation)} at {line} calls back to the host for a result, which "
                "devices of a partitioned program cannot; compute it with jax.numpy, or outside "
                "of the function, and pass it as an argument"
            )


def has_callbacks(jaxpr: Any) -> bool:
    """Returns whether there are callbacks that give nothing back."""
    return any(map(_is_callback, jaxpr.effects)) or any(
        equation.primitive.name in _QUIET for equation, _ in _every(jaxpr.jaxpr)
    )


def dropped(jaxpr: Any) -> dict[str, str]:
    """Finds what is left out, each with its line, and what to do instead."""
    found = {}
    for equation, outer in _every(jaxpr.jaxpr):
        said = f"{_public(equation)} at {_own(_lines(equation, outer))}"
        inside = next((each for each in outer if not _is_inlined(each)), None)
        if equation.primitive.name == "shard_alike":
            found[said] = "shardings are those of the plan; use partita.constrain on both values"
        elif equation.primitive.name == "inspect_sharding":
            found[said] = "print(plan) and plan.explain say how values are sharded"
        elif _is_quiet(equation) and inside is not None:
            found[said] = (
                f"it is inside of a {inside.primitive.name}, where every device would call it; "
                "return what it shows from there, and call it outside"
            )
    return found


def identities(jaxpr: Any) -> list[LoweringRule]:
    """Returns lowering rules that leave out primitives which only hint at shardings."""
    every = {e.primitive for e, _ in _every(jaxpr.jaxpr) if e.primitive.name == "shard_alike"}
    return [(primitive, lambda context, *values, **_: list(values)) for primitive in every]


def evaluate(jaxpr: Any, values: Sequence[Any]) -> tuple[list[Any], list[tuple[Callback, Any]]]:
    """Computes a closed jaxpr without its callbacks.

    Returns:
      Its results, and every callback that can be called afterwards, with what it is called with.
    """
    known = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    known.update(zip(jaxpr.jaxpr.invars, values, strict=True))
    found: list[tuple[Callback, Any]] = []

    def read(var: Any) -> Any:
        return var.val if hasattr(var, "val") else known[var]

    for equation in jaxpr.jaxpr.eqns:
        operands = [read(var) for var in equation.invars]
        if _is_quiet(equation):
            if equation.primitive.name != "inspect_sharding":
                found.append((Callback(equation, len(operands)), operands))
            continue
        if _is_inlined(equation):
            made, more = evaluate(equation.params["jaxpr"], operands)
            found += more
        else:
            made = bind_again(_without(equation), operands)
        known.update(zip(equation.outvars, made, strict=True))
    return [read(var) for var in jaxpr.jaxpr.outvars], found


def _is_callback(effect: Any) -> bool:
    return type(effect).__name__ in _EFFECTS


def _is_quiet(equation: Any) -> bool:
    return equation.primitive.name in _QUIET and not equation.outvars


def _is_inlined(equation: Any) -> bool:
    """Returns whether it calls a function with callbacks, and says nothing of shardings."""
    if equation.primitive.name not in _CALLS or not any(map(_is_callback, equation.effects)):
        return False
    said = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return all(type(each).__name__ == "UnspecifiedValue" for each in said)


def _every(jaxpr: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every equation, and those that it is inside of, innermost first."""
    for equation in jaxpr.eqns:
        yield equation, outer
        if "pallas" not in equation.primitive.name:
            for inner in _jaxprs(equation.params):
                yield from _every(inner, (equation, *outer))


def _jaxprs(params: Any) -> Iterator[Any]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def _without(equation: Any) -> Any:
    """An equation without the callbacks in what it calls."""
    if not any(map(_is_callback, equation.effects)):
        return equation
    params = {name: _stripped(value) for name, value in equation.params.items()}
    return equation.replace(params=params, effects=_others(equation.effects))


def _stripped(value: Any) -> Any:
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map(_stripped, value))
    if hasattr(value, "consts"):
        return value.replace(jaxpr=_stripped(value.jaxpr))
    if hasattr(value, "eqns"):
        kept = [_without(equation) for equation in value.eqns if not _is_quiet(equation)]
        return value.replace(eqns=kept, effects=_others(value.effects))
    return value


def _others(effects: Any) -> Any:
    return type(effects)(effect for effect in effects if not _is_callback(effect))


def _public(equation: Any) -> str:
    """Returns the name of what a user has called."""
    name: str = equation.primitive.name
    return _NAMES.get(name, f"jax.{name.replace('debug_', 'debug.')}")


def _lines(equation: Any, outer: Sequence[Any]) -> list[str]:
    """The lines of an equation, and of those that it is inside of."""
    return [line for each in (equation, *outer) for line in lines_of(each)]


def _own(lines: Sequence[str]) -> str:
    """The first line of a user's file; that of a library only if there is none."""
    own = (line for line in lines if not line.startswith(_LIBRARIES))
    return next(own, lines[0] if lines else "an unknown line")
