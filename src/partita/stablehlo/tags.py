"""Names that users give to intermediate values, with `jax.ad_checkpoint.checkpoint_name`.

JAX lowers such a name to nothing. While partita traces, it lowers to a custom call, which
`passes.names` turns into a note on the operation that makes the value.
"""

from __future__ import annotations

from typing import Any

from partita.stablehlo import attributes
from partita.stablehlo import custom_calls as calls
from partita.stablehlo.internals import NAME

CALL = "partita.tag"
"""Target of the custom calls that stand for names while partita traces, and key of the note."""

_SEPARATOR = "\n"


def _lower(context: Any, value: Any, *, name: str) -> list[Any]:
    """The lowering rule, as JAX wants it."""
    return calls.make(CALL, name, value)


LOWERING = (NAME, _lower)
"""How names are lowered while partita traces."""


def of(operation: Any) -> list[str]:
    """The names of the value that an operation makes."""
    text = attributes.get(operation, CALL)
    return text.split(_SEPARATOR) if text else []


def add(operation: Any, names: list[str]) -> None:
    """Gives further names to the value that an operation makes."""
    if names:
        text = _SEPARATOR.join(dict.fromkeys([*of(operation), *names]))
        attributes.put(operation, CALL, text)
