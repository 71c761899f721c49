"""Finds changes of arguments in place that a function does not return, and that are lost.

JAX gives a function copies of the trees that are its arguments. A function that changes one and
does not return it trains nothing, and neither JAX nor a plan of it would say so.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import jax

from partita.frontend.calling import name_of
from partita.stablehlo.internals import inputs_of, used_by

_CONTAINERS = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
"""Keys of dicts and sequences. Those of classes have others."""

_Path = tuple[Any, ...]


class Watched:
    """A function, and the changes that it made to its arguments when it was last traced.

    It does not keep a plain function alive: JAX remembers traces by function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn: Callable[[], Any]
        self._fn = weakref.ref(fn) if isinstance(fn, types.FunctionType) else lambda: fn
        self.__name__ = name_of(fn)
        self.lost: list[_Path] = []
        """Paths in `(args, kwargs)` of changed values that are not results."""

    @property
    def __wrapped__(self) -> Any:
        return self._fn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, and looks at its arguments afterwards."""
        made, self.lost, _ = self._called(args, kwargs)
        return made

    def _called(self, args: Any, kwargs: Any) -> tuple[Any, list[_Path], list[Any]]:
        before = dict(_leaves(args, kwargs))
        made = self._fn()(*args, **kwargs)
        after = _leaves(args, kwargs)
        again = dict(_leaves(args, kwargs))  # some classes make arrays anew
        returned = set(map(id, jax.tree.leaves(made)))
        lost = [
            (path, leaf)
            for path, leaf in after
            if before.get(path, self) is not leaf
            and again[path] is leaf
            and id(leaf) not in returned
        ]
        return made, [path for path, _ in lost], [leaf for _, leaf in lost]

    def missed(self, args: Any, kwargs: Any, jitted: Callable[[Any], Any]) -> list[_Path]:
        """Returns the paths of `lost` whose loss matters.

        A change of an object always matters. An item of a dict or list may be replaced by a value
        that is computed from the same argument, or that is used later on. Batches are cut and
        normalised that way, and nothing is lost.

        Args:
          args: the arguments as they were traced.
          kwargs: likewise.
          jitted: puts a function under `jax.jit` with the same static arguments.
        """
        if all(isinstance(path[-1], _CONTAINERS) for path in self.lost):
            return self._dead(args, kwargs, jitted)
        return [path for path in self.lost if not isinstance(path[-1], _CONTAINERS)]

    def _dead(self, args: Any, kwargs: Any, jitted: Callable[[Any], Any]) -> list[_Path]:
        def both(*args: Any, **kwargs: Any) -> Any:
            made, _, lost = self._called(args, kwargs)
            return made, lost

        both.__wrapped__ = self._fn()  # type: ignore[attr-defined]
        jaxpr = jitted(both).trace(*args, **kwargs).jaxpr
        count = len(jaxpr.out_avals) - len(self.lost)
        arrays = [path for path, leaf in _leaves(args, kwargs) if hasattr(leaf, "dtype")]
        arguments = [path[1] for path in arrays]
        return [
            path
            for n, path in enumerate(self.lost, count)
            if not used_by(jaxpr, n, range(count))
            and any(arguments[i] != path[1] for i in inputs_of(jaxpr, n))
        ]


def _leaves(args: Any, kwargs: Any) -> list[tuple[_Path, Any]]:
    """The leaves of arguments with their paths."""
    return jax.tree_util.tree_leaves_with_path((args, kwargs))


def watched(fn: Any) -> Any:
    """A function that is watched; functions under `jax.jit` are not."""
    if not callable(fn):
        return fn
    if not isinstance(fn, types.FunctionType):
        return Watched(fn)
    return _WATCHED.setdefault(fn, Watched(fn))


_WATCHED: weakref.WeakKeyDictionary[Any, Watched] = weakref.WeakKeyDictionary()
"""Watched functions that are alive, so that JAX need not trace them again."""
