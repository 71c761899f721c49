"""A module as a pytree: its arrays are the leaves, all else is part of the structure."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from partita.escape import printed


class Call(Protocol):
    """One call of a function of modules, from splitting its arguments to taking its results.

    All modules of a call go through one of these, so that sharing between them is preserved.
    """

    def split(self, values: Sequence[Any]) -> list[Parts]:
        """Splits the modules among the arguments of the call."""

    def join(self, parts: Sequence[Parts]) -> list[Any]:
        """Puts the modules among the results together.

        Those that belong to an argument that the function may change are written to it.
        """


class Trace(Protocol):
    """One call inside of the function, where arrays are traced."""

    def join(self, parts: Sequence[Parts]) -> list[Any]:
        """Puts the arguments together."""

    def split(
        self, arguments: Sequence[tuple[Any, bool]], results: Sequence[Any]
    ) -> tuple[list[Parts], list[Parts]]:
        """Splits what arguments have become, each with whether it is donated; then results."""


class Kind(Protocol):
    """The modules of one library."""

    library: str
    """The Python module that has been imported if there is any of them."""
    needs: str
    """An attribute of that module in the versions that are supported."""

    def owns(self, value: Any, everything: bool) -> bool:
        """Returns whether a node of a tree is split by this kind.

        Args:
          value: the node.
          everything: whether the function is one of the library's `jit`.
        """

    def leaves_alone(self, value: Any) -> bool:
        """Returns whether a node is a tree of arrays already, although modules are inside."""

    def call(self) -> Call:
        """A call, outside."""

    def trace(self) -> Trace:
        """A call, inside."""

    def unwrapped(self, fn: Any) -> Unwrapped | None:
        """Returns the function under the library's own `jit`; None for other functions."""

    def changed_outside(self, fn: Any, error: Exception) -> str | None:
        """Names what a function tried to change although it is not an argument; None for others."""


@dataclasses.dataclass(frozen=True)
class Unwrapped:
    """A function without its library's `jit`, and that `jit`'s options."""

    fn: Callable[..., Any]
    options: Mapping[str, tuple[Any, ...]]
    """Static and donated arguments, as `Marked` has them."""
    everything: bool = False
    """True if everything except arrays is static, anywhere in the arguments."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a path that is printed unchanged."""

    key: str

    @printed
    def __str__(self) -> str:
        return self.key


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """All of a module except for its arrays. Equal for modules that make the same program."""

    kind: Kind
    names: tuple[str, ...]
    """Suffix of the name of the module, for each array."""
    static: Any
    kept: tuple[int | None, ...] | None = None
    """Number of the input array that each array of a returned module still is, which is then not a
    result; None for other arrays. None altogether if all arrays are results."""

    @functools.cached_property
    def _hash(self) -> int:
        return hash((type(self.kind), self.names, self.kept))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Structure)
            and (self.names, self.kept) == (other.names, other.kept)
            and self.kind is other.kind
            and (_equal(self.static, other.static) or same(self.static, other.static))
        )

    @printed
    def __repr__(self) -> str:
        return f"<{self.kind.library} module of {len(self.names)} arrays>"


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """A module, split."""

    structure: Structure
    values: tuple[Any, ...]
    """Its arrays."""

    @property
    def stays(self) -> bool:
        """True if some of its arrays are those that went in, and are not here."""
        return any(number is not None for number in self.structure.kept or ())

    @property
    def keys(self) -> list[Key]:
        """The keys of its arrays, as the module has them."""
        structure = self.structure
        if structure.kept is None:
            return list(map(Key, structure.names))
        pairs = zip(structure.names, structure.kept, strict=True)
        return [Key(name) for name, kept in pairs if kept is None]

    @printed
    def __repr__(self) -> str:
        pairs = zip(self.keys, self.values, strict=True)
        return f"{{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"


jax.tree_util.register_pytree_with_keys(
    Parts,
    lambda parts: (list(zip(parts.keys, parts.values, strict=True)), parts.structure),
    lambda structure, values: Parts(structure, tuple(values)),
    lambda parts: (parts.values, parts.structure),
)


@dataclasses.dataclass(frozen=True)
class Returned:
    """Result of a function, with the arguments that it changed."""

    result: Any
    changed: tuple[Any, ...]
    """The `Parts` of arguments, after it."""
    names: tuple[str, ...]
    """The arguments that were changed, as a user names them."""
    where: tuple[int | str, ...]
    """Their positions or names in the call."""


jax.tree_util.register_pytree_with_keys(
    Returned,
    lambda made: (
        [
            (Key(""), made.result),
            *(
                (Key(f".{name}"), parts)
                for name, parts in zip(made.names, made.changed, strict=True)
            ),
        ],
        (made.names, made.where),
    ),
    lambda said, children: _returned(list(children), said),
)


def _returned(children: list[Any], said: Any) -> Returned:
    return Returned(children[0], tuple(children[1:]), *said)


def same(a: Any, b: Any) -> bool:
    """Returns whether static parts make the same program: equal, or of equal code and closures.

    An optimizer that is made twice has functions that are not equal and do the same.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, types.FunctionType):
        return (
            a.__code__ is b.__code__
            and all(
                same(getattr(a, name), getattr(b, name))
                for name in ("__defaults__", "__kwdefaults__")
            )
            and same(_cells(a), _cells(b))
        )
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and same(a.__self__, b.__self__)
    if isinstance(a, functools.partial):
        return same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        fields = dataclasses.fields(a)
        return all(same(getattr(a, f.name, None), getattr(b, f.name, None)) for f in fields)
    return _equal(a, b)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # arrays and what else compares otherwise: not known to be the same
        return False


def _cells(fn: types.FunctionType) -> tuple[Any, ...]:
    """Returns the values that a function closes over."""
    return tuple(cell.cell_contents for cell in fn.__closure__ or ())
