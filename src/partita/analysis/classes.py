"""Classes: the program with repeated structure folded, on which tiling, lowering and cost work.

Operations of one class have the same signature, the same color and role groups on the same
factors, the same tiling so far, and neighbours that agree in all of this up to `ROUNDS` steps
(color refinement, as in graph isomorphism tests). Values of one class have one producer class and
the same consumer classes. So a decision made for a class holds for every member, and what a layer
costs is computed once however many layers there are.

The same data describes the unfolded program: `discrete` puts everything in a class of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

from partita.analysis.conflicts import Conflicts
from partita.analysis.groups import Groups
from partita.analysis.names import Names
from partita.analysis.windows import Between, Window, use_windows, windows_between
from partita.program.ir import Operation, Program, Value

ROUNDS = 1
"""Number of steps up to which neighbours are compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One read of a value class."""

    op: int
    """Index of the reading operation class."""
    number: int
    """Operand number."""
    windows: tuple[Window, ...]
    """Its use window, by `Between`: uses of one window share a gathered copy, even if the value is
    re-gathered."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpClass:
    """A class of operations; `op` is its first member and speaks for all."""

    index: int
    op: Operation
    members: tuple[int, ...]
    colors: tuple[int, ...]
    """Color group of every factor, -1 for those that carry no shards."""
    roles: tuple[int, ...]
    """Role group of every factor, -1 outside conflicts."""
    operands: tuple[tuple[int, ...], ...]
    """Value classes that members read as each operand (nearly always one)."""
    results: tuple[tuple[int, ...], ...]
    """Value classes that members define as each result."""


@dataclasses.dataclass(frozen=True, slots=True)
class ValueClass:
    """A class of values; `value` is its first member and speaks for all."""

    index: int
    value: Value
    members: tuple[int, ...]
    colors: tuple[int, ...]
    roles: tuple[int, ...]
    producer: tuple[int, int] | None
    """Defining operation class and result number; None for arguments."""
    uses: tuple[Use, ...]
    is_result: bool
    aliases: tuple[int, ...]
    """Value classes with the layout of this one, because a donated buffer passes between them."""


@dataclasses.dataclass(frozen=True)
class ClassGraph:
    """The folded program."""

    program: Program
    ops: tuple[OpClass, ...]
    values: tuple[ValueClass, ...]
    op_class: tuple[int, ...]
    """Class of every operation."""
    value_class: tuple[int, ...]
    """Class of every value."""
    analysis: Analysis
    """Analysis of the program."""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """All facts about a program that do not depend on a mesh."""

    program: Program
    names: Names
    conflicts: Conflicts
    groups: Groups
    uses: list[list[tuple[int, int]]]
    """The (operation, operand number) pairs that read each value."""
    labels: list[int]
    """Number of each operation's signature, color groups and role groups."""
    regather_window: int | None = None
    """Uses of a value more than this many operations apart belong to different use windows: what is
    gathered for one may be dropped and re-gathered for the next (a weight's forward and backward
    use). None if nothing is re-gathered."""

    @cached_property
    def near(self) -> list[list[int]]:
        """Number of the group of near uses of each use of every value."""
        return [use_windows(self.program, uses, self.regather_window) for uses in self.uses]

    @cached_property
    def windows(self) -> tuple[list[list[Window]], ...]:
        """Use window of each use of every value, by `Between`."""
        if self.regather_window is None:
            together = [[Window(0)] * len(uses) for uses in self.uses]
            return tuple(together for _ in Between)
        of_values = [
            windows_between(self.program, value, uses, near)
            for value, (uses, near) in enumerate(zip(self.uses, self.near, strict=True))
        ]
        return tuple([each[between] for each in of_values] for between in Between)

    def value_colors(self, value: int) -> tuple[int, ...]:
        """Returns the color group of every dimension of a value."""
        base = self.names.value_base
        return self.groups_of(base[value], base[value + 1])[0]

    def op_colors(self, op: int) -> tuple[int, ...]:
        """Returns the color group of every factor of an operation."""
        base = self.names.factor_base
        return self.groups_of(base[op], base[op + 1])[0]

    def groups_of(self, start: int, end: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns color groups and role groups of the nodes `start..end` of the name graph."""
        color, role = self.names.color[start:end].tolist(), self.conflicts.role[start:end].tolist()
        group, role_group = self.groups.color_group, self.groups.role_group
        return (
            tuple(group[c] if c >= 0 else -1 for c in color),
            tuple(role_group[r] if r >= 0 else -1 for r in role),
        )


Label = Callable[[int], Hashable]


def fold(
    analysis: Analysis, op_label: Label = lambda _: None, value_label: Label = lambda _: None
) -> ClassGraph:
    """Folds a program into classes, given labels of its operations and values."""
    program = analysis.program
    of_value = _numbering((value_label(v.index), v.index in program.hosted) for v in program.values)
    color = _numbering(
        (
            analysis.labels[op.index],
            op_label(op.index),
            tuple(of_value[v] for v in op.operands),
            tuple(of_value[v] for v in op.results),
        )
        for op in program.operations
    )
    arguments = _argument_labels(program, of_value)
    results = frozenset(program.results)
    for _ in range(ROUNDS):
        color = _refine(analysis, color, arguments, results)
    value_color = _numbering(
        (
            arguments[v.index]
            if v.producer is None
            else (color[v.producer], v.position, of_value[v.index]),
            _shared(analysis, color, v.index),
            v.index in results,
        )
        for v in program.values
    )
    return _build(analysis, color, value_color)


def discrete(analysis: Analysis) -> ClassGraph:
    """Returns the unfolded program: every operation and value is a class of its own, in order."""
    program = analysis.program
    return _build(analysis, list(range(len(program.operations))), list(range(len(program.values))))


def _numbering(keys: object) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]  # type: ignore[attr-defined]


def _argument_labels(program: Program, of_value: Sequence[int]) -> dict[int, Hashable]:
    return {
        v: ("argument", program.values[v].type, of_value[v], position in program.aliases)
        for position, v in enumerate(program.arguments)
    }


def _refine(
    analysis: Analysis,
    color: Sequence[int],
    arguments: dict[int, Hashable],
    results: frozenset[int],
) -> list[int]:
    program, uses = analysis.program, analysis.uses
    defined: list[Hashable] = [
        arguments[v.index] if v.producer is None else (color[v.producer], v.position)
        for v in program.values
    ]
    read = [
        (tuple(sorted((color[op], number) for op, number in uses[v.index])), v.index in results)
        for v in program.values
    ]
    return _numbering(
        (
            color[op.index],
            tuple(defined[v] for v in op.operands),
            tuple(read[v] for v in op.results),
        )
        for op in program.operations
    )


def _shared(analysis: Analysis, color: Sequence[int], value: int) -> Hashable:
    """Returns the uses of a value with their windows, grouped by shared gathered copy."""
    windows = [each[value] for each in analysis.windows]
    together: dict[int, list[tuple[int, int, int]]] = {}
    in_loops: list[Hashable] = []
    for (op, number), near, *of_use in zip(
        analysis.uses[value], analysis.near[value], *windows, strict=True
    ):
        together.setdefault(of_use[Between.ALL].number, []).append((color[op], number, near))
        if of_use[Between.EACH].body:
            each = [(window.number, window.runs) for window in of_use]
            in_loops.append((color[op], number, tuple(each)))
    return tuple(sorted(tuple(sorted(uses)) for uses in together.values())), tuple(in_loops)


def _build(
    analysis: Analysis,
    op_class: list[int],
    value_class: list[int],
) -> ClassGraph:
    program, names = analysis.program, analysis.names
    op_members = _members(op_class)
    value_members = _members(value_class)
    operands: list[list[set[int]]] = []
    results: list[list[set[int]]] = []
    for members in op_members:
        op = program.operations[members[0]]
        operands.append([set() for _ in op.operands])
        results.append([set() for _ in op.results])
    for op in program.operations:
        mine, made = operands[op_class[op.index]], results[op_class[op.index]]
        for number, v in enumerate(op.operands):
            mine[number].add(value_class[v])
        for number, v in enumerate(op.results):
            made[number].add(value_class[v])
    ops = []
    for index, members in enumerate(op_members):
        op = program.operations[members[0]]
        base = names.factor_base
        colors, roles = analysis.groups_of(base[op.index], base[op.index + 1])
        ops.append(
            OpClass(
                index,
                op,
                tuple(members),
                colors,
                roles,
                tuple(tuple(sorted(s)) for s in operands[index]),
                tuple(tuple(sorted(s)) for s in results[index]),
            )
        )
    partners: dict[int, set[int]] = {}
    for argument, result in program.aliases.items():
        a = value_class[program.arguments[argument]]
        r = value_class[program.results[result]]
        partners.setdefault(a, set()).add(r)
        partners.setdefault(r, set()).add(a)
    is_result = frozenset(program.results)
    values = []
    for index, members in enumerate(value_members):
        value = program.values[members[0]]
        base = names.value_base
        colors, roles = analysis.groups_of(base[value.index], base[value.index + 1])
        producer = None
        if value.producer is not None:
            producer = (op_class[value.producer], value.position)
        uses = tuple(
            Use(op_class[op], number, tuple(windows))
            for (op, number), *windows in zip(
                analysis.uses[value.index],
                *(each[value.index] for each in analysis.windows),
                strict=True,
            )
        )
        values.append(
            ValueClass(
                index,
                value,
                tuple(members),
                colors,
                roles,
                producer,
                uses,
                value.index in is_result,
                tuple(sorted(partners.get(index, ()))),
            )
        )
    return ClassGraph(
        program, tuple(ops), tuple(values), tuple(op_class), tuple(value_class), analysis
    )


def _members(classes: Sequence[int]) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(max(classes, default=-1) + 1)]
    for item, each in enumerate(classes):
        members[each].append(item)
    return members
