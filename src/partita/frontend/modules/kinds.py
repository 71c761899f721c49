"""The libraries whose modules are known. None is imported: who passes a module has done so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from partita.frontend.modules.equinox import Equinox
from partita.frontend.modules.nnx import Nnx
from partita.frontend.modules.parts import Kind, Parts, Unwrapped

KINDS: tuple[Kind, ...] = (Nnx(), Equinox())


def imported() -> list[Kind]:
    """Returns the kinds whose library is imported, in a supported version."""
    return [kind for kind in KINDS if hasattr(sys.modules.get(kind.library), kind.needs)]


def owner(value: Any, kinds: Sequence[Kind], everything: bool) -> Kind | None:
    """The kind that splits a node of a tree."""
    return next((kind for kind in kinds if kind.owns(value, everything)), None)


def nodes(tree: Any, kinds: Sequence[Kind], everything: bool) -> tuple[list[tuple[Any, Any]], Any]:
    """Returns the leaves of a tree with their paths; modules, split or not, are leaves.

    Nodes that the kinds leave alone are leaves as well.
    """

    def ends(value: Any) -> bool:
        if isinstance(value, Parts):
            return True
        alone = any(kind.leaves_alone(value) for kind in kinds)
        return alone or owner(value, kinds, everything) is not None

    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=ends)


def changed_outside(fn: Any, error: Exception) -> str | None:
    """Names what a function tried to change although it is not an argument; None for other
    errors."""
    fn = getattr(fn, "fn", fn)
    named = (kind.changed_outside(fn, error) for kind in imported())
    return next((name for name in named if name is not None), None)


def unwrapped(fn: Callable[..., Any]) -> Unwrapped | None:
    """Returns the function under the `jit` of a library; None for other functions."""
    return next((found for kind in imported() if (found := kind.unwrapped(fn))), None)
