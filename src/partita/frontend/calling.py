"""Marks of a function's arguments: which are static, and which are donated, as in `jax.jit`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from partita.errors import ArgumentError, TraceError
from partita.frontend.modules.functional import Functional
from partita.options import positions, texts
from partita.stablehlo.internals import jit_options, lower_transformed, two_forms

PLANNED = two_forms("partita_planned")
"""A planned function where it is called: what runs is partitioned."""

LOWERING = (PLANNED, lower_transformed)
"""Lowering of planned functions while partita traces: as any other function that is called."""

Numbers = int | Sequence[int]
Names = str | Sequence[str]


@dataclasses.dataclass(frozen=True)
class Marked:
    """Static and donated arguments of a function, by position and by name."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        static_argnums: Numbers | None = None,
        static_argnames: Names | None = None,
        donate_argnums: Numbers | None = None,
        donate_argnames: Names | None = None,
    ) -> Marked:
        """Creates marks from what users write: one position or name, or several.

        Raises:
          OptionError: they are not positions, or names.
        """

        def names(value: Names | None, what: str) -> tuple[str, ...]:
            expected = "the name of an argument, or several"
            return () if value is None else texts(value, what, expected)

        numbers = () if static_argnums is None else static_argnums
        return cls(
            positions(numbers, "static_argnums", least=None),
            names(static_argnames, "static_argnames"),
            positions(() if donate_argnums is None else donate_argnums, "donate_argnums"),
            names(donate_argnames, "donate_argnames"),
        )

    def jitted(self, fn: Callable[..., Any]) -> tuple[Any, Marked]:
        """Returns a function under `jax.jit`, and all of its marks.

        An argument with a name and a position is found by either, as in `jax.jit`. The marks of the
        function's own `jax.jit` count, too; its donated arguments count only if none are marked
        here.

        Raises:
          TraceError: the function has no such arguments.
        """
        try:
            said = jit_options(jax.jit(fn, **self._options()))
        except (TypeError, ValueError) as error:
            raise TraceError(f"{name_of(fn)} cannot be called so: {error}") from error
        own = fn.options if isinstance(fn, Functional) else jit_options(fn)
        if said is None:
            return jax.jit(fn, keep_unused=True, **self._options()), self
        if own is not None:
            donates = said["donate_argnums"] or said["donate_argnames"]
            for name, marks in own.items():
                if name.startswith("static"):
                    said[name] = tuple(dict.fromkeys((*said[name], *marks)))
                elif not donates:
                    said[name] = marks
        marked = Marked(**said)
        return jax.jit(fn, keep_unused=True, **marked._options()), marked

    def _options(self) -> dict[str, Any]:
        """Returns options for `jax.jit`, without empty marks, which it is to infer itself."""
        return {name: marks for name, marks in vars(self).items() if marks}

    def donated(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Marked:
        """Returns the donated arguments of a call, by position or name as passed."""
        numbers = _present(self.donate_argnums, len(args))
        return Marked(
            donate_argnums=tuple(n for n in numbers if jax.tree.leaves(args[n])),
            donate_argnames=tuple(n for n in self.donate_argnames if n in kwargs),
        )


UNMARKED = Marked()
"""Marks of a function with no static and no donated arguments."""


@dataclasses.dataclass(frozen=True)
class Static:
    """The static arguments of a call, by position and by name: they are part of the program."""

    positional: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    named: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, marked: Marked, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Static:
        """Collects the static arguments of a call."""
        numbers = _present(marked.static_argnums, len(args))
        return cls(
            {n: args[n] for n in sorted(numbers)},
            {name: kwargs[name] for name in marked.static_argnames if name in kwargs},
        )

    def __bool__(self) -> bool:
        return bool(self.positional or self.named)

    @property
    def key(self) -> Any:
        """Key that differs between calls with different static arguments; hashable if these are."""
        return tuple(self.positional.items()), tuple(sorted(self.named.items()))

    def without(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a call without the static ones."""
        others = tuple(arg for n, arg in enumerate(args) if n not in self.positional)
        return others, {name: arg for name, arg in kwargs.items() if name not in self.named}

    def among(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, of whose others these are given."""
        every = list(args)
        for n, arg in self.positional.items():
            every.insert(n, arg)
        return tuple(every), {**kwargs, **self.named}

    def position(self, number: int) -> int:
        """The position in a call of an argument, counted among those that are not static."""
        for n in self.positional:
            number += n <= number
        return number

    def number(self, position: int) -> int:
        """The reverse of `position`."""
        return position - sum(n < position for n in self.positional)

    def donated_leaves(
        self, marked: Marked, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Numbers of the donated leaves among those of arguments that are not static."""
        placed: list[tuple[int | str, Any]] = [
            *((self.position(number), tree) for number, tree in enumerate(args)),
            *sorted(kwargs.items()),
        ]
        donated = {*marked.donate_argnums, *marked.donate_argnames}
        leaves = [where for where, tree in placed for _ in jax.tree.leaves(tree)]
        return [number for number, where in enumerate(leaves) if where in donated]

    def check(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises `ArgumentError` where a call has other static arguments, or none."""
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs.items())
        for where, value in (*self.positional.items(), *self.named.items()):
            what = f"{where!r}" if isinstance(where, str) else f"at position {where}"
            if where not in given:
                raise ArgumentError(
                    f"{name} is planned for the static argument {what} of {value!r}, which is "
                    "missing; give it as in the call that was planned"
                )
            if given[where] is not value and given[where] != value:
                raise ArgumentError(
                    f"{name} is planned for the static argument {what} of {value!r}, and "
                    f"{given[where]!r} came; plan for that, or use pt.jit, which plans for each"
                )


NOTHING_STATIC = Static()
"""No argument is static."""


def name_of(fn: Any) -> str:
    """Returns the name of a function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _present(numbers: Sequence[int], count: int) -> list[int]:
    """Positions of arguments that are there, none of them negative."""
    return [n % count for n in numbers if -count <= n < count]
