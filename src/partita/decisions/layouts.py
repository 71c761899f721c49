"""`Layouts`: the layout of every operation and value: the different ones, and who has which.

Which one each has is a string of runs, in order: `12*3` is twelve times number 3 of the table, `3`
once, and `40*-` forty that are as they were before.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from partita.decisions.decision import Decision
from partita.decisions.stage import Stage
from partita.errors import FileError
from partita.mesh import Mesh
from partita.program import Program
from partita.program.ir import Operation, show_axes
from partita.program.rule import Rule
from partita.tiling import Assignment, Axes, Layout

MOST = 10**7
"""Operations or values of a program that a file may list."""

_RUN = re.compile(r"(?:([0-9]{1,12})\*)?(-|[0-9]{1,12})")

_Item = tuple[Layout, tuple[int, ...]]
"""A layout, and the axes along which a value is pinned."""


def runs(codes: Iterable[int | None]) -> str:
    """Numbers as a string of runs; None is `-`."""
    found = ((code, sum(1 for _ in same)) for code, same in itertools.groupby(codes))
    return " ".join(
        (f"{count}*" if count > 1 else "") + ("-" if code is None else str(code))
        for code, count in found
    )


def from_runs(text: str, length: int, known: int, what: str) -> list[int | None]:
    """The numbers that a string of runs stands for.

    Args:
      text: the string.
      length: how many numbers there have to be.
      known: what they have to be below.
      what: what they are of, for messages.

    Raises:
      FileError: it is no such string.
    """
    codes: list[int | None] = []
    for word in text.split(" ") if text else []:
        match = _RUN.fullmatch(word)
        if not match:
            raise FileError(f"{what}: {word[:40]!r} is no run such as 12*3")
        count = int(match[1] or 1)
        code = None if match[2] == "-" else int(match[2])
        if code is not None and code >= known:
            raise FileError(f"{what}: there is no number {code}, of {known}")
        if len(codes) + count > length:
            raise FileError(f"{what}: there are more than {length}")
        codes += [code] * count
    if len(codes) != length:
        raise FileError(f"{what}: there are {len(codes)}, and should be {length}")
    return codes


def length(text: str) -> int:
    """Returns the count of numbers that a string of runs stands for, up to the limit of a file.

    Raises:
      FileError: it stands for more.
    """
    total = sum(int(count or 1) for count, _ in _RUN.findall(text))
    if total > MOST:
        raise FileError(f"there are {total} operations or values")
    return total


class LayoutRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A layout of operations or values: for each factor or dimension, the names of its axes."""

    axes: tuple[tuple[str, ...], ...]
    pinned: tuple[str, ...] = ()
    """Axes along which a value is pinned."""


class Layouts(Decision, frozen=True, tag="layouts"):
    """The layouts that a tactic has led to, of which no other decisions say how.

    A tactic of a user that returns an assignment and nothing else is kept so. The numbers are those
    of `layouts`; see `runs`.
    """

    layouts: tuple[LayoutRow, ...]
    operations: str
    """The layout of every operation, `-` for one that stays as it is."""
    values: str
    """The same of every value."""

    @classmethod
    def between(cls, before: Assignment, after: Assignment, mesh: Mesh) -> Layouts:
        """Returns what leads from one assignment to another."""
        pins, old_pins = _by_value(after), _by_value(before)
        numbers: dict[_Item, int] = {}

        def number(layout: Layout, pinned: tuple[int, ...]) -> int:
            while layout and not layout[-1]:  # the same for every rank, so that there are fewer
                layout = layout[:-1]
            return numbers.setdefault((layout, pinned), len(numbers))

        operations = runs(
            None if new == old else number(new, ())
            for old, new in zip(before.ops, after.ops, strict=True)
        )
        values = runs(
            None if new == old and pins.get(v) == old_pins.get(v) else number(new, pins.get(v, ()))
            for v, (old, new) in enumerate(zip(before.values, after.values, strict=True))
        )
        name = mesh.axis_names
        rows = (LayoutRow(tuple(map(name, layout)), name(pins)) for layout, pins in numbers)
        return cls(tuple(rows), operations, values)

    def first_values(self, count: int) -> Iterator[tuple[int, tuple[tuple[str, ...], ...]]]:
        """Returns the layouts of the first values, of those that change, by the names of axes.

        Raises:
          FileError: `values` says no such layouts.
        """
        codes = from_runs(self.values, length(self.values), len(self.layouts), "`values`")
        for value, code in enumerate(codes[:count]):
            if code is not None:
                yield value, self.layouts[code].axes

    def apply(self, stage: Stage) -> Stage:
        """Returns the stage with these layouts.

        Raises:
          FileError: the program cannot be sharded so.
          AxisError: the mesh has no such axis.
        """
        program, mesh = stage.context.analysis.program, stage.context.mesh
        reader = LayoutReader(program, mesh, self.layouts)
        return stage.at(reader.after(stage.assignment, self.operations, self.values))


class LayoutReader:
    """Reads runs of a file for a program, and checks that it can be sharded so.

    Raises:
      FileError: it cannot.
    """

    def __init__(self, program: Program, mesh: Mesh, rows: Sequence[LayoutRow]) -> None:
        self._program = program
        self._mesh = mesh
        self._items = [self._item(n, row) for n, row in enumerate(rows)]
        self._rules: dict[tuple[int, int, int], Layout] = {}

    def after(self, before: Assignment, operations: str, values: str) -> Assignment:
        """The assignment that runs of operations and values lead to."""
        known = len(self._items)
        codes = from_runs(operations, len(before.ops), known, "`operations`")
        ops = [
            old if code is None else self._operation(index, code)
            for index, (code, old) in enumerate(zip(codes, before.ops, strict=True))
        ]
        codes = from_runs(values, len(before.values), known, "`values`")
        layouts, pins = list(before.values), set(before.pinned)
        pinned = _by_value(before)
        for value, code in enumerate(codes):
            if code is not None:
                layouts[value] = self._value(value, code)
                pins.difference_update((value, axis) for axis in pinned.get(value, ()))
                pins.update((value, axis) for axis in self._items[code][1])
        self._check_buffers(layouts)
        return Assignment(tuple(ops), tuple(layouts), frozenset(pins), before.gathers)

    def _check_buffers(self, layouts: Sequence[Layout]) -> None:
        """A result that takes over an argument's buffer has to be laid out like it."""
        program = self._program
        for argument, result in program.aliases.items():
            a, r = program.arguments[argument], program.results[result]
            if layouts[a] != layouts[r]:
                raise FileError(
                    f"{program.result_names[result]} takes over the buffer of "
                    f"{program.argument_names[argument]}, and is sharded otherwise"
                )

    def _item(self, number: int, row: LayoutRow) -> _Item:
        layout = tuple(tuple(map(self._mesh.axis, axes)) for axes in row.axes)
        pins = tuple(map(self._mesh.axis, row.pinned))
        if any(len(set(axes)) < len(axes) for axes in (*layout, pins)):
            raise FileError(f"layout {number}, {_show(row)}, uses an axis twice")
        return layout, pins

    def _operation(self, index: int, code: int) -> Layout:
        """The layout of the factors of an operation."""
        op = self._program.operations[index]
        # Rules are shared, and live as long as the program.
        key = (id(op.rule), id(op.given), code)
        known = self._rules.get(key)
        if known is not None:
            return known
        layout, pins = self._items[code]
        where = f"operation {index}, {op.title}{f' at {op.source}' if op.source else ''}"
        if pins:
            raise FileError(f"{where}, cannot be pinned along an axis: only values can")
        layout = _of_rank(layout, len(op.rule.factors), "factors", where)
        self._check_factors(op.rule, layout, where)
        self._check_given(op, layout, where)
        self._check_once(_but_for_given(op.rule, layout), where)
        self._rules[key] = layout
        return layout

    def _check_factors(self, rule: Rule, layout: Layout, where: str) -> None:
        for number, (factor, axes) in enumerate(zip(rule.factors, layout, strict=True)):
            if not axes:
                continue
            parts = self._mesh.size(axes)
            what = f"{where}: factor {number} of {factor.size}"
            if factor.kind == "blocked" or factor.size < min(2, parts):
                raise FileError(f"{what} cannot be sharded: {factor.reason or 'it is one index'}")
            if factor.size % parts:
                raise FileError(f"{what} does not divide by {parts}")
            if factor.size // parts < factor.least:
                raise FileError(f"{what} cannot be split in shards of {factor.size // parts}")

    def _check_given(self, op: Operation, layout: Layout, where: str) -> None:
        """Raises unless factors whose sharding the program gives are sharded like that."""
        if op.given is None:
            return
        for factor, axes, said in zip(op.rule.factors, layout, op.given.axes, strict=True):
            if factor.kind == "given" and self._mesh.axis_names(axes) != said:
                raise FileError(f"{where}: the program says that it is sharded as {op.given}")

    def _check_once(self, layout: Sequence[Axes], where: str) -> None:
        used = [axis for axes in layout for axis in axes]
        if len(set(used)) < len(used):
            shown = show_axes(map(self._mesh.axis_names, layout))
            raise FileError(f"{where}: {shown} uses an axis twice")

    def _value(self, value: int, code: int) -> Layout:
        """The layout of the dimensions of a value."""
        shape = self._program.values[value].type.shape
        where = self._program.describe(value)
        layout = _of_rank(self._items[code][0], len(shape), "dimensions", where)
        self._check_once(layout, where)
        for dim, (size, axes) in enumerate(zip(shape, layout, strict=True)):
            if axes and size % self._mesh.size(axes):
                raise FileError(
                    f"{where}: dimension {dim} of {size} does not divide by {self._mesh.size(axes)}"
                )
        if layout and layout[-1] and value in self._program.keys:
            raise FileError(f"{where}: the words of a random key cannot be sharded")
        return layout


def _but_for_given(rule: Rule, layout: Layout) -> list[Axes]:
    """A layout of factors in which all of which the program says how they are sharded count as one:
    operands and results of a `shard_map` have an axis each for itself."""
    pairs = list(zip(rule.factors, layout, strict=True))
    given = {axis for factor, axes in pairs if factor.kind == "given" for axis in axes}
    return [axes for factor, axes in pairs if factor.kind != "given"] + [tuple(given)]


def _by_value(assigned: Assignment) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for value, axis in sorted(assigned.pinned):
        found.setdefault(value, []).append(axis)
    return {value: tuple(axes) for value, axes in found.items()}


def _of_rank(layout: Layout, rank: int, what: str, where: str) -> Layout:
    if len(layout) > rank:
        raise FileError(f"{where} has {rank} {what}, and is sharded along {len(layout)}")
    return (*layout, *((),) * (rank - len(layout)))


def _show(row: LayoutRow) -> str:
    return f"({', '.join('+'.join(axes) or '-' for axes in row.axes)})"
