"""View of a plan for explanations: names of values, their collectives, and equivalent ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from partita.analysis import Between, Window
from partita.cost import Interconnect, interconnect
from partita.errors import UnknownNameError, closest
from partita.explain.origins import Origins
from partita.planning.schedule import Scheduled
from partita.program import Program
from partita.program.names import match, pattern
from partita.spmd import Lowering, Reshard, ValuePlan
from partita.text import relative, size


@dataclasses.dataclass(frozen=True)
class CollectiveGroup:
    """Equivalent collectives: the same reshard for the same lines of the user's code."""

    indices: tuple[int, ...]
    reshards: tuple[Reshard, ...]
    values: tuple[int, ...]
    """The value that each of them moves."""


class PlanView:
    """A schedule's result, as explanations look at it."""

    def __init__(self, done: Scheduled) -> None:
        self.done = done
        self.origins = Origins(done)
        self.context = done.stage.context
        self.mesh = self.context.mesh
        self.program: Program = self.context.analysis.program
        self.lowering: Lowering = done.lowering

    @cached_property
    def interconnect(self) -> Interconnect:
        """The networks of the mesh."""
        return interconnect(self.mesh, self.context.hardware)

    @cached_property
    def names(self) -> dict[int, str]:
        """The values that users can name, with their names."""
        program = self.program
        named = [
            *zip(program.arguments, program.argument_names, strict=True),
            *((value, tag) for tag, value in program.tagged),
            *zip(program.results, program.result_names, strict=True),
        ]
        found: dict[int, str] = {}
        for value, name in named:
            found.setdefault(value, name)
        return found

    @cached_property
    def groups(self) -> list[CollectiveGroup]:
        """Returns the collectives of a step, equivalent ones together, in program order."""
        rows: dict[object, list[int]] = {}
        steps = self.done.spmd.collective_steps
        for number, reshard in enumerate(steps):
            value = self.moved(reshard)
            key = (
                reshard.step,
                reshard.times,
                reshard.again,
                pattern(self.title(value)),
                tuple(self.uses(reshard)),
            )
            rows.setdefault(key, []).append(number)
        return [
            CollectiveGroup(
                tuple(numbers),
                tuple(steps[n] for n in numbers),
                tuple(self.moved(steps[n]) for n in numbers),
            )
            for numbers in rows.values()
        ]

    @cached_property
    def moves_of(self) -> dict[int, list[int]]:
        """The numbers of the collectives of each value."""
        found: dict[int, list[int]] = {}
        for number, reshard in enumerate(self.done.spmd.collective_steps):
            found.setdefault(self.moved(reshard), []).append(number)
        return found

    def moved(self, reshard: Reshard) -> int:
        """The value that a reshard moves."""
        return self.done.spmd.buffers[reshard.input].value

    def plan(self, value: int) -> ValuePlan:
        """Returns the layout of a value and how it is moved."""
        return self.lowering.plans[self.lowering.graph.value_class[value]]

    def title(self, value: int) -> str:
        """A value by the user's name for it, or by its operation, line and number."""
        name = self.names.get(value)
        if name is not None:
            return name
        return f"{self.program.describe(value)}"

    def users(self, reshard: Reshard) -> list[tuple[int, int]]:
        """The uses that a reshard is for, as (operation, operand number)."""
        value = self.moved(reshard)
        if reshard.use is None:
            return self.context.analysis.uses[value]
        windows = self._windows(value, reshard.use, self.regathered(value))
        return [use for use, window in windows.items() if window == windows[reshard.use]]

    def _windows(
        self, value: int, use: tuple[int, int], between: Between
    ) -> dict[tuple[int, int], Window]:
        """Returns the uses that need a value in the same form as one, with their windows."""
        analysis, need = self.context.analysis, self.need(*use)
        windows = zip(analysis.uses[value], analysis.windows[between][value], strict=True)
        return {use: window for use, window in windows if self.need(*use) == need}

    def runs(self, value: int, use: tuple[int, int], between: Between) -> int:
        """Returns how often a value would be gathered for a use and all that need the same, each
        time that it is made, if it were gathered again between these uses."""
        return sum(window.runs for window in {*self._windows(value, use, between).values()})

    def regathered(self, value: int) -> Between:
        """Between which uses a value is gathered again."""
        return self.lowering.regathered.get(self.lowering.graph.value_class[value], Between.NONE)

    def need(self, op: int, number: int) -> object:
        """Returns the form in which an operation needs an operand."""
        return self.lowering.forms[self.lowering.graph.op_class[op]].need(number)

    def uses(self, reshard: Reshard) -> list[str]:
        """The operations that a reshard is for, and the results, in words."""
        value = self.moved(reshard)
        found = {self.origins.operation(op): None for op, _ in self.users(reshard)}
        if reshard.use is None and value in self.program.results:
            at = self.program.results.index(value)
            found[pattern(self.program.result_names[at])] = None
        return list(found)

    def seconds(self, reshard: Reshard) -> float:
        """Time of one execution of a reshard."""
        return self.interconnect.seconds(reshard.step)

    def hidden(self, reshard: Reshard) -> bool:
        """Returns whether a reshard overlaps with other work."""
        value, timing = self.moved(reshard), self.context.timing
        if reshard.step.kind not in self.context.hardware.overlapped:
            return False
        if reshard.use is None:
            return bool(timing.overlapped_sums[value])
        values, places, hidden = timing.prefetched
        uses = self.context.analysis.uses[value]
        mine = {uses.index(use) for use in self.users(reshard)}
        rows = zip(places[values == value], hidden[values == value], strict=True)
        return all(bool(under) for at, under in rows if int(at) in mine)

    def shown(self, reshard: Reshard) -> str:
        """A reshard in short: `all_gather(data) 64.0 KiB`."""
        return show_step(
            self.mesh.axis_names(reshard.step.axes), reshard.step.kind, reshard.step.bytes
        )

    def select(self, what: str) -> list[tuple[str, int]]:
        """Returns the values that a name, a pattern, a number or a source line refers to.

        Raises `UnknownNameError`, with the closest names, if there are none.
        """
        program = self.program
        if number := re.fullmatch(r"%(\d+)", what):
            if int(number[1]) >= len(program.values):
                raise UnknownNameError(
                    f"there is no value {what}; those of {program.name} are %0 to "
                    f"%{len(program.values) - 1}, as print(plan.program) shows them"
                )
            return [(self.title(int(number[1])), int(number[1]))]
        if re.fullmatch(r".+:\d+", what):
            found = list(self._made_at(what))
            if found:
                return found
            lines = {op.source for op in program.operations if op.source}
            if not any(name == what for name in self.names.values()):
                raise UnknownNameError(
                    f"no value of {program.name} is made at {what}{closest(what, sorted(lines))}"
                )
        return match(program, what)

    def _made_at(self, line: str) -> Iterator[tuple[str, int]]:
        """The values made at a source line, given as `file.py:12` or with its path."""
        line = relative(line)
        for op in self.program.operations:
            if op.source == line or op.source.endswith(f"/{line}"):
                for value in op.results:
                    yield (
                        self.names.get(value, f"%{value} {self.origins.operation(op.index)}"),
                        value,
                    )

    def alike(self, value: int) -> list[int]:
        """Returns the values of the same type whose names differ only in indices."""
        name, type_ = pattern(self.names[value]), self.program.values[value].type
        return [
            other
            for other, theirs in self.names.items()
            if pattern(theirs) == name and self.program.values[other].type == type_
        ]


def show_step(axes: Iterable[str], kind: str, bytes_: int) -> str:
    """A collective in short: `all_gather(data) 64.0 KiB`."""
    return f"{kind}({', '.join(axes)}) {size(bytes_)}"
