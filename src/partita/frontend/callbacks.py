"""Functions with callbacks to the host, as functions that return what these are called with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from partita.frontend.modules.functional import Functional
from partita.frontend.modules.parts import Key, Returned
from partita.stablehlo.callbacks import Callback, evaluate
from partita.stablehlo.internals import jit_options, runs_at_once


@dataclasses.dataclass(frozen=True)
class Observed:
    """Result of a function, with the operands of its callbacks."""

    result: Any
    operands: tuple[tuple[Any, ...], ...]
    callbacks: tuple[Callback, ...]


jax.tree_util.register_pytree_with_keys(
    Observed,
    lambda made: (
        ((Key(""), made.result), (Key(".callbacks"), made.operands)),
        made.callbacks,
    ),
    lambda callbacks, children: _observed(list(children), callbacks),
)


def _observed(children: list[Any], callbacks: tuple[Callback, ...]) -> Observed:
    return Observed(children[0], children[1], callbacks)


class Observing:
    """A function whose callbacks are called by its caller, with the values that it returns for
    them."""

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))
        self.fn = fn
        if jit_options(fn) is not None:
            self._jit_info, self.trace = fn._jit_info, fn.trace

    def __call__(self, *args: Any, **kwargs: Any) -> Observed:
        """Calls the function without its callbacks."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        numbers = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def flat(*arrays: Any) -> Any:
            every = list(leaves)
            for n, array in zip(numbers, arrays, strict=True):
                every[n] = array
            args, kwargs = jax.tree.unflatten(structure, every)
            return self.fn(*args, **kwargs)

        arrays = [leaves[n] for n in numbers]
        jaxpr, shapes = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        made, found = evaluate(jaxpr, arrays)
        result = jax.tree.unflatten(jax.tree.structure(shapes), made)
        callbacks = tuple(callback for callback, _ in found)
        return Observed(result, tuple(tuple(operands) for _, operands in found), callbacks)


def with_modules(fn: Any) -> Functional | None:
    """The function of modules that a function is, whether or not it has callbacks."""
    fn = fn.fn if isinstance(fn, Observing) else fn
    return fn if isinstance(fn, Functional) else None


def result_of(made: Any) -> Any:
    """Returns the result of a function without the operands of its callbacks."""
    return made.result if isinstance(made, Observed) else made


def of_result(made: Any, said: Any) -> Any:
    """A prefix of all that a function returns, from one of its result; None for all else."""
    if isinstance(made, Observed):
        nothing = jax.tree.map(lambda _: None, made.operands)
        return Observed(of_result(made.result, said), nothing, made.callbacks)
    if isinstance(made, Returned):
        changed = tuple(None for _ in made.changed)
        return Returned(said, changed, made.names, made.where)
    return said


def observe(made: Any, run: Callable[..., Any]) -> Any:
    """Calls the callbacks of a function, then returns its result.

    Args:
      made: the function's values for callbacks, and its result.
      run: calls callbacks if there are any, as made by `observer`.
    """
    if not isinstance(made, Observed):
        return made
    if runs_at_once():
        run(*jax.tree.map(_here, made.operands))
    else:
        for callback, operands in zip(made.callbacks, made.operands, strict=True):
            callback(*operands)
    return made.result


def observer(callbacks: Sequence[Callback]) -> Callable[..., Any]:
    """Calls callbacks in order, without waiting for them."""

    def run(*operands: Any) -> None:
        for callback, each in zip(callbacks, operands, strict=True):
            callback(*each)

    return jax.jit(run)


def _here(array: jax.Array) -> jax.Array:
    """An array on one device of this process."""
    here: jax.Array = (
        array.addressable_data(0)
        if array.is_fully_replicated
        else jax.device_put(array, jax.local_devices()[0])
    )
    return here
