"""Loop nests as text: one line for each operation, repeated structure written once."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Hashable, Iterator, Sequence

from partita.analysis.repeats import Repeat, repeats
from partita.mesh import Layout
from partita.program.blocks import Barrier, Block, Branch, Loop
from partita.program.ir import TensorType
from partita.program.op_traits import CARRY
from partita.program.rule import Halo
from partita.tiling.forms import local_type
from partita.tiling.nests import LoopNests, Nest, nest_of

_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")
"""Matches numbers in names; those that begin with a zero are part of the name."""

LEAST = 8
"""Fewest lines that folding a repetition must save."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a program, with holes for the numbers in it."""

    template: str
    """A format string: `%{} = add(%{}, %{})`."""
    numbers: tuple[int, ...]
    """Numbers that fill the holes of the template: those defined, those read, then others."""
    defines: int = 0
    """Number of values that the line defines, first in `numbers`."""
    reads: int = 0
    """Number of values that it reads, next in `numbers`."""
    kind: Hashable = None
    """Key that must be equal, too, in lines that are folded into one."""
    depth: int = 0
    """Level of indentation."""
    goes_on: bool = False
    """True if it continues what an earlier line of its depth began: a loop, say."""

    @property
    def level(self) -> int:
        """The depth, doubled; one more for a line that continues an earlier one."""
        return 2 * self.depth + self.goes_on

    @property
    def defined(self) -> tuple[int, ...]:
        """The values that it defines."""
        return self.numbers[: self.defines]

    @property
    def read(self) -> tuple[int, ...]:
        """The values that it reads."""
        return self.numbers[self.defines : self.defines + self.reads]


def show(nests: LoopNests) -> str:
    """Returns a program as loop nests, in text.

    `%3 = loop "data"=4 [tile 0], "model"=2 [sum] dot_general(%1[data, model], %2[model, -])` reads:
    for every index along `data`, for every one along `model`, slice `%1` and `%2` along these axes,
    and multiply the slices. Add up results for the same place, and tile them along dimension 0.

    Equal layers are written once. Under `x 24, i = 0 ... 23`, `{7+9i}` is a number that grows.
    """
    lines = _Lines(nests)
    program = nests.program
    parts = (lines.arguments(), lines.block(program.body, 1), lines.results())
    text = [f"core program {program.name} on {nests.mesh}"]
    for part in parts:
        text += _folded(list(part))
    return "\n".join(text)


class _Lines:
    """The lines of a program, none of them folded."""

    def __init__(self, nests: LoopNests) -> None:
        self.nests = nests
        self.program = nests.program
        self.mesh = nests.mesh
        self._templates: dict[object, str] = {}

    def arguments(self) -> Iterator[Line]:
        names = self.program.argument_names
        for name, value in zip(names, self.program.arguments, strict=True):
            template, numbers = _template(name)
            shown = f"%{{}} = {template} : {self._value(value)}"
            yield Line(shown, (value, *numbers), defines=1, depth=1)

    def results(self) -> Iterator[Line]:
        for name, value in zip(self.program.result_names, self.program.results, strict=True):
            template, numbers = _template(name)
            shown = f"{template} = %{{}}{_escape(self._layout(value))}"
            yield Line(shown, (*numbers, value), kind=self.program.values[value].type, depth=1)

    def block(self, block: Block, depth: int) -> Iterator[Line]:
        for item in block.items:
            if isinstance(item, int):
                yield self._operation(item, depth)
            elif isinstance(item, Barrier):
                for number, part in enumerate(item.parts):
                    yield self._operation(part, depth, number > 0)
            elif isinstance(item, Loop):
                yield from self._loop(item, depth)
            else:
                yield from self._branch(item, depth)

    def _loop(self, loop: Loop, depth: int) -> Iterator[Line]:
        carries = [carry for carry in loop.carries if carry is not None]
        for number, carry in enumerate(carries):
            yield self._operation(carry, depth, number > 0)
        trips = "?" if loop.trips is None else loop.trips
        head = f"while %{{}} ({trips} times)  {_escape(loop.source)}".rstrip()
        predicate = self.program.operations[loop.choose].operands
        yield Line(head, predicate, 0, 1, None, depth, bool(carries))
        yield from self.block(loop.condition, depth + 1)
        yield Line("do", (), depth=depth, goes_on=True)
        yield from self.block(loop.body, depth + 1)

    def _branch(self, branch: Branch, depth: int) -> Iterator[Line]:
        yield self._operation(branch.choose, depth)
        for number, block in enumerate(branch.branches):
            yield Line(f"branch {number}", (), depth=depth, goes_on=True)
            yield from self.block(block, depth + 1)
        for join in branch.joins:
            yield self._operation(join, depth, True)

    def _operation(self, index: int, depth: int, goes_on: bool = False) -> Line:
        op, values = self.program.operations[index], self.program.values
        layout = self.nests.assignment.ops[index]
        reads = tuple(values[v].type for v in op.operands)
        makes = tuple(values[v].type for v in op.results)
        key = (op.kind, op.target, id(op.rule), reads, makes, layout, op.combine, op.source)
        template = self._templates.get(key)
        if template is None:
            nest = nest_of(op, layout)
            slices = map(self._slice, nest.form.needs, nest.form.halos)
            what = f"{_escape(op.title)}({', '.join(f'%{{}}{each}' for each in slices)})"
            if nest.loops:
                loops = ", ".join(loop.show(self.mesh) for loop in nest.loops)
                what = f"loop {loops} {what}"
            if makes:
                types = self._types(nest, makes[:1] if op.kind == CARRY else makes)
                what = f"{', '.join(['%{}'] * len(makes))} = {what} : {types}"
            template = self._templates[key] = f"{what}  {_escape(op.source)}".rstrip()
        kind = (op.rule, reads, op.combine, op.zero_init)
        numbers = (*op.results, *op.operands)
        return Line(template, numbers, len(makes), len(reads), kind, depth, goes_on)

    def _slice(self, need: Layout, halo: Halo) -> str:
        """Returns the axes that slice each dimension, and the window of a slice with a halo."""
        if not any(need):
            return ""
        dims = []
        for axes, reach in zip(need, halo or (None,) * len(need), strict=True):
            window = f" {reach}" if reach else ""
            dims.append(("+".join(self.mesh.axis_names(axes)) or "-") + window)
        return _escape(f"[{', '.join(dims)}]")

    def _types(self, nest: Nest, makes: Sequence[TensorType]) -> str:
        """Returns the types of the slices that iterations make, and of the results."""
        slices = [local_type(t, m, self.mesh) for t, m in zip(makes, nest.form.makes, strict=False)]
        made = ", ".join(map(str, makes))
        shown = ", ".join(map(str, slices))
        return made if shown == made else f"{shown} -> {made}"

    def _value(self, value: int) -> str:
        return f"{self.program.values[value].type}{self._layout(value)}"

    def _layout(self, value: int) -> str:
        layout = self.nests.assignment.values[value]
        if not any(layout):
            return ""
        dims = ("+".join(self.mesh.axis_names(axes)) or "-" for axes in layout)
        return _escape(f" ({', '.join(dims)})")


def _folded(lines: Sequence[Line]) -> list[str]:
    text: list[str] = []
    shown = 0
    for repeat in _repeats(lines):
        text += map(_plain, lines[shown : repeat.start])
        first = lines[repeat.start]
        text.append(f"{'  ' * first.depth}x {repeat.count}, i = 0 ... {repeat.count - 1}")
        for offset in range(repeat.period):
            start = repeat.start + offset
            repeated = lines[start : repeat.end : repeat.period]
            holes = map(progress, zip(*(line.numbers for line in repeated), strict=True))
            text.append("  " * (repeated[0].depth + 1) + repeated[0].template.format(*holes))
        shown = repeat.end
    return [*text, *map(_plain, lines[shown:])]


def _repeats(lines: Sequence[Line]) -> list[Repeat]:
    """Finds repeated lines, whatever the numbers of values in them."""
    values = (value for line in lines for value in line.defined)
    # In the order of lines, so that they go up evenly; those of elsewhere, too.
    order = {value: at for at, value in enumerate(values)}
    return repeats(
        [(line.template, line.kind, line.level) for line in lines],
        [[order.get(value, -1) for value in line.read] for line in lines],
        [[order[value] for value in line.defined] for line in lines],
        LEAST,
        [line.level for line in lines],
    )


def _plain(line: Line) -> str:
    return "  " * line.depth + line.template.format(*line.numbers)


def progress(numbers: Sequence[int]) -> str:
    """Returns a formula of a number by iteration: `7`, `{7+9i}`, `{5, then 7+9i}`.

    One or two numbers at the beginning or at the end that do not follow the formula are listed next
    to it. Numbers that follow no formula are all listed.
    """
    for left_out in range(3):
        formula = _formula(numbers[left_out:], left_out)
        if formula is not None and len(numbers) - left_out > 1:
            first = "".join(f"{number}, " for number in numbers[:left_out])
            if not left_out:
                return formula if formula.isdigit() else f"{{{formula}}}"
            return f"{{{first}then {formula}}}"
        formula = _formula(numbers[: len(numbers) - left_out], 0)
        if formula is not None and len(numbers) - left_out > 1:
            last = ", ".join(map(str, numbers[len(numbers) - left_out :]))
            return f"{{{formula}, at last {last}}}"
    return f"{{{', '.join(map(str, numbers))}}}"


def _formula(numbers: Sequence[int], first: int) -> str | None:
    """Returns a constant or linear formula of `i`, which begins at `first`, or None."""
    if len(numbers) < 2:
        return None
    step = numbers[1] - numbers[0]
    if any(b - a != step for a, b in itertools.pairwise(numbers)):
        return None
    if not step:
        return str(numbers[0])
    start = numbers[0] - step * first
    by = "i" if step == 1 else "-i" if step == -1 else f"{step}i"
    return by if not start else f"{start}{by}" if step < 0 else f"{start}+{by}"


def _template(name: str) -> tuple[str, tuple[int, ...]]:
    """Returns a name with holes for the numbers in it, and these numbers."""
    numbers = tuple(int(found) for found in _NUMBER.findall(name))
    return _NUMBER.sub("{}", _escape(name)), numbers


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
