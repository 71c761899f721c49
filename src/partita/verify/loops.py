"""Executions per step of every computation in a compiled program.

XLA annotates a loop with its trip count if it knows one. The TPU compiler does not, and also
unrolls loops in part. There the trip count follows from the loop's counter: its start, what every
iteration adds, and the limit that the condition compares it with.
"""

from __future__ import annotations

import dataclasses
import re

from partita.verify.hlo import Computation, HloInstruction, HloModule

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_FUSED = ("fusion",)
"""Instructions whose called computation is part of them."""
_APPLIED = ("to_apply",)
"""Roles of computations that are applied to pairs of elements: reductions, sorts."""
_FORWARDING = ("copy", "bitcast", "convert", "copy-start", "copy-done")
"""Instructions that forward the integer that they read."""


@dataclasses.dataclass(frozen=True)
class Executions:
    """Executions per step of a program's computations, with the insides of fusions kept apart."""

    times: dict[str, int]
    """Executions of every computation whose instructions are run directly, by name."""
    fused: dict[str, int]
    """Executions of every computation that is the inside of a fusion, by name."""
    unknown: tuple[str, ...]
    """Loops whose trip count could not be found; they count once."""


def executions(module: HloModule) -> Executions:
    """Follows loops, calls and branches from the entry; every branch counts as taken."""
    times: dict[str, int] = {}
    fused: dict[str, int] = {}
    unknown: list[str] = []
    pending = [(module.entry, 1, False)]
    while pending:
        name, count, inside = pending.pop()
        if name not in module.computations:
            continue
        counts = fused if inside else times
        counts[name] = counts.get(name, 0) + count
        computation = module.computations[name]
        for instruction in computation:
            if instruction.opcode == "while":
                trips = trip_count(module, computation, instruction)
                if trips is None:
                    unknown.append(instruction.name)
                runs = 1 if trips is None else trips
                for role, called in instruction.called:
                    again = runs if role == "body" else runs + 1
                    pending.append((called, count * again, inside))
            else:
                within = inside or instruction.opcode in _FUSED
                pending += [
                    (called, count, within)
                    for role, called in instruction.called
                    if role not in _APPLIED or instruction.opcode == "call"
                ]
    return Executions(times, fused, tuple(unknown))


def trip_count(module: HloModule, around: Computation, loop: HloInstruction) -> int | None:
    """Returns how often the body of a loop runs; None if that is unknown.

    Args:
      module: the program.
      around: the computation that contains the loop.
      loop: a `while` instruction.
    """
    known = _KNOWN.search(loop.attributes)
    if known:
        return int(known[1])
    called = {role: module.computations.get(name) for role, name in loop.called}
    condition, body = called.get("condition"), called.get("body")
    if condition is None or body is None or condition.root is None or body.root is None:
        return None
    entry = _Carried(around, loop, body)
    compared = _comparison(module, condition)
    if compared is None:
        return None
    direction, counter, limit_of = compared
    limit = _integer(condition, limit_of, entry)
    start = entry.value(counter)
    step = _step(body, counter, entry)
    if limit is None or start is None or step is None:
        return None
    return _trips(direction, start, limit, step)


class _Carried:
    """Values that a loop carries, by place in the tuple."""

    def __init__(self, around: Computation, loop: HloInstruction, body: Computation) -> None:
        self._around = around
        self._body = body
        self._tuple = around.instructions.get((loop.operands or [""])[0])

    def constant(self, place: int) -> int | None:
        """The integer at this place, if it is a constant that the body carries on unchanged."""
        root = self._body.root
        if root is None or root.opcode != "tuple" or place >= len(root.operands):
            return None
        return self.value(place) if _place(self._body, root.operands[place]) == place else None

    def value(self, place: int) -> int | None:
        """The integer that goes in at this place, if it is a constant."""
        made = self._tuple
        if made is None or made.opcode != "tuple" or place >= len(made.operands):
            return None
        return _integer(self._around, made.operands[place], None)


def _comparison(module: HloModule, condition: Computation) -> tuple[str, int, str] | None:
    """Parses a condition as `(direction, place of the counter, name of the limit)`."""
    root = condition.root
    assert root is not None
    inner, names = condition, {}
    if root.opcode == "fusion":  # the comparison may be wrapped
        (_, name), *_ = root.called
        inner = module.computations[name]
        parameters = {int(i.text): i.name for i in inner if i.opcode == "parameter"}
        names = {parameters[n]: operand for n, operand in enumerate(root.operands)}
        if inner.root is None:
            return None
        root = inner.root
    if root.opcode != "compare":
        return None
    direction = re.search(r"direction=(\w\w)", root.attributes)
    left, right = (names.get(name, name) for name in root.operands)
    if direction is None:
        return None
    place = _place(condition, left)
    if place is not None:
        return direction[1], place, right
    place = _place(condition, right)
    return None if place is None else (_MIRRORED.get(direction[1], "?"), place, left)


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _place(computation: Computation, name: str) -> int | None:
    """Returns the place of the carried tuple's element that an instruction forwards unchanged, or
    None."""
    instruction = computation.instructions.get(name)
    while instruction is not None and instruction.opcode in _FORWARDING:
        instruction = computation.instructions.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    source = computation.instructions.get(instruction.operands[0])
    if source is None or source.opcode != "parameter":
        return None
    return instruction.index


def _step(body: Computation, counter: int, entry: _Carried) -> int | None:
    """Returns the increment of the counter per iteration."""
    root = body.root
    assert root is not None
    if root.opcode != "tuple" or counter >= len(root.operands):
        return None
    total, name = 0, root.operands[counter]
    while True:
        if _place(body, name) == counter:
            return total
        instruction = body.instructions.get(name)
        if instruction is None:
            return None
        if instruction.opcode in _FORWARDING:
            name = instruction.operands[0]
            continue
        if instruction.opcode not in ("add", "subtract"):
            return None
        left, right = instruction.operands
        sign = 1 if instruction.opcode == "add" else -1
        added, name = _integer(body, right, entry), left
        if added is None and sign == 1:
            added, name = _integer(body, left, entry), right
        if added is None:
            return None
        total += sign * added


def _integer(computation: Computation, name: str, carried: _Carried | None) -> int | None:
    """The integer that an instruction is, if it is constant; or carried along unchanged."""
    instruction = computation.instructions.get(name)
    while instruction is not None and instruction.opcode in _FORWARDING:
        instruction = computation.instructions.get(instruction.operands[0])
    if instruction is None:
        return None
    if instruction.opcode == "constant":
        return int(instruction.text) if re.fullmatch(r"-?\d+", instruction.text) else None
    place = _place(computation, instruction.name)
    return carried.constant(place) if carried is not None and place is not None else None


def _trips(direction: str, start: int, limit: int, step: int) -> int | None:
    ahead = limit - start
    if direction in ("GT", "GE"):
        ahead, step, direction = -ahead, -step, {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LE":
        ahead, direction = ahead + 1, "LT"
    if direction == "LT" and step > 0:
        return max(0, -(-ahead // step))
    if direction == "NE" and step and ahead % step == 0 and ahead // step >= 0:
        return ahead // step
    return None
