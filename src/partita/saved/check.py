"""A plan held to what a plan file says: shardings, collectives, time and memory, as a diff.

Two files are compared: the one that is there, and the one that the plan would be saved as. So a
guard needs nothing else than what stands in files, and programs may differ.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from partita.escape import printed
from partita.program.names import grouped
from partita.saved.restore import estimate_of, mesh_of
from partita.saved.schema import CollectiveRow, PlanTable, Tensor
from partita.saved.translate import NotKept
from partita.text import seconds, show_entries, size, times

STEP, MEMORY = 1.05, 1.02
"""Default tolerances for growth of a step: time by 5 %, the peak of memory by
2 %. Smaller changes are those of any edit, and would be noise in a review."""


@dataclasses.dataclass(frozen=True, repr=False)
class PlanCheck:
    """Differences between a plan and a plan file. As text, a diff."""

    names: tuple[str, str]
    """Names of the file and of the plan."""
    failures: tuple[str, ...]
    """Why it does not hold, one line each; empty if it does."""
    sections: tuple[tuple[str, tuple[str, ...]], ...]
    """Differences: titles with lines that begin with `-`, `+` or a space."""
    step_time: tuple[float, float]
    """Seconds, of the file and now."""
    peak_memory: tuple[int, int]
    """Bytes per device, of the file and now."""
    not_kept: tuple[NotKept, ...] = ()
    """Decisions of the file that could not be made again."""

    @property
    def passed(self) -> bool:
        """True if the plan is within the tolerances."""
        return not self.failures

    @property
    def differs(self) -> bool:
        """True if anything differs, within the tolerances or not."""
        return bool(self.sections)

    def named(self, before: str, after: str) -> PlanCheck:
        """The same under other names."""
        return dataclasses.replace(self, names=(before, after))

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data that JSON can hold."""
        return {
            "passed": self.passed,
            "failures": list(self.failures),
            "step_time": dict(zip(("before", "after"), self.step_time, strict=True)),
            "peak_memory": dict(zip(("before", "after"), self.peak_memory, strict=True)),
            "changes": {title: list(lines) for title, lines in self.sections},
            "not_kept": [dataclasses.asdict(each) for each in self.not_kept],
        }

    @printed
    def __str__(self) -> str:
        if not self.differs:
            step, peak = seconds(self.step_time[1]), size(self.peak_memory[1])
            return f"{self.names[0]} holds: step {step}, peak {peak}"
        lines = [f"--- {self.names[0]}", f"+++ {self.names[1]}"]
        for title, changed in self.sections:
            lines += [f"@@ {title} @@", *changed]
        verdict = [f"fails: {each}" for each in self.failures] or ["within the tolerances"]
        return "\n".join([*lines, *verdict])

    @printed
    def __repr__(self) -> str:
        return f"<PlanCheck of {self.names[0]}: {'; '.join(self.failures) or 'passed'}>"


def compare(
    before: PlanTable,
    after: PlanTable,
    names: tuple[str, str],
    step: float = STEP,
    memory: float = MEMORY,
    not_kept: Sequence[NotKept] = (),
) -> PlanCheck:
    """Holds a plan to another.

    It fails if the mesh or the device type is another, an argument or result is sharded otherwise
    or is new or gone, there are more collectives of a kind over the same axes, or time or memory
    have grown by more than the tolerance.

    Args:
      before: what it is held to.
      after: what it is now.
      names: of both, for the diff.
      step: how many times as long a step may take.
      memory: how many times as much the peak may be.
      not_kept: what could not be decided again.
    """
    found: dict[str, tuple[list[str], list[str]]] = {
        "for": _target(before, after),
        "arguments": _tensors("argument", before.program.arguments, after.program.arguments),
        "results": _tensors("result", before.program.results, after.program.results),
        "collectives": _collectives(before.collectives, after.collectives),
        "step, per device": _costs(before, after, step, memory),
        "not kept": ([f"-{each}" for each in not_kept], []),
    }
    estimates = [estimate_of(table.estimate) for table in (before, after)]
    return PlanCheck(
        names,
        tuple(failure for _, failures in found.values() for failure in failures),
        tuple((title, tuple(lines)) for title, (lines, _) in found.items() if lines),
        (estimates[0].step_time, estimates[1].step_time),
        (estimates[0].peak_memory, estimates[1].peak_memory),
        tuple(not_kept),
    )


def _target(before: PlanTable, after: PlanTable) -> tuple[list[str], list[str]]:
    """The mesh and the device type."""
    told = ((f"mesh {mesh_of(each)}", f"hardware {each.hardware}") for each in (before, after))
    pairs = [pair for pair in zip(*told, strict=True) if pair[0] != pair[1]]
    lines = [sign + side for pair in pairs for sign, side in zip("-+", pair, strict=True)]
    return lines, [f"{now}, was {then}" for then, now in pairs]


def _tensors(
    what: str, before: Sequence[Tensor], after: Sequence[Tensor]
) -> tuple[list[str], list[str]]:
    """Arguments or results that differ, alike ones once."""
    then, now = ({tensor.name: tensor for tensor in side} for side in (before, after))
    sides = (
        (name, (_told(then.get(name)), _told(now.get(name))))
        for name in dict.fromkeys((*then, *now))
    )
    lines, failures = [], []
    for name, count, ((old_type, old), (new_type, new)) in grouped(
        (name, pair) for name, pair in sides if pair[0] != pair[1]
    ):
        label = name + times(count)
        said = label if label.startswith(what) else f"{what} {label}"
        lines += [f"-{label}  {old_type}  {old}"] if old_type else []
        lines += [f"+{label}  {new_type}  {new}"] if new_type else []
        if not old_type or not new_type:
            failures.append(f"{said} is {'new' if new_type else 'gone'}")
        elif old != new:
            failures.append(f"{said} is sharded {new}, was {old}")
    return lines, failures


def _told(tensor: Tensor | None) -> tuple[str, str]:
    return ("", "") if tensor is None else (tensor.type, show_entries(tensor.sharding))


def _collectives(
    before: Sequence[CollectiveRow], after: Sequence[CollectiveRow]
) -> tuple[list[str], list[str]]:
    """Collectives that differ, by kind and axes; lines that only moved are no difference."""
    lines, failures = [], []
    keys = dict.fromkeys((row.kind, row.axes) for row in (*before, *after))
    for kind, axes in keys:
        then, now = (
            [r for r in side if (r.kind, r.axes) == (kind, axes)] for side in (before, after)
        )
        same = Counter(map(_amount, then)) & Counter(map(_amount, now))
        counts = [sum(row.count for row in side) for side in (then, now)]
        if _total(then) == _total(now):
            continue
        lines += [f"-{_line(row)}" for row in _others(then, same)]
        lines += [f"+{_line(row)}" for row in _others(now, same)]
        if counts[1] > counts[0]:
            more = counts[1] - counts[0]
            failures.append(f"{more} {kind} over {', '.join(axes)} more, {counts[1]} in all")
    return lines, failures


def _amount(row: CollectiveRow) -> tuple[int, int]:
    return row.count, row.bytes


def _total(rows: Sequence[CollectiveRow]) -> tuple[int, int]:
    """Returns the number of collectives and their bytes, whatever their lines."""
    return sum(row.count for row in rows), sum(row.bytes for row in rows)


def _others(
    rows: Sequence[CollectiveRow], same: Counter[tuple[int, int]]
) -> Iterator[CollectiveRow]:
    """Yields the rows that the other side does not have."""
    left = Counter(same)
    for row in rows:
        if left[_amount(row)]:
            left[_amount(row)] -= 1
        else:
            yield row


def _line(row: CollectiveRow) -> str:
    where = ": ".join(filter(None, [row.value, row.source if row.source not in row.value else ""]))
    told = f"{row.kind} over {', '.join(row.axes)}{times(row.count)}, {size(row.bytes)}"
    return f"{told}, of {where}" if where else told


def _costs(
    before: PlanTable, after: PlanTable, step: float, memory: float
) -> tuple[list[str], list[str]]:
    """Time and memory of a step."""
    then, now = estimate_of(before.estimate), estimate_of(after.estimate)
    lines, failures = [], []
    for what, old, new, most, show in (
        ("step time", then.step_time, now.step_time, step, seconds),
        ("peak memory", float(then.peak_memory), float(now.peak_memory), memory, size),
    ):
        if show(old) == show(new) and new <= most * old:
            continue
        change = f"{100 * (new / old - 1):+.1f} %" if old else "from nothing"
        lines += [f"-{what} {show(old)}", f"+{what} {show(new)}  ({change})"]
        if new > most * old:
            failures.append(
                f"{what} {show(new)} is {change}; {100 * (most - 1):+.3g} % is the most"
            )
    if then.fits and not now.fits:
        lines.append(f"+DOES NOT FIT in {size(now.capacity)}")
        failures.append(f"it does not fit in {size(now.capacity)} any more")
    if lines and (before.partita, before.jax) != (after.partita, after.jax):
        written = f"partita {before.partita} and JAX {before.jax}"
        lines.append(f" the file is of {written}; this is {after.partita} and {after.jax}")
    return lines, failures
