"""A function of modules as a function of trees of arrays, and calls of it with modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from partita.frontend.modules.kinds import imported, nodes, owner, unwrapped
from partita.frontend.modules.parts import Kind, Parts, Returned, Trace
from partita.stablehlo.internals import jit_options

Naming = Callable[[Any, Sequence[Any]], str]
"""The name of an argument from its key and the path in it."""


class Functional:
    """A function of modules, called with modules that are split.

    It returns its results split, and `Returned` if an argument is of a kind that is changed in
    place. It is a function of trees of arrays, as `jax.jit` expects.

    Args:
      fn: the function, not under any `jit`.
      options: those of its own `jit`, as `Marked` has them.
      everything: whether everything except arrays is static, anywhere in the arguments.
      naming: names an argument.
      donated: positions and names of donated arguments.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Mapping[str, tuple[Any, ...]] | None,
        everything: bool,
        naming: Naming,
        donated: frozenset[int | str] = frozenset(),
    ) -> None:
        functools.update_wrapper(self, fn)
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))
        self.fn, self.options, self.everything = fn, options, everything
        self._naming, self._donated = naming, donated

    def donating(self, donated: Iterable[int | str]) -> Functional:
        """Returns the same function with these arguments donated, by position and by name."""
        return Functional(self.fn, self.options, self.everything, self._naming, frozenset(donated))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on arguments that are split."""
        traces: dict[Kind, Trace] = {}
        leaves, structure = _ends((args, kwargs))
        modules = _replaced(
            [leaf for _, leaf in leaves],
            [leaf.structure.kind if isinstance(leaf, Parts) else None for _, leaf in leaves],
            lambda kind, parts: traces.setdefault(kind, kind.trace()).join(parts),
        )
        args, kwargs = jax.tree.unflatten(structure, modules)
        made = self.fn(*args, **kwargs)
        kinds = imported()
        results, of_results = nodes(made, kinds, self.everything)
        out: list[Any] = [leaf for _, leaf in results]
        changed: list[tuple[Any, Parts]] = []
        for kind in kinds:
            ours = [n for n, leaf in enumerate(leaves) if _is_of(leaf[1], kind)]
            owned = [n for n, leaf in enumerate(out) if kind.owns(leaf, self.everything)]
            if not ours and not owned:
                continue
            arguments = [(modules[n], self._donates(leaves[n][0])) for n in ours]
            trace = traces.get(kind) or kind.trace()
            kept, split = trace.split(arguments, [out[n] for n in owned])
            for n, parts in zip(owned, split, strict=True):
                out[n] = parts
            named = zip((leaves[n][0] for n in ours), kept, strict=False)
            changed += named
        result = jax.tree.unflatten(of_results, out)
        if not changed:
            return result
        paths = [path for path, _ in changed]
        names = tuple(self._naming(path[1], path[2:]) for path in paths)
        after = tuple(parts for _, parts in changed)
        return Returned(result, after, names, tuple(map(_where, paths)))

    def keeping(self, made: Any) -> dict[int | str, str]:
        """Arguments with arrays that are not returned, as they stay: their names by where they are.

        Args:
          made: the results in which they are not.
        """
        if not isinstance(made, Returned):
            return {}
        rows = zip(made.where, made.names, made.changed, strict=True)
        return {where: name for where, name, parts in rows if parts.stays}

    def split(self, tree: Any) -> Any:
        """Arguments, or a part of them, with modules split; those that are split stay so."""
        return self._opened(tree)[0]

    def around(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs something on arguments that are split; puts its results together, and writes back.

        Args:
          run: the function in another form.
          args: the arguments, with modules.
          kwargs: likewise.
        """
        (args, kwargs), calls = self._opened((args, kwargs))
        made = run(*args, **kwargs)
        changed = made.changed if isinstance(made, Returned) else ()
        result = made.result if isinstance(made, Returned) else made
        leaves, structure = _ends(result)
        every = [*changed, *(leaf for _, leaf in leaves)]
        kinds = [leaf.structure.kind if isinstance(leaf, Parts) else None for leaf in every]
        joined = _replaced(every, kinds, lambda kind, parts: calls[kind].join(parts))
        return jax.tree.unflatten(structure, joined[len(changed) :])

    def copied(self, tree: Any) -> Any:
        """Arguments with copies of their modules, which may be changed."""
        return joined(self.split(tree))

    def _opened(self, tree: Any) -> tuple[Any, dict[Kind, Any]]:
        kinds = imported()
        calls = {kind: kind.call() for kind in kinds}
        leaves, structure = nodes(tree, kinds, self.everything)
        values = [leaf for _, leaf in leaves]
        owners = [
            None if isinstance(leaf, Parts) else owner(leaf, kinds, self.everything)
            for leaf in values
        ]
        made = _replaced(values, owners, lambda kind, modules: calls[kind].split(modules))
        return jax.tree.unflatten(structure, made), calls

    def _donates(self, path: Sequence[Any]) -> bool:
        return _where(path) in self._donated


def functional(fn: Any, args: Any, kwargs: Any, naming: Callable[..., str]) -> Functional | None:
    """The function as one of trees of arrays, if it is one of modules; None if it is not.

    Args:
      fn: the function, plain or under `jax.jit` or the `jit` of a library.
      args: its arguments.
      kwargs: likewise.
      naming: names an argument of a function, from the function, the key, and the path.
    """
    if isinstance(fn, Functional):
        return fn
    kinds = imported()
    if not kinds:
        return None
    found = unwrapped(fn)
    everything = found is not None and found.everything
    leaves, _ = nodes((args, kwargs), kinds, everything)
    has_modules = any(owner(leaf, kinds, everything) is not None for _, leaf in leaves)
    if found is not None:
        return Functional(found.fn, found.options, everything, functools.partial(naming, found.fn))
    if not has_modules:
        return None
    options = jit_options(fn)
    fn = fn if options is None else fn.__wrapped__
    return Functional(fn, options, everything, functools.partial(naming, fn))


def returning_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results have their modules split, if they have any."""
    return Functional(fn, None, False, lambda key, path: "") if imported() else fn


def joined(tree: Any) -> Any:
    """Returns a tree with its split modules joined again, as new modules."""
    leaves, structure = _ends(tree)
    values = [leaf for _, leaf in leaves]
    kinds = [leaf.structure.kind if isinstance(leaf, Parts) else None for leaf in values]
    made = _replaced(values, kinds, lambda kind, parts: kind.trace().join(parts))
    return jax.tree.unflatten(structure, made)


def _replaced(
    values: Sequence[Any],
    kinds: Sequence[Kind | None],
    make: Callable[[Kind, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Values, with those of each kind replaced together."""
    found = list(values)
    for kind in dict.fromkeys(kinds):
        if kind is not None:
            numbers = [n for n, each in enumerate(kinds) if each is kind]
            for n, made in zip(numbers, make(kind, [values[n] for n in numbers]), strict=True):
                found[n] = made
    return found


def _ends(tree: Any) -> tuple[Any, Any]:
    """Returns the leaves of a tree with their paths; split modules are leaves."""
    return nodes(tree, (), False)


def _is_of(leaf: Any, kind: Kind) -> bool:
    return isinstance(leaf, Parts) and leaf.structure.kind is kind


def _where(path: Sequence[Any]) -> int | str:
    """The position or the name of an argument, from a path in `(args, kwargs)`."""
    first = path[1]
    found: int | str = first.key if isinstance(first, jax.tree_util.DictKey) else first.idx
    return found
