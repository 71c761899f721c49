"""A random program while it grows: its values, by type, and the steps that make them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LARGEST = 2048  # elements of any value
DEEPEST = 3  # blocks in blocks
MOST_STEPS = 9  # of a program, those of its blocks included

FLOAT, INT, BOOL, COMPLEX = map(np.dtype, (np.float32, np.int32, np.bool_, np.complex64))
BF16, F16 = map(np.dtype, (jnp.bfloat16, np.float16))
F8 = tuple(map(np.dtype, (jnp.float8_e4m3fn, jnp.float8_e5m2)))
SMALL_WHOLE = tuple(map(np.dtype, (jnp.int4, jnp.uint4)))
SMALL_FLOATS = (*F8, *map(np.dtype, (jnp.float8_e3m4, jnp.float8_e8m0fnu, jnp.float4_e2m1fn)))
"""Of 4 and 8 bits; they are moved, compared and converted, and hardly computed with."""
FOUR_BITS = (*SMALL_WHOLE, np.dtype(jnp.float4_e2m1fn))
REAL = frozenset({FLOAT, BF16, F16})
WHOLE = frozenset(map(np.dtype, (np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32)))
NUMBERS = REAL | WHOLE | {COMPLEX}
SMALL = (*SMALL_WHOLE, *SMALL_FLOATS)
PLAIN = NUMBERS | {BOOL} | set(SMALL)  # all but random keys

ERROR = {FLOAT: 1e-4, COMPLEX: 1e-4, F16: 0.02, BF16: 0.08}
ERROR |= dict(zip(SMALL_FLOATS, (0.2, 0.4, 0.1, 0.6, 0.6), strict=True))
"""How far results may differ, relative to the largest, that were rounded to a type on their way."""


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a random program."""

    type: jax.ShapeDtypeStruct
    error: float = 0.0
    """How far it may differ when computed in another order; what is only moved is exact."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(eq=False)
class Step:
    """One operation of a random program."""

    text: str
    fn: Callable[..., Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    inner: tuple[Pool, ...] = ()
    """The blocks that it runs."""
    off: bool = False
    """Whether it has been put out of action, to make an example smaller: it gives constants."""

    def __call__(self, known: dict[Value, Any]) -> None:
        if self.off:
            made = [_constant(v.type) for v in self.outputs]
        else:
            made = jax.tree.leaves(self.fn(*(known[v] for v in self.inputs)))
        known.update(zip(self.outputs, made, strict=True))


def _constant(type_: Any) -> Any:
    if jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(1), type_.shape)
    return jnp.full(type_.shape, 0.25, type_.dtype)


class Pool:
    """The values made so far, and the steps that made them; of a program, or of a block in it."""

    def __init__(
        self, rng: random.Random, arguments: Sequence[Value], outer: Pool | None = None
    ) -> None:
        self.rng = rng
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.kinds: Sequence[Sequence[Sequence[Operation]]] = () if outer is None else outer.kinds
        """What it grows by: at each depth, groups of operations."""
        self.size: list[int] = [0] if outer is None else outer.size
        """Steps so far, those of all blocks together."""
        self.arguments = list(arguments)
        self.values = list(arguments)
        self.steps: list[Step] = []

    # ------------------------------------------------------------------ drawing

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def choice(self, options: Iterable[Any]) -> Any:
        return self.rng.choice(list(options))

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def some(self, options: Iterable[Any], least: int, most: int) -> list[Any]:
        """Some of the options, in any order, each once."""
        found = list(options)
        self.rng.shuffle(found)
        return found[: self.integer(least, most)]

    def value(
        self,
        suits: Callable[[Value], bool] = lambda v: True,
        dtypes: Iterable[Any] = REAL,
        exact: bool = False,
    ) -> Value | None:
        """A value that suits, late ones as likely as early ones; None without."""
        found = self.suitable(suits, dtypes, exact)
        return self.choice(found) if found else None

    def suitable(
        self,
        suits: Callable[[Value], bool] = lambda v: True,
        dtypes: Iterable[Any] = REAL,
        exact: bool = False,
    ) -> list[Value]:
        """All values that suit."""
        allowed = set(dtypes)
        return [
            v for v in self.values if v.dtype in allowed and not (exact and v.error) and suits(v)
        ]

    # ------------------------------------------------------------------ growing

    def add(
        self,
        text: str,
        fn: Callable[..., Any],
        *inputs: Value | None,
        moves: bool = False,
        sharp: bool = False,
        inner: tuple[Pool, ...] = (),
    ) -> tuple[Value, ...]:
        """Adds an operation, unless a result is too large or there is nothing to apply it to.

        Args:
          text: what to call it.
          fn: from arrays to an array or several.
          *inputs: what to apply it to; None where nothing suits.
          moves: it rounds nothing: results of exact inputs are exact.
          sharp: it jumps: rounding before it could change results altogether, so that inputs must
            be exact.
          inner: the blocks that `fn` runs.
        """
        given = [v for v in inputs if v is not None]
        error = max((v.error for v in given), default=0.0)
        if len(given) < len(inputs) or (sharp and error):
            return ()
        made = jax.tree.leaves(jax.eval_shape(fn, *(v.type for v in given)))
        if not made or not all(_suitable(t) for t in made):
            return ()
        error = max([error, *(ERROR.get(v.dtype, 0.0) for b in inner for v in b.values)])
        outputs = []
        for type_ in made:
            own = 0.0 if moves else ERROR.get(type_.dtype, 0.0)
            if error and type_.dtype not in ERROR:
                return ()  # whole numbers from rounded ones: these would jump
            inherited = error if type_.dtype in ERROR else 0.0
            outputs.append(Value(type_, max(own, inherited)))
        self.values += outputs
        self.steps.append(Step(text, fn, tuple(given), tuple(outputs), inner))
        self.size[0] += 1
        return tuple(outputs)

    # ------------------------------------------------------------------ running and showing

    def run(self, arguments: Sequence[Any], results: Sequence[Value]) -> list[Any]:
        """The values of `results`, for these arguments."""
        known = dict(zip(self.arguments, arguments, strict=True))
        for step in needed(self.steps, results):
            step(known)
        return [known[v] for v in results]

    def show(self, names: dict[Value, str], indent: str = "") -> list[str]:
        """The steps, one a line, blocks below; gives every value a name."""
        lines = []
        for value in self.arguments:
            names[value] = names.get(value) or f"%{len(names)}"
            lines.append(f"{indent}{names[value]} = argument {value}")
        for step in self.steps:
            inputs = ", ".join(names[v] for v in step.inputs)
            for value in step.outputs:
                names[value] = f"%{len(names)}"
            made = ", ".join(f"{names[v]} {v}" for v in step.outputs)
            text = "constant" if step.off else step.text
            lines.append(f"{indent}{made} = {text}({inputs})")
            for block in () if step.off else step.inner:
                lines += block.show(names, f"{indent}    ")
                lines.append(f"{indent}    --")
        return lines


def needed(steps: Iterable[Step], results: Iterable[Value]) -> list[Step]:
    """The steps on which these results depend."""
    wanted, found = set(results), []
    for step in reversed(list(steps)):
        if not wanted.isdisjoint(step.outputs):
            found.append(step)
            if not step.off:
                wanted.update(step.inputs)
    return found[::-1]


def _suitable(type_: jax.ShapeDtypeStruct) -> bool:
    return 0 < type_.size <= LARGEST and type_.ndim <= 4


def rank(least: int, most: int = 9) -> Callable[[Value], bool]:
    """Values with so many dimensions."""
    return lambda v: least <= v.ndim <= most


def like(other: Value | None) -> Callable[[Value], bool]:
    """Values shaped as another one is."""
    return lambda v: other is not None and v.shape == other.shape


def along(dim: int, *at: Any) -> tuple[Any, ...]:
    """An index that says `at` for the dimensions from `dim` on, and everything before."""
    return (slice(None),) * dim + at


Operation = Callable[[Pool], None]
