"""Lowered programs with a fault put in on purpose."""

from __future__ import annotations

import dataclasses

from partita.spmd import Reshard
from partita.spmd.instructions import Case, Hold, Run, Section, While


def changed(spmd, change):
    """A program in which `change(reshard)` replaces each step of a reshard; None leaves it out, so
    that whatever read its result reads what it started from."""
    instead: dict[int, int] = {}

    def read(buffers):
        return tuple(instead.get(buffer, buffer) for buffer in buffers)

    def section(old):
        inner = instructions(old.instructions)
        return Section(old.arguments, inner, read(old.results))

    def instructions(items):
        found = []
        for item in items:
            if isinstance(item, Reshard):
                item = dataclasses.replace(item, input=instead.get(item.input, item.input))
                new = change(item)
                if new is None:
                    instead[item.output] = item.input
                    continue
                item = new
            elif isinstance(item, Run | Hold):
                item = dataclasses.replace(item, inputs=read(item.inputs))
            elif isinstance(item, While):
                inputs = read(item.inputs)
                parts = section(item.condition), section(item.body)
                item = dataclasses.replace(item, inputs=inputs, condition=parts[0], body=parts[1])
            elif isinstance(item, Case):
                (index,) = read([item.index])
                sections = tuple(map(section, item.sections))
                item = dataclasses.replace(item, index=index, sections=sections)
            found.append(item)
        return tuple(found)

    made = instructions(spmd.instructions)
    return dataclasses.replace(spmd, instructions=made, results=read(spmd.results))


def without(spmd, number):
    """A program without its step number `number`."""
    steps = list(spmd.reshards())
    return changed(spmd, lambda item: None if item.output == steps[number].output else item)


def with_step(spmd, number, **changes):
    """A program in which one step has other fields."""
    output = list(spmd.reshards())[number].output

    def change(item):
        if item.output != output:
            return item
        return dataclasses.replace(item, step=dataclasses.replace(item.step, **changes))

    return changed(spmd, change)
