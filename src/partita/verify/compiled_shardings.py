"""Collectives that XLA compiles from a user's own shardings, priced with the cost model.

A plan of `simulate` applies rules to predict what the compiler does with the user's shardings. Here
the compiler itself has the last word. The original program is compiled with these shardings and no
others, and the resulting collectives are priced as those of a plan are.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from rich.console import Group, RenderableType

from partita.cost.estimate import StepTime
from partita.cost.network.collectives import interconnect
from partita.escape import printed
from partita.text import Text, new_table, plain, seconds, size
from partita.verify.check import collectives_of, verify
from partita.verify.collectives import Found, HloCollective
from partita.verify.comparison import Comparison, hlo_collective
from partita.verify.cycles import collective_seconds
from partita.verify.hlo import HloModule, parse
from partita.verify.lines import Lines
from partita.verify.loops import executions
from partita.verify.predicted import Predicted
from partita.verify.tables import group_of, time_data
from partita.verify.verification import Verification

MOST_SHOWN = 12
"""Differences that a report lists."""


@dataclasses.dataclass(frozen=True)
class CompiledTraffic:
    """All compiled collectives of one kind among the same groups of devices."""

    kind: str
    group: str
    """The axes of the mesh, or the number and size of the groups."""
    count: int
    """Number of executions per step."""
    bytes: int
    """Their payload per device, summed."""
    seconds: float
    """Their time, summed."""
    sources: tuple[str, ...]
    """The user's lines that they come from."""


@dataclasses.dataclass(frozen=True, repr=False)
class AsCompiled:
    """Comparison of XLA's program for the given shardings with the quick answer. `print` it."""

    verification: Verification
    """Comparison of the quick answer with the compiled program."""
    traffic: tuple[CompiledTraffic, ...]
    time: StepTime | None
    """Time of a step as compiled; None if the program did not fit. Collectives are priced by the
    cost model. Where the compiler does not estimate computing, compute time and the overlapped
    share of collectives are those of the quick answer."""

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences between the quick answer and the compiled program, known rewrites of the
        compiler excepted; empty if there are none."""
        found = self.verification.collectives
        return () if found is None else tuple(_differences(found))

    def as_dict(self) -> dict[str, Any]:
        """The same as data for JSON. Times in seconds, sizes in bytes per device."""
        return {
            "target": self.verification.backend.target,
            "collectives": [
                {**dataclasses.asdict(each), "sources": list(each.sources)} for each in self.traffic
            ],
            "time": None if self.time is None else time_data(self.time),
            "differences": list(self.differences),
            "unknown_loops": list(self.verification.unknown_loops),
        }

    def view(self) -> RenderableType:
        """The report as something that rich can print."""
        found, target = self.verification, self.verification.backend.target
        title = f"Compiled by XLA from the given shardings, for {target}"
        if found.out_of_memory is not None:
            return Group(Text(title, style="bold"), Text(str(found.out_of_memory), style="red"))
        table = new_table(title, "kind", "axes", "count", "bytes per device", "time", "lines")
        for each in self.traffic:
            lines = ", ".join(each.sources[:2]) + (", ..." if len(each.sources) > 2 else "")
            row = (size(each.bytes), seconds(each.seconds), lines)
            table.add_row(each.kind, each.group, str(each.count), *row)
        parts: list[RenderableType] = [table if self.traffic else Text(f"{title}: no collectives")]
        if self.time is not None:
            quick = found.estimate.step_time
            text = f"step time as compiled: {seconds(self.time.step_time)}"
            parts.append(Text(f"{text}; the quick answer is {seconds(quick)}"))
        parts += [Text(line, style="yellow") for line in self._remarks()]
        return Group(*parts)

    def _remarks(self) -> list[str]:
        found, lines = self.verification, []
        if self.differences:
            lines.append("The quick answer differs from what is compiled (predicted, compiled):")
            lines += [f"  {each}" for each in self.differences[:MOST_SHOWN]]
            if more := len(self.differences) - MOST_SHOWN:
                lines += [f"  and {more} more"] * (more > 0)
        else:
            lines.append("The quick answer has the same collectives.")
        if found.widened:
            lines.append(found.backend.widening_note)
        if found.unknown_loops:
            lines.append(f"Loops of unknown length, counted once: {', '.join(found.unknown_loops)}")
        return lines

    @printed
    def __str__(self) -> str:
        return plain(self.view())

    @printed
    def __repr__(self) -> str:
        count = len(self.differences)
        return f"<AsCompiled for {self.verification.backend.target}: {count} differences>"


def as_compiled(plan: Predicted, topology: str | None = None, verbose: bool = False) -> AsCompiled:
    """Compiles the original program of a plan with the shardings that were given.

    Args:
      plan: the prediction for these shardings.
      topology: the devices to compile for, as `Plan.verify` takes them.
      verbose: whether the compiler's log goes to standard error.

    Raises:
      HardwareError, MeshError, VerifyError: as from `Plan.verify`.
    """
    made = verify(plan, topology, "given", verbose=verbose)
    if made.out_of_memory is not None:
        return AsCompiled(made, (), None)
    module = parse(made.program)
    found = collectives_of(module, executions(module), made.backend, "given")
    narrower = _narrower(plan, made, found)
    found = [_moving(each, narrower[each.collective]) for each in found if not each.patch]
    lines = _lines(module, Lines(made.program), found)
    return AsCompiled(made, _traffic(plan, found, lines), made.time or _time(plan, found))


def _lines(module: HloModule, lines: Lines, found: list[Found]) -> list[str]:
    """The user's line that each collective comes from; empty where there is none."""
    places = (each.instruction.split("/") for each in found)
    return [
        lines.line(module.computations[computation].instructions[name].attributes)
        for computation, name in places
    ]


def _narrower(
    plan: Predicted, made: Verification, compiled: list[Found]
) -> dict[HloCollective, int]:
    """Returns, by collective, how many times fewer bytes the plan's devices move than those
    compiled for. The factor is that of the equal predicted collective, or of all of its kind if
    they have the same."""
    widening = made.backend.widening
    equal: dict[HloCollective, int] = {}
    of_kind: dict[str, set[int]] = defaultdict(set)
    for each in plan.collectives:
        times = widening(each.dtype)
        wide = dataclasses.replace(each, bytes=each.bytes * times)
        equal[hlo_collective(wide, plan.mesh)] = times
        of_kind[each.kind].add(times)
    found: dict[HloCollective, int] = {}
    for collective in {each.collective for each in compiled}:
        (first, *more) = sorted(of_kind[collective.kind] or {1})
        found[collective] = equal.get(collective, 1 if more else first)
    return found


def _moving(found: Found, fewer: int) -> Found:
    collective = found.collective
    collective = dataclasses.replace(collective, bytes=collective.bytes // fewer)
    return dataclasses.replace(found, collective=collective)


def _traffic(plan: Predicted, found: list[Found], lines: list[str]) -> tuple[CompiledTraffic, ...]:
    """All collectives, those of one kind among the same devices together."""
    together: dict[tuple[str, str], list[tuple[Found, str]]] = defaultdict(list)
    for each, line in zip(found, lines, strict=True):
        key = each.collective.kind, group_of(each.collective, plan.mesh)
        together[key].append((each, line))
    return tuple(
        CompiledTraffic(
            kind,
            group,
            sum(each.times for each, _ in several),
            sum(each.times * each.collective.bytes for each, _ in several),
            sum(sum(_links(plan, each)) for each, _ in several),
            tuple(dict.fromkeys(line for _, line in several if line)),
        )
        for (kind, group), several in sorted(together.items())
    )


def _links(plan: Predicted, found: Found) -> list[float]:
    """The seconds per step of a collective on each link."""
    networks = interconnect(plan.mesh, plan.hardware)
    links = [0.0] * networks.links
    for link, each in collective_seconds(found.collective, networks, plan.hardware):
        links[link] += found.times * each
    return links


def _time(plan: Predicted, found: list[Found]) -> StepTime:
    """Returns the time of a step with other collectives than those of the quick answer.

    The difference overlaps with compute in the same proportion as the collectives of the quick
    answer, which also assumes that a compiler combines some.
    """
    quick = plan.estimate
    planned = [
        Found(hlo_collective(each, plan.mesh), each.count, False) for each in plan.collectives
    ]
    moving = quick.exposed_time + quick.hidden_time
    hidden = quick.hidden_time / moving if moving else 0.0
    more = [
        sum(compiled) - sum(predicted)
        for compiled, predicted in zip(_by_link(plan, found), _by_link(plan, planned), strict=True)
    ]
    links = (*quick.link_times, *[0.0] * (len(more) - len(quick.link_times)))
    return StepTime(
        quick.compute_time,
        max(0.0, quick.exposed_time + (1 - hidden) * sum(more)),
        tuple(max(0.0, a + hidden * b) for a, b in zip(links, more, strict=False)),
    )


def _by_link(plan: Predicted, found: list[Found]) -> list[list[float]]:
    """Returns, for every link, the seconds per step of each collective."""
    rows = [_links(plan, each) for each in found]
    return [[row[n] for row in rows] for n in range(interconnect(plan.mesh, plan.hardware).links)]


def _differences(found: Comparison) -> list[str]:
    return [
        f"{each.kind} of {size(each.bytes)} over {group_of(each, found.mesh)}: "
        f"{predicted}, {compiled}"
        for each, predicted, compiled in found.rows()
        if found.remark(each) == "differs"
    ]
