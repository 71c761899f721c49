"""Rules made of nothing but types, and rules that are changed factor by factor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from partita.program.ir import TensorType
from partita.program.rule import Factor, FactorKind, Halo, Reach, Rule

Types = Sequence[TensorType]


def opaque(operands: Types, results: Types) -> Rule:
    """No factor at all: every operand requires replication, every result is made in full."""

    def unmapped(types: Types) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(() for _ in type_.shape) for type_ in types)

    return Rule((), unmapped(operands), unmapped(results), known=False)


def leading(rule: Rule, operand: int, dims: Iterable[int]) -> list[int]:
    """Returns the factors that carry the shards of these dimensions of an operand."""
    found = (rule.leading(rule.operands[operand][dim]) for dim in dims)
    return [factor for factor in found if factor is not None]


def with_kind(rule: Rule, factors: Iterable[int], kind: FactorKind, reason: str = "") -> Rule:
    """Returns the rule with these factors of another kind."""
    changed = list(rule.factors)
    for factor in factors:
        changed[factor] = dataclasses.replace(changed[factor], kind=kind, reason=reason)
    return dataclasses.replace(rule, factors=tuple(changed))


def blocked(rule: Rule, factors: Iterable[int], reason: str) -> Rule:
    """Returns the rule with these factors blocked."""
    return with_kind(rule, factors, "blocked", reason)


class Draft:
    """A rule whose mappings are changed dimension by dimension."""

    def __init__(self, rule: Rule) -> None:
        self.factors = list(rule.factors)
        self.operands = [list(tensor) for tensor in rule.operands]
        self.results = [list(tensor) for tensor in rule.results]
        halos = rule.halos or ((),) * len(rule.operands)
        self.halos: list[list[Reach | None]] = [
            list(halo) or [None] * len(tensor)
            for halo, tensor in zip(halos, rule.operands, strict=True)
        ]

    def factor(
        self, size: int, kind: FactorKind = "parallel", reason: str = "", least: int = 1
    ) -> int:
        """Adds a factor; its number."""
        self.factors.append(Factor(size, kind, reason, least))
        return len(self.factors) - 1

    def replace(self, dimension: tuple[int, ...], size: int, kind: FactorKind = "parallel") -> int:
        """Makes the first factor of a dimension another one, or adds one; its number."""
        if not dimension:
            return self.factor(size, kind)
        self.factors[dimension[0]] = Factor(size, kind)
        return dimension[0]

    def made_of(self, factor: int, size: int) -> tuple[int, ...]:
        """A dimension of this size of which a factor is the outer part."""
        shared = self.factors[factor].size
        if size == shared:
            return (factor,)
        reason = f"it is an inner factor of a dimension made of {shared} x {size // shared}"
        return factor, self.factor(size // shared, "blocked", reason)

    def blocked(self, size: int, reason: str) -> tuple[int, ...]:
        """A dimension of this size by itself, which requires replication."""
        return (self.factor(size, "blocked", reason),)

    def rule(self) -> Rule:
        """The changed rule, without factors that no dimension has any more."""
        tensors = (*self.operands, *self.results)
        used = sorted({factor for tensor in tensors for dim in tensor for factor in dim})
        place = {factor: number for number, factor in enumerate(used)}

        def renumber(
            tensors: list[list[tuple[int, ...]]],
        ) -> tuple[tuple[tuple[int, ...], ...], ...]:
            return tuple(tuple(tuple(place[f] for f in dim) for dim in t) for t in tensors)

        halos: tuple[Halo, ...] = tuple(tuple(halo) if any(halo) else () for halo in self.halos)
        factors = tuple(self.factors[factor] for factor in used)
        return Rule(
            factors,
            renumber(self.operands),
            renumber(self.results),
            halos=halos if any(halos) else (),
        )
