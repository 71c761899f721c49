"""Sharding rules: which dimensions of an operation are sharded together, and their halos."""

from __future__ import annotations

import dataclasses
from typing import Literal

FactorKind = Literal["parallel", "reduction", "blocked", "given", "manual"]
"""Kinds of factors. A `given` factor is sharded exactly as the program itself prescribes. A
`manual` one has no dimension: it stands for an axis over which the operation is manual."""


@dataclasses.dataclass(frozen=True, slots=True)
class Factor:
    """A loop index of one operation (an einsum letter)."""

    size: int
    kind: FactorKind
    reason: str = ""
    """Why a blocked factor cannot be sharded."""
    least: int = 1
    """Fewest indices that a shard may have: it must reach as far as its neighbours need."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """Windows of a sharded dimension that devices read, if these are not their own shards.

    If the dimension has `n` shards, device number `d` reads `size / n + extra` indices, from
    `d * size / n + start` on. Beyond the ends there are zeros.
    """

    size: int
    """Number of indices that all windows cover together; `n` divides it."""
    start: int = 0
    extra: int = 0
    wraps: bool = False
    """After the last index comes the first again."""
    mirrored: bool = False
    """The first device reads the last window, and so on."""

    def length(self, shards: int) -> int:
        """Returns the number of indices of a window."""
        return self.size // shards + self.extra

    def first(self, device: int, shards: int) -> int:
        """Returns the first index that a device reads; may be beyond the ends."""
        number = shards - 1 - device if self.mirrored else device
        return number * (self.size // shards) + self.start

    def __str__(self) -> str:
        before, after = -self.start, self.extra + self.start
        if before >= 0 and after >= 0 and not self.wraps and not self.mirrored:
            return f"halo {before},{after}"
        words = ("mirrored",) * self.mirrored + ("around",) * self.wraps
        return " ".join((*words, f"from {self.start:+d}"))

    @staticmethod
    def halo(size: int, before: int, after: int) -> Reach:
        """Returns a device's own shard of a dimension of this size, and this many indices before
        and after it."""
        return Reach(size, -before, before + after)


Halo = tuple[Reach | None, ...]
"""Windows that each device reads of every dimension; None for its own shard. Empty if it reads its
own shard along all dimensions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Mapping of operand and result dimensions to factors (Shardy's sharding rule).

    A dimension may be made of several factors, major first: `[B, H*K]` reshaped to `[B, H, K]`.
    Only the leading factor larger than one can carry a shard of such a dimension; a given one,
    which is split into single indices, leaves that to the next.
    """

    factors: tuple[Factor, ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    known: bool = True
    """False for an operation without a rule, which is kept replicated."""
    halos: tuple[Halo, ...] = ()
    """Halo of each operand; empty if no operand has one."""

    @staticmethod
    def same(shape: tuple[int, ...], operands: int, results: int) -> Rule:
        """Returns the rule of an operation whose operands and results are one value: carried by a
        loop, held by a barrier, or given by branches."""
        factors = tuple(Factor(size, "parallel") for size in shape)
        tensor = tuple((dim,) for dim in range(len(shape)))
        return Rule(factors, (tensor,) * operands, (tensor,) * results)

    def leading(self, dimension: tuple[int, ...]) -> int | None:
        """Returns the factor that carries the shards of a dimension; None if it has none."""
        carriers = self.carriers(dimension)
        return carriers[-1] if carriers else None

    def carriers(self, dimension: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the leading factor of a dimension, after those that the program shards."""
        found: list[int] = []
        for factor in dimension:
            if self.factors[factor].size > 1:
                found.append(factor)
                if self.factors[factor].kind != "given":
                    break
        return tuple(found)

    def is_given(self, dimension: tuple[int, ...]) -> bool:
        """Returns whether the program prescribes the sharding of all of a dimension."""
        factors = [self.factors[factor] for factor in dimension]
        given = [factor.kind == "given" for factor in factors]
        return any(given) and all(g or f.size == 1 for g, f in zip(given, factors, strict=True))

    def __str__(self) -> str:
        def side(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> str:
            return ", ".join(
                "[" + " ".join("".join(map(_letter, dim)) or "1" for dim in tensor) + "]"
                for tensor in tensors
            )

        return f"{side(self.operands)} -> {side(self.results)}"


def _letter(factor: int) -> str:
    letters = "ijklmnopqrstuvwxyzabcdefgh"
    return letters[factor] if factor < len(letters) else f"z{factor}"
