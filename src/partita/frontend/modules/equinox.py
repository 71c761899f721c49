"""Equinox: modules are trees, and everything in them except arrays is static."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from partita.frontend.modules.parts import Parts, Structure, Unwrapped

LIBRARY = "equinox"

_ARRAYS = (
    *(jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct),
    *(jax.sharding.Sharding, jax.sharding.PartitionSpec),
)
"""Types of arrays, and of their placeholders in a tree of shapes or shardings."""


class Equinox:
    """The kind of Equinox's modules, as `eqx.filter_jit` takes them."""

    library, needs = LIBRARY, "Module"

    def owns(self, value: Any, everything: bool) -> bool:
        """Returns whether a node is a module that contains anything except arrays.

        Under `eqx.filter_jit`, returns it for any leaf that is not an array.
        """
        if isinstance(value, sys.modules[LIBRARY].Module):
            return not all(map(_is_array, jax.tree.leaves(value)))
        leaf = jax.tree_util.all_leaves([value])
        return everything and leaf and not _is_array(value)

    def leaves_alone(self, value: Any) -> bool:
        """Returns False: trees of modules are always traversed."""
        del value
        return False

    def call(self) -> _Stateless:
        """A call, outside."""
        return _Stateless(self)

    def trace(self) -> _Stateless:
        """A call, inside: the same."""
        return _Stateless(self)

    def unwrapped(self, fn: Any) -> Unwrapped | None:
        """Returns the function under `eqx.filter_jit`, with what it donates."""
        if not type(fn).__module__.startswith("equinox._jit") or not hasattr(fn, "donate_rest"):
            return None
        whole = fn.__wrapped__
        count = len(inspect.signature(whole).parameters)
        donated = [fn.donate_first, *[fn.donate_rest] * (count - 1)][:count]
        numbers = tuple(n for n, donates in enumerate(donated) if donates)
        return Unwrapped(whole, {"donate_argnums": numbers}, everything=True)

    def changed_outside(self, fn: Any, error: Exception) -> None:
        """Returns None: modules of Equinox cannot be changed."""


class _Stateless:
    def __init__(self, kind: Equinox) -> None:
        self._kind = kind

    def split(self, values: Sequence[Any], results: Sequence[Any] | None = None) -> Any:
        """Splits modules; in a trace, only those among the results, as arguments stay the same."""
        if results is not None:
            return [], [self._parts(value) for value in results]
        return [self._parts(value) for value in values]

    def join(self, parts: Sequence[Parts]) -> list[Any]:
        """Puts modules together."""
        return [_joined(each) for each in parts]

    def _parts(self, module: Any) -> Parts:
        leaves, structure = jax.tree.flatten_with_path(module)
        arrays = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_array(leaf)]
        names = tuple(name for name, _ in arrays)
        static = tuple(_HOLE if _is_array(leaf) else leaf for _, leaf in leaves)
        made = Structure(self._kind, names, (structure, static))
        return Parts(made, tuple(leaf for _, leaf in arrays))


_HOLE = "an array"


def _joined(parts: Parts) -> Any:
    structure, static = parts.structure.static
    values = iter(parts.values)
    return jax.tree.unflatten(structure, [next(values) if s is _HOLE else s for s in static])


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, _ARRAYS)
