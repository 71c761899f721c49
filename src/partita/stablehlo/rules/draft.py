"""Rules that are changed dimension by dimension."""

from __future__ import annotations

from partita.program.rule import Factor, FactorKind, Halo, Reach, Rule


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
