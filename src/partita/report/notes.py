"""Notes on a program, apart from its plan: constants, unknown loops, what nothing can shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from rich.console import Group, RenderableType

from partita.planning.schedule import Scheduled
from partita.text import Text, new_table, show_entries, size, times
from partita.tiling import entries

LARGE = 2**16
"""Bytes from which on a report shows constants, all together and each by itself."""


def constants_are_large(plan: Scheduled) -> bool:
    """Returns whether the memory of all constants is worth a line."""
    return plan.estimate.constant_memory >= LARGE


def constants(plan: Scheduled) -> Iterator[RenderableType]:
    """The constants that are replicated on every device, if they are many bytes."""
    if not constants_are_large(plan):
        return
    replicated = [c for c in plan.program.constants if not c.hoisted]
    title = f"Constants, replicated: {size(plan.estimate.constant_memory)} in all"
    table = new_table(title, "constant", "type", "bytes", "used by")
    shown = [c for c in replicated if c.bytes >= LARGE]
    for constant in shown:
        more = f" and {len(constant.used) - 1} more" if len(constant.used) > 1 else ""
        first = (*constant.used, "a result")[0]
        table.add_row(constant.name, str(constant.type), size(constant.bytes), first + more)
    rest = [constant.bytes for constant in replicated[len(shown) :]]
    if rest:
        table.add_row(f"{len(rest)} smaller", "", size(sum(rest)), "")
    hint = "hoist_constants=True makes them arguments, which can be sharded."
    yield Group(table, Text(hint, style="yellow"))


_GATHERED = (
    (False, "Gathered again instead of kept, for lack of memory:"),
    (True, "Gathered in each iteration of a loop instead of once, for lack of memory:"),
)


def notes(plan: Scheduled) -> Iterator[RenderableType]:
    """Yields notes on effects of a lack of memory, and on parts of the program that planning cannot
    improve."""
    program, lowering = plan.program, plan.lowering
    for in_loops, title in _GATHERED:
        again = [
            lowering.graph.values[index]
            for index, between in lowering.regathered.items()
            if between.in_loops == in_loops
        ]
        yield from _listed(
            title,
            [f"{program.describe(each.value.index)}{times(len(each.members))}" for each in again],
        )
    yield from _listed(
        "Loops whose trip count is not known; their cost is that of running once:",
        dict.fromkeys(loop.source for loop in program.loops if loop.trips is None),
    )
    opaque = Counter(f"{op.title} at {op.source}" for op in program.operations if not op.rule.known)
    yield from _listed(
        "Replicated, for lack of a sharding rule:",
        [f"{where}{times(count)}" for where, count in opaque.items()],
    )
    results = list(_unreached(plan))
    yield from _listed(
        "Results that depend on no argument, so that no sharding reaches them; replicated:",
        [f"{name}: {facts}" for name, facts in results],
        *(
            f"ManualPartition({{{name!r}: 0}}, axis=...) would shard the first."
            for name, _ in results[:1]
        ),
    )


def _listed(title: str, lines: Collection[str], *more: str) -> Iterator[RenderableType]:
    """Yields lines below a title, if there are any."""
    if lines:
        yield Group(Text(title, style="yellow"), *(Text(f"  {line}") for line in (*lines, *more)))


def _unreached(plan: Scheduled) -> Iterator[tuple[str, str]]:
    """Yields large results computed from constants alone, if sharded arguments have the same type.

    `jnp.zeros_like` of a sharded parameter is one: only its shape is the parameter's.
    """
    program = plan.program
    made: set[int] = set()
    for op in program.operations:
        if made.issuperset(op.operands):
            made.update(op.results)
    sharded = {
        program.values[value].type: (name, layout)
        for name, value, layout in zip(
            program.argument_names, program.arguments, plan.spmd.argument_layouts, strict=True
        )
        if any(layout)
    }
    for name, value, layout in zip(
        program.result_names, program.results, plan.spmd.result_layouts, strict=True
    ):
        type_ = program.values[value].type
        if value in made and not any(layout) and type_.bytes >= LARGE and type_ in sharded:
            like, theirs = sharded[type_]
            beside = f"{like} is {show_entries(entries(theirs, plan.mesh))}"
            yield name, f"{type_}, {size(type_.bytes)}; {beside}"
