"""Names that users give to intermediate values, with `jax.ad_checkpoint.checkpoint_name`.

JAX lowers such a name to nothing. While partita traces, it lowers to a custom call, which `note`
turns into an attribute of the operation that makes the value.
"""

from __future__ import annotations

from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo import attributes
from partita.stablehlo import custom_calls as calls
from partita.stablehlo.internals import NAME
from partita.stablehlo.mlir import find, hlo, ir

_TARGET = "partita.tag"
_SEPARATOR = "\n"


def _lower(context: Any, value: Any, *, name: str) -> list[Any]:
    """The lowering rule, as JAX wants it."""
    return calls.make(_TARGET, name, value)


LOWERING = (NAME, _lower)
"""How names are lowered while partita traces."""


def note(main: Any) -> None:
    """Replaces the calls that stand for names by attributes of what makes the values."""
    for call in _found(main):
        value = call.operands[0]
        maker = value.owner if isinstance(value, ir.OpResult) else None
        if maker is None or len(maker.results) > 1 or traits(maker.name).treatment == "structure":
            # Nothing else makes this value alone: a reshape to the shape that it has does.
            with ir.InsertionPoint(call), call.location:
                value = hlo.reshape(value.type, value)
            maker = value.owner
        add(maker, [calls.said(call)])
        call.results[0].replace_all_uses_with(value)
        call.erase()


def of(operation: Any) -> list[str]:
    """The names of the value that an operation makes."""
    text = attributes.get(operation, _TARGET)
    return text.split(_SEPARATOR) if text else []


def add(operation: Any, names: list[str]) -> None:
    """Gives further names to the value that an operation makes."""
    if names:
        text = _SEPARATOR.join(dict.fromkeys([*of(operation), *names]))
        attributes.put(operation, _TARGET, text)


def _found(main: Any) -> list[Any]:
    return find(main.operation, lambda op: calls.is_one(op, _TARGET))
