"""Names that users give to intermediate values, with `jax.ad_checkpoint.checkpoint_name`.

JAX lowers such a name to nothing. While partita traces, it lowers to a custom call, which
`passes.names` turns into a note on the operation that makes the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo import attributes
from partita.stablehlo import custom_calls as calls
from partita.stablehlo.internals import NAME
from partita.stablehlo.mlir import hlo, maker

CALL = "partita.tag"
"""Target of the custom calls that stand for names while partita traces, and key of the note."""

_SEPARATOR = "\n"


def _lower(context: Any, value: Any, *, name: str) -> list[Any]:
    """The lowering rule, as JAX wants it."""
    return calls.make(CALL, name, value)


LOWERING = (NAME, _lower)
"""Primitive of names, and its lowering while partita traces."""


def of(operation: Any) -> list[str]:
    """The names of the value that an operation makes."""
    text = attributes.get(operation, CALL)
    return text.split(_SEPARATOR) if text else []


def named(value: Any, names: Sequence[str]) -> Any:
    """A value with further names.

    It is the value itself, unless no operation makes it alone: then a reshape, at the insertion
    point, to the shape that it has.
    """
    if not names:
        return value
    made = maker(value)
    if made is None or len(made.results) > 1 or traits(made.name).treatment == "structure":
        value = hlo.reshape(value.type, value)
        made = value.owner
    attributes.put(made, CALL, _SEPARATOR.join(dict.fromkeys([*of(made), *names])))
    return value
