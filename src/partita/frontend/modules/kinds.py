"""The libraries whose modules are known. None is imported: who passes a module has done so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

from partita.frontend.modules.equinox import Equinox
from partita.frontend.modules.nnx import Nnx
from partita.frontend.modules.parts import Kind, Unwrapped

KINDS: tuple[Kind, ...] = (Nnx(), Equinox())


def imported() -> list[Kind]:
    """The kinds of which there may be modules."""
    return [kind for kind in KINDS if kind.library in sys.modules]


def owner(value: Any, kinds: list[Kind], everything: bool) -> Kind | None:
    """The kind that splits a node of a tree."""
    return next((kind for kind in kinds if kind.owns(value, everything)), None)


def nodes(tree: Any, kinds: list[Kind], everything: bool) -> tuple[list[tuple[Any, Any]], Any]:
    """The leaves of a tree with their paths, modules and what kinds leave alone being leaves."""

    def ends(value: Any) -> bool:
        alone = any(kind.leaves_alone(value) for kind in kinds)
        return alone or owner(value, kinds, everything) is not None

    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=ends)


def unwrapped(fn: Callable[..., Any]) -> Unwrapped | None:
    """What is under the `jit` of a library; None for other functions."""
    return next((found for kind in imported() if (found := kind.unwrapped(fn))), None)
