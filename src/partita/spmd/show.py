"""SPMD programs as text: runs of instructions that repeat are written once.

How repeats are written:

- `repeat 24 times (b+42, #+4)`: the numbers of buffers that the block makes grow by 42 each time,
  those of its collectives by 4;
- `b3[+8]`, for a buffer made outside of the block: 8 more each time;
- `b100|b145`: `b100` the first time, then the `b145` of the time before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from partita.analysis.repeats import Read, Repeat, repeats
from partita.program.names import pattern, shared_pattern
from partita.spmd.instructions import Hold, Instruction, LocalProgram, Reshard, Run, Section, While
from partita.tiling import Layout


def show(spmd: LocalProgram) -> str:
    """Returns the program as text; see this module for how repeats are written."""
    return "\n".join(_Text(spmd).lines())


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Place in the text: indentation, and the enclosing repeats."""

    indent: str
    number: str = ""
    """Suffix of the number of a collective: its increase in each enclosing repeat."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """An argument, an instruction or a result, with the function that writes it."""

    key: Hashable
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    collectives: int
    write: Callable[[Sequence[str], _Place, str], list[str]]
    """Function from notes on reads, place and name to lines: one, and more for sections."""
    name: str = ""
    """The user's name of an argument or a result."""


class _Text:
    """Writes one program, numbering its collectives."""

    def __init__(self, spmd: LocalProgram) -> None:
        self.spmd = spmd
        self.program = spmd.program
        self.number = 0

    def lines(self) -> list[str]:
        spmd, program = self.spmd, self.program
        title = f"spmd program {program.name} on {spmd.mesh} ({spmd.mesh.devices} devices)"
        place = _Place("  ")
        arguments = [
            self._argument(*each)
            for each in zip(
                program.argument_names, spmd.arguments, spmd.argument_layouts, strict=True
            )
        ]
        results = [
            self._result(*each)
            for each in zip(program.result_names, spmd.results, spmd.result_layouts, strict=True)
        ]
        instructions = [self._item(each) for each in spmd.instructions]
        written = [self._all(items, place) for items in (arguments, instructions, results)]
        return [title, *(line for lines in written for line in lines)]

    def _all(
        self, items: Sequence[_Item], place: _Place, notes: Sequence[str] | None = None
    ) -> list[str]:
        """Writes items, repeats once.

        Args:
          items: all items of one section.
          place: the place in the text.
          notes: the suffixes of the names that they read, in order.
        """
        sizes = [len(item.reads) for item in items]
        if notes is None:
            notes = [""] * sum(sizes)
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        found = repeats(
            [item.key for item in items],
            [item.reads for item in items],
            [item.makes for item in items],
        )
        lines: list[str] = []
        at = 0
        for repeat in [*found, None]:
            for i in range(at, len(items) if repeat is None else repeat.start):
                lines += items[i].write(notes[starts[i] : starts[i + 1]], place, items[i].name)
            if repeat is not None:
                inside = notes[starts[repeat.start] : starts[repeat.start + repeat.period]]
                lines += self._repeat(items, repeat, place, inside)
                at = repeat.end
        return lines

    def _repeat(
        self, items: Sequence[_Item], repeat: Repeat, place: _Place, notes: Sequence[str]
    ) -> list[str]:
        block = [
            dataclasses.replace(
                items[i],
                name=shared_pattern([each.name for each in items[i : repeat.end : repeat.period]]),
            )
            for i in range(repeat.start, repeat.start + repeat.period)
        ]
        made = {b for item in block for b in item.makes}
        collectives = sum(item.collectives for item in block)
        reads = [read for each in repeat.reads for read in each]
        notes = [_note(read, made) + outer for read, outer in zip(reads, notes, strict=True)]
        steps = [f"b+{repeat.stride}"] * bool(made) + [f"#+{collectives}"] * bool(collectives)
        title = f"repeat {repeat.count} times" + (f" ({', '.join(steps)})" if steps else "")
        number = f"[+{collectives}]{place.number}"
        before = self.number
        inside = self._all(block, _Place(place.indent + "  ", number), notes)
        self.number = before + repeat.count * collectives
        return [place.indent + title, *inside]

    def _argument(self, name: str, buffer: int, layout: Layout) -> _Item:
        type_ = self.spmd.buffers[buffer].type

        def write(_: Sequence[str], place: _Place, name: str) -> list[str]:
            return [f"{place.indent}b{buffer} = {name} : {type_}{self._layout(layout)}"]

        return _Item((pattern(name), type_, layout), (), (buffer,), 0, write, name)

    def _result(self, name: str, buffer: int, layout: Layout) -> _Item:
        def write(notes: Sequence[str], place: _Place, name: str) -> list[str]:
            return [f"{place.indent}{name} = b{buffer}{notes[0]}{self._layout(layout)}"]

        return _Item((pattern(name), layout), (buffer,), (), 0, write, name)

    def _item(self, item: Instruction) -> _Item:
        if isinstance(item, Run):
            return self._run(item)
        if isinstance(item, Reshard):
            return self._reshard(item)
        if isinstance(item, Hold):
            return self._plain("barrier", item.inputs, item.outputs, "")
        if isinstance(item, While):
            trips = "?" if item.loop.trips is None else item.loop.trips
            loop = [("condition", item.condition), ("body", item.body)]
            return self._nested("while", f"({trips} times)", item.inputs, item.outputs, loop)
        branches = [(f"branch {i}", section) for i, section in enumerate(item.sections)]
        return self._nested("case", "", (item.index,), item.outputs, branches)

    def _run(self, run: Run) -> _Item:
        op = self.program.operations[run.op]
        return self._plain(op.short, run.inputs, run.outputs, op.source)

    def _plain(
        self, kind: str, inputs: tuple[int, ...], outputs: tuple[int, ...], source: str
    ) -> _Item:
        types = tuple(self.spmd.buffers[b].type for b in outputs)

        def write(notes: Sequence[str], place: _Place, _: str) -> list[str]:
            what = self._define(outputs, f"{kind}({_list(inputs, notes)})")
            return [f"{place.indent}{what}  {source}".rstrip()]

        return _Item((kind, source, types, len(inputs)), inputs, outputs, 0, write)

    def _reshard(self, reshard: Reshard) -> _Item:
        step, spmd = reshard.step, self.spmd
        axes = ",".join(spmd.mesh.axis_names(step.axes))
        dims = "".join(
            f" {label}{d}" for label, d in (("dim ", step.dim), ("to ", step.split)) if d >= 0
        )
        producer = self.program.values[spmd.buffers[reshard.input].value].producer
        source = "" if producer is None else self.program.operations[producer].source

        def write(notes: Sequence[str], place: _Place, _: str) -> list[str]:
            cost = ""
            if step.is_collective:
                time = f", {spmd.time(step)}" if spmd.time else ""
                cost = f"  #{self.number}{place.number}: {step.bytes} B{time}"
                self.number += 1
            again = "  (again)" if reshard.again else ""
            what = f"b{reshard.output} = {step.kind}(b{reshard.input}{notes[0]}, {axes}{dims})"
            line = f"{place.indent}{what} : {step.after}{cost}{again}"
            return [f"{line}  {source}" if source and cost else line]

        key = (step, reshard.again, reshard.times, source)
        return _Item(key, (reshard.input,), (reshard.output,), int(step.is_collective), write)

    def _nested(
        self,
        kind: str,
        title: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        sections: Sequence[tuple[str, Section]],
    ) -> _Item:
        parts = [
            (name, section, [self._item(each) for each in section.instructions])
            for name, section in sections
        ]
        reads, makes = list(inputs), list(outputs)
        for _, section, items in parts:
            makes += section.arguments
            for item in items:
                reads += item.reads
                makes += item.makes
            reads += section.results

        def write(notes: Sequence[str], place: _Place, _: str) -> list[str]:
            what = f"{kind}({_list(inputs, notes)}) {title}".rstrip()
            lines = [place.indent + self._define(outputs, what)]
            at = len(inputs)
            deeper = dataclasses.replace(place, indent=place.indent + "    ")
            for name, section, items in parts:
                lines.append(f"{place.indent}  {name}({_list(section.arguments)})")
                end = at + sum(len(item.reads) for item in items)
                lines += self._all(items, deeper, notes[at:end])
                at = end + len(section.results)
                ends = _list(section.results, notes[end:at])
                lines.append(f"{deeper.indent}return {ends}")
            return lines

        inner = tuple(tuple(item.key for item in items) for _, _, items in parts)
        types = tuple(self.spmd.buffers[b].type for b in outputs)
        collectives = sum(item.collectives for _, _, items in parts for item in items)
        key = (kind, title, types, len(inputs), inner)
        return _Item(key, tuple(reads), tuple(makes), collectives, write)

    def _define(self, outputs: Sequence[int], what: str) -> str:
        types = ", ".join(str(self.spmd.buffers[b].type) for b in outputs)
        return f"{_list(outputs)} = {what} : {types}" if outputs else what

    def _layout(self, layout: Layout) -> str:
        if not any(layout):
            return ""
        dims = ("+".join(self.spmd.mesh.axis_names(axes)) or "-" for axes in layout)
        return f" ({', '.join(dims)})"


def _list(buffers: Sequence[int], notes: Sequence[str] | None = None) -> str:
    notes = notes if notes is not None else [""] * len(buffers)
    return ", ".join(f"b{b}{note}" for b, note in zip(buffers, notes, strict=False))


def _note(read: Read, made: set[int]) -> str:
    """Returns the suffix of the name of a buffer that is read in a repeat."""
    if read.first in made or (read.regular and not read.step):
        return ""
    return f"[{read.step:+d}]" if read.regular else f"|b{read.second}"
