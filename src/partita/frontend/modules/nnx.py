"""Flax NNX: modules that are changed in place, and that refer to each other.

They are split as by `nnx.jit`: into a graph, which is static, and the values of its variables.
Changes that a function makes, to the graph too, are written back to the caller's modules.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from partita.errors import PartitaWarning, TraceError, warn
from partita.frontend.modules.parts import Key, Parts, Structure, Unwrapped
from partita.stablehlo.internals import jit_options

LIBRARY = "flax.nnx"

_AXES = ("out_sharding", "sharding_names", "sharding")
"""Metadata of variables with names of axes: the latter two in older versions."""


def _graphs() -> Any:
    """NNX's own module for graphs."""
    return sys.modules[LIBRARY].graphlib


class Nnx:
    """The kind of NNX's modules, optimizers, and variables that are arguments by themselves."""

    library, needs = LIBRARY, "graphlib"

    def owns(self, value: Any, everything: bool) -> bool:
        """Returns whether a node of a tree is a part of a graph."""
        del everything
        return bool(_graphs().is_graph_node(value)) and not isinstance(value, jax.Ref)

    def leaves_alone(self, value: Any) -> bool:
        """A state, which holds variables: it is passed and returned as a tree of arrays."""
        return isinstance(value, sys.modules[LIBRARY].State)

    def call(self) -> _Call:
        """A call, outside."""
        return _Call(self)

    def trace(self) -> _Trace:
        """A call, inside."""
        return _Trace(self)

    def unwrapped(self, fn: Any) -> Unwrapped | None:
        """Returns the function under `nnx.jit`."""
        if not type(fn).__module__.startswith(LIBRARY) or not hasattr(fn, "jitted_fn"):
            return None
        if getattr(fn, "partial_args", ()):
            raise TraceError(
                f"{fn.__name__} has modules bound to it by nnx.jit_partial or nnx.cached_partial; "
                "give the function itself, and the modules as arguments"
            )
        if getattr(fn, "in_shardings", None) or getattr(fn, "out_shardings", None):
            warn(
                f"{fn.__name__}: the shardings that its nnx.jit has are not used; give them as "
                "tactics, or to pt.simulate",
                PartitaWarning,
            )
        return Unwrapped(fn.fun, jit_options(fn.jitted_fn) or {})

    def changed_outside(self, fn: Any, error: Exception) -> str | None:
        """The variables that a function has tried to change and that it closes over."""
        if "trace level" not in str(error):
            return None
        names = {id(variable): name for name, variable in _outside(fn)}
        found, place = "", error.__traceback__
        while place is not None:
            values = place.tb_frame.f_locals.values()
            found = next((names[id(value)] for value in values if id(value) in names), found)
            place = place.tb_next
        return found or "a variable of a module"


@dataclasses.dataclass(frozen=True)
class Named:
    """The value of a variable that says what its dimensions are called."""

    value: Any
    metadata: tuple[tuple[str, Any], ...]

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the variable, as the variable gives them."""
        return dict(self.metadata)


jax.tree_util.register_pytree_with_keys(
    Named,
    lambda named: ([(Key(""), named.value)], named.metadata),
    lambda metadata, values: Named(next(iter(values)), metadata),
)


class _Call:
    """A call, outside: results are written back to the modules that it split."""

    def __init__(self, kind: Nnx) -> None:
        self._kind = kind
        self._outer = _graphs().RefMap()
        self._sent: list[Any] = []
        self._modules: list[tuple[Any, Any]] = []

    def split(self, values: Sequence[Any]) -> list[Parts]:
        """Splits modules; what they share is in the first of them."""
        made = []
        for value in values:
            graph, names, arrays = _flat(value, self._outer)
            self._sent += arrays
            self._modules.append((value, graph))
            made.append(Parts(Structure(self._kind, names, graph), tuple(arrays)))
        return made

    def join(self, parts: Sequence[Parts]) -> list[Any]:
        """Puts modules together, and writes to those that were split."""
        if self._are_unchanged(parts):
            return [module for module, _ in self._modules]
        outer = _graphs().IndexMap.from_refmap(self._outer) if len(self._outer) else None
        inner = _graphs().IndexMap()
        return [_joined(each, inner, self._sent, outer) for each in parts]

    def _are_unchanged(self, parts: Sequence[Parts]) -> bool:
        """Returns whether these equal what was split, so that nothing has to be written."""
        return len(parts) == len(self._modules) and all(
            not each.values and each.stays and each.structure.static.with_no_outer_index() == graph
            for each, (_, graph) in zip(parts, self._modules, strict=True)
        )


class _Trace:
    """A call, inside."""

    def __init__(self, kind: Nnx) -> None:
        self._kind = kind
        self._inner = _graphs().IndexMap()
        self._came: list[Any] = []

    def join(self, parts: Sequence[Parts]) -> list[Any]:
        """Puts the arguments together."""
        self._came = [_bare(value) for each in parts for value in each.values]
        return [_joined(each, self._inner, self._came) for each in parts]

    def split(
        self, arguments: Sequence[tuple[Any, bool]], results: Sequence[Any]
    ) -> tuple[list[Parts], list[Parts]]:
        """Splits what arguments have become, without the arrays that stayed, and results.

        Arrays of donated arguments are returned even so: their buffers are given away.
        """
        refs = _graphs().RefMap()
        outer = _graphs().RefMap.from_indexmap(self._inner)
        numbers = {id(value): number for number, value in enumerate(self._came)}

        def parts(value: Any, keeps: bool) -> Parts:
            graph, names, arrays = _flat(value, refs, outer)
            if not keeps:
                return Parts(Structure(self._kind, names, graph), tuple(arrays))
            kept = tuple(numbers.get(id(_bare(array))) for array in arrays)
            returned = [a for a, number in zip(arrays, kept, strict=True) if number is None]
            return Parts(Structure(self._kind, names, graph, kept), tuple(returned))

        changed = [parts(value, not donated) for value, donated in arguments]
        return changed, [parts(value, False) for value in results]


def _flat(value: Any, refs: Any, outer: Any = None) -> tuple[Any, tuple[str, ...], list[Any]]:
    """The graph of a module, and the names and values of its variables."""
    graph, state = _graphs().flatten(value, ref_index=refs, ref_outer_index=outer, graph=True)
    return graph, tuple(map(_name, state.paths)), list(map(_value, state.leaves))


def _name(path: Sequence[Any]) -> str:
    """The path of a variable as Python writes it."""
    return "".join(
        f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in path
    )


def _value(leaf: Any) -> Any:
    """The value of a variable, with the names of its dimensions if it has any."""
    if not isinstance(leaf, sys.modules[LIBRARY].Variable):
        return leaf
    metadata: Mapping[str, Any] = leaf.get_metadata()
    value = leaf.get_raw_value()
    axes = {key: metadata[key] for key in (*_AXES, "sharding_rules") if metadata.get(key)}
    return Named(value, tuple(axes.items())) if axes else value


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Named) else value


def _joined(parts: Parts, inner: Any, sent: Sequence[Any], outer: Any = None) -> Any:
    """A module from its parts, and those of its arrays that did not change from what was sent."""
    values = iter(parts.values)
    structure = parts.structure
    kept = structure.kept or (None,) * len(structure.names)
    arrays = [_bare(next(values) if number is None else sent[number]) for number in kept]
    return _graphs().unflatten(
        structure.static, arrays, index_ref=inner, outer_index_outer_ref=outer
    )


def _outside(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The variables of modules that a function has without taking them, with their names."""
    graphs, variable = _graphs(), sys.modules[LIBRARY].Variable
    fn = inspect.unwrap(getattr(fn, "func", fn))
    held = [(type(fn).__name__, fn), ("self", getattr(fn, "__self__", None))]
    if inspect.isfunction(fn):
        known = inspect.getclosurevars(fn)
        held += [*known.nonlocals.items(), *known.globals.items()]
    for name, value in held:
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=graphs.is_graph_node):
            if graphs.is_graph_node(leaf):
                for below, node in graphs.iter_graph(leaf, graph=True):
                    if isinstance(node, variable):
                        yield name + jax.tree_util.keystr(path) + _name(below), node
