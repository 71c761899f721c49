"""Groups of repeated structure: colors, roles and conflict sets that are alike are decided once.

Two colors are alike when their members are: the same factors of the same kinds of operation, on
the same shapes, equally often. Colors that meet in one operation or value are never grouped, even
when alike: each has to be decided for itself. Where alike ones meet (the widths before and behind a
layer), those of a group are first told apart by the colors that they meet, as by a round of color
refinement (Weisfeiler and Leman); only if that tells them apart no further are they all decided one
by one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence

from partita.analysis.conflicts import Conflicts
from partita.analysis.names import Names
from partita.program.ir import Operation, Program


@dataclasses.dataclass(frozen=True)
class Groups:
    """Numbering of groups; -1 where a node has none."""

    signature: tuple[int, ...]
    """Number of the signature (kind, rule, types) of every operation."""
    color_group: tuple[int, ...]
    """Group of every color."""
    role_group: tuple[int, ...]
    """Group of every role."""
    conflict_groups: tuple[tuple[int, ...], ...]
    """The groups of conflict sets, each the role groups that compete in it."""
    conflict_color: tuple[int, ...]
    """The color group of each group of conflict sets."""

    @property
    def colors(self) -> int:
        """Number of color groups."""
        return max(self.color_group, default=-1) + 1


def analyse_groups(names: Names, conflicts: Conflicts) -> Groups:
    """Groups the colors, roles and conflict sets of a program."""
    program = names.program
    signature = _number(_signature(program, op) for op in program.operations)
    prints = _fingerprints(names, signature, names.color.tolist(), names.colors)
    roles = max((r for r in conflicts.role.tolist()), default=-1) + 1
    role_prints = _fingerprints(names, signature, conflicts.role.tolist(), roles)
    color_group = _separate(names, _number(prints))
    role_color = {
        r: color_group[c] for s, c in zip(conflicts.sets, conflicts.color, strict=True) for r in s
    }
    kinds: dict[Hashable, list[tuple[int, ...]]] = {}
    for roles_of_set, color in zip(conflicts.sets, conflicts.color, strict=True):
        ordered = tuple(sorted(roles_of_set, key=lambda r: (role_prints[r], r)))
        key = (color_group[color], tuple(role_prints[r] for r in ordered))
        kinds.setdefault(key, []).append(ordered)
    role_group = [-1] * roles
    conflict_groups = []
    conflict_color = []
    count = 0
    for sets in kinds.values():
        width = len(sets[0])
        for ordered in sets:
            for place, role in enumerate(ordered):
                role_group[role] = count + place
        conflict_groups.append(tuple(range(count, count + width)))
        conflict_color.append(role_color[sets[0][0]])
        count += width
    return Groups(
        tuple(signature),
        tuple(color_group),
        tuple(role_group),
        tuple(conflict_groups),
        tuple(conflict_color),
    )


def _signature(program: Program, op: Operation) -> Hashable:
    values = program.values
    types = tuple(values[v].type for v in (*op.operands, *op.results))
    said = (op.given, op.manual, op.work, op.kernel, op.memory)
    return (op.kind, op.rule, op.combine, op.zero_init, said, types)


def _number(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _fingerprints(
    names: Names, signature: Sequence[int], label: Sequence[int], count: int
) -> list[tuple[tuple[tuple[int, int], int], ...]]:
    """Counts for each label how many times it holds which factor of which signature."""
    members: list[Counter[tuple[int, int]]] = [Counter() for _ in range(count)]
    for op, number in enumerate(signature):
        start, end = names.factor_base[op], names.factor_base[op + 1]
        for factor, held in enumerate(label[start:end]):
            if held >= 0:
                members[held][number, factor] += 1
    return [tuple(sorted(counter.items())) for counter in members]


def _separate(names: Names, group: list[int]) -> list[int]:
    """Splits the groups of which two different colors meet in one operation or value."""
    together = _meetings(names)
    while meeting := _meeting(together, group):
        around = _neighbourhoods(together, group, meeting)
        finer = _number((g, around.get(c)) for c, g in enumerate(group))
        if max(finer) == max(group):
            return _number((g, c if g in meeting else -1) for c, g in enumerate(group))
        group = finer
    return group


def _meetings(names: Names) -> list[tuple[int, ...]]:
    """Returns the colors of every operation and value that has several different ones, in order."""
    color = names.color.tolist()
    bases = names.value_base[:-1] + names.factor_base
    held = (tuple(c for c in color[a:b] if c >= 0) for a, b in itertools.pairwise(bases))
    return [colors for colors in held if len(set(colors)) > 1]


def _meeting(together: Sequence[tuple[int, ...]], group: Sequence[int]) -> set[int]:
    """Returns the groups of which two different colors meet."""
    found: set[int] = set()
    for colors in together:
        held = [group[c] for c in set(colors)]
        if len(set(held)) < len(held):
            found.update(g for g in held if held.count(g) > 1)
    return found


def _neighbourhoods(
    together: Sequence[tuple[int, ...]], group: Sequence[int], meeting: Container[int]
) -> dict[int, Hashable]:
    """Counts how many times every color of some groups meets which groups, by place."""
    around: dict[int, Counter[Hashable]] = {}
    for colors in together:
        if not any(group[c] in meeting for c in colors):
            continue
        held = tuple(group[c] for c in colors)
        for place, color in enumerate(colors):
            if group[color] in meeting:
                around.setdefault(color, Counter())[place, held] += 1
    return {color: frozenset(found.items()) for color, found in around.items()}
