"""Comparison of a plan's predicted collectives with those that XLA compiles from it.

Collectives in loops count once, or as often as the loops run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from partita.escape import printed
from partita.mesh import Mesh
from partita.program.collectives import COLLECTIVES
from partita.spmd import Collective
from partita.verify.collectives import Found, HloCollective, found_collectives
from partita.verify.device_groups import DeviceGroups, joined, normal
from partita.verify.hlo import parse

AGREEMENTS = {
    "equal": "the same kinds, groups, sizes and counts",
    "rewritten": "that, but for rewrites that the compiler is known for, each where its rule holds",
    "bytes": "that, but some of the same kind and groups are cut into other shards: the bytes in "
    "all are the same",
    "different": "anything else",
}
"""Degrees of agreement between compiled and predicted collectives, the closest first."""


@dataclasses.dataclass(frozen=True)
class Becomes:
    """A rewrite that a compiler may apply to a collective."""

    rewrite: str
    """Its name, one of `Backend.rewrites`."""
    collective: HloCollective | None
    """Resulting collective; None if the collective disappears."""
    always: bool = True
    """True if the compiler always applies it; otherwise it may."""
    cut: bool = False
    """True if the compiled program must show that every device keeps only a shard."""
    of: int = 1
    """Number of executions of the planned collective that become one."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A planned collective, and what the compiler turned it into."""

    rewrite: str
    planned: HloCollective
    made: HloCollective | None
    of: int = 1
    """Number of executions of the planned collective that became one."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Counts of each collective, predicted and compiled."""

    mesh: Mesh
    predicted: Counter[HloCollective]
    compiled: Counter[HloCollective]
    rewritten: Counter[Rewritten] = dataclasses.field(default_factory=Counter)
    """Known rewrites that the compiler has done, and how often they run."""

    @property
    def equal(self) -> bool:
        """True if prediction and compiled program agree in kind, count, bytes and groups."""
        return self.predicted == self.compiled and not self.rewritten

    @property
    def explained(self) -> bool:
        """True if they agree once the known rewrites are applied."""
        return self.foreseen == self.compiled

    @property
    def agreement(self) -> str:
        """Degree of agreement: the first of `AGREEMENTS` that holds."""
        if self.equal:
            return "equal"
        if self.explained:
            return "rewritten"
        if _totals(self.foreseen) == _totals(self.compiled):
            return "bytes"
        return "different"

    @property
    def foreseen(self) -> Counter[HloCollective]:
        """Predicted collectives after the known rewrites."""
        left = Counter(self.predicted)
        for each, times in self.rewritten.items():
            left[each.planned] -= times
            if each.made is not None:
                left[each.made] += times // each.of
        return +left

    @property
    def rewrites(self) -> dict[str, int]:
        """Number of times each known rewrite was applied, by name."""
        counts: Counter[str] = Counter()
        for each, times in self.rewritten.items():
            counts[each.rewrite] += times
        return dict(sorted(counts.items()))

    def rows(self) -> list[tuple[HloCollective, int, int]]:
        """Every collective with its predicted and its compiled count."""
        every = sorted(self.predicted.keys() | self.compiled.keys())
        return [(e, self.predicted[e], self.compiled[e]) for e in every]

    def remark(self, collective: HloCollective) -> str:
        """`differs`, or `rewritten` where known rewrites explain it; empty if the counts agree."""
        if self.predicted[collective] == self.compiled[collective]:
            return ""
        explained = self.foreseen[collective] == self.compiled[collective]
        return "rewritten" if explained else "differs"

    @printed
    def __str__(self) -> str:
        lines = [f"{'kind':<16} {'bytes':>12} {'groups':>8} {'predicted':>10} {'compiled':>9}"]
        for collective, predicted, compiled in self.rows():
            shape = (
                f"{len(collective.groups)}x{len(collective.groups[0]) if collective.groups else 0}"
            )
            remark = self.remark(collective)
            lines.append(
                f"{collective.kind:<16} {collective.bytes:>12} {shape:>8} {predicted:>10} "
                f"{compiled:>9}{f'  <- {remark}' if remark else ''}"
            )
        return "\n".join(lines)


def _totals(collectives: Counter[HloCollective]) -> Counter[tuple[str, DeviceGroups]]:
    """Bytes moved per step, by kind and groups."""
    total: Counter[tuple[str, DeviceGroups]] = Counter()
    for collective, times in collectives.items():
        total[collective.kind, collective.groups] += collective.bytes * times
    return total


def compare(collectives: Iterable[Collective], mesh: Mesh, compiled_text: str) -> Comparison:
    """Compares a plan's collectives with the text of a compiled program.

    Args:
      collectives: as predicted, `plan.collectives`; one in a loop counts once, as in the text.
      mesh: the plan's mesh.
      compiled_text: `plan.jit().lower(...).compile().as_text()`.

    Raises:
      VerifyError: the text has device groups in a form that is not known.
    """
    return side_by_side(collectives, mesh, found_collectives(parse(compiled_text)))


def hlo_collective(collective: Collective, mesh: Mesh) -> HloCollective:
    """Converts a planned collective to the form in which collectives are compared."""
    groups = normal(mesh.groups(tuple(mesh.axis(name) for name in collective.axes)))
    if COLLECTIVES[collective.kind].hlo.pairs:
        groups = joined(collective.pairs) if collective.pairs else normal(map(sorted, groups))
    return HloCollective(collective.kind, collective.bytes, groups)


def side_by_side(
    collectives: Iterable[Collective],
    mesh: Mesh,
    found: Iterable[Found],
    executions: bool = False,
    becomes: Sequence[Sequence[Becomes]] = (),
) -> Comparison:
    """Compares a plan's collectives with those found in a compiled program.

    Args:
      collectives: as predicted.
      mesh: the plan's mesh.
      found: as compiled.
      executions: True to count a collective in a loop as often as it runs, not once; needed to
        compare with a compiler that unrolls loops.
      becomes: for each of the collectives its possible rewrites, as `Backend.known_rewrites`
        returns them; none by default.
    """
    compiled: Counter[HloCollective] = Counter()
    cut: Counter[HloCollective] = Counter()
    rewritten: Counter[Rewritten] = Counter()
    for each in found:
        times = each.times if executions else 1
        if each.patch:
            continue
        compiled[each.collective] += times
        if each.cut:
            cut[each.collective] += times
        if each.padded:
            rewritten[Rewritten("padded shards", each.collective, each.collective)] += times
    planned: Counter[tuple[HloCollective, tuple[Becomes, ...]]] = Counter()
    for number, c in enumerate(collectives):
        known = tuple(becomes[number]) if number < len(becomes) else ()
        planned[hlo_collective(c, mesh), known] += c.count if executions else 1
    predicted: Counter[HloCollective] = Counter()
    for (collective, _), times in planned.items():
        predicted[collective] += times
    return Comparison(mesh, predicted, compiled, rewritten + _rewritten(planned, compiled, cut))


def _rewritten(
    planned: Counter[tuple[HloCollective, tuple[Becomes, ...]]],
    compiled: Counter[HloCollective],
    cut: Counter[HloCollective],
) -> Counter[Rewritten]:
    """Returns rewrites that lead from the planned to the compiled collectives, as far as possible.

    Compiled collectives are assigned first to planned ones that have only one outcome, then to the
    others. Among these, certain rewrites come first, then collectives that can stay unchanged, and
    last those that may have been rewritten. An unchanged collective is reassigned in favour of one
    that could only become the same, if another of its possible results is still unassigned.
    """
    left, done = Counter(compiled), Counter[Rewritten]()
    every = [_Open(collective, becomes, times) for (collective, becomes), times in planned.items()]
    every.sort(key=lambda one: len(one.becomes))

    def rewrite(one: _Open, become: Becomes, times: int) -> int:
        """Rewrites up to `times` executions, as far as results are left; returns how many it
        did."""
        collective = become.collective
        if collective is not None:
            made = min(times // become.of, left[collective])
            made = min(made, cut[collective]) if become.cut else made
            left[collective] -= made
            times = made * become.of
        if times:
            done[Rewritten(become.rewrite, one.collective, collective, become.of)] += times
        return times

    def give_way(one: _Open, times: int) -> None:
        for become in one.becomes:
            gone = rewrite(one, become, min(times, one.stays))
            left[one.collective] += gone
            one.stays -= gone
            times -= gone

    for uncertain in (False, True):
        now = [one for one in every if one.uncertain == uncertain]
        for one in now:
            for become in one.becomes:
                if become.always:
                    one.times -= rewrite(one, become, one.times)
        for one in now:
            for become in one.becomes:
                if become.of > 1 and left[one.collective] < one.times:
                    one.times -= rewrite(one, become, one.times)
            one.stays = min(one.times, left[one.collective])
            left[one.collective] -= one.stays
            one.times -= one.stays
    for one in every:
        for become in one.becomes:
            one.times -= rewrite(one, become, one.times)
    for one in every:
        for become in one.becomes:
            for other in every:
                if other is not one and other.collective == become.collective:
                    give_way(other, one.times // become.of)
            one.times -= rewrite(one, become, one.times)
    return done


@dataclasses.dataclass
class _Open:
    """A planned collective, and the number of its executions whose outcome is not yet known."""

    collective: HloCollective
    becomes: tuple[Becomes, ...]
    times: int
    stays: int = 0
    """Number of executions assumed to be unchanged."""

    @property
    def uncertain(self) -> bool:
        """True if the compiler may, but need not, rewrite it."""
        return not all(become.always for become in self.becomes)
