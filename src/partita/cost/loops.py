"""Collectives in the bodies of loops: they run beside the work of one iteration, and no more.

What every iteration gathers or reduces cannot begin before the iteration, nor end after it. So in
a loop that computes little, such as that of a decoder over its layers for each token, collectives
are waited for, however long the step as a whole computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partita.analysis import ClassGraph
from partita.program import Program


class Loops:
    """The bodies of a program's loops: what is computed there, and what moves there."""

    def __init__(self, graph: ClassGraph, share: float = 1.0) -> None:
        """Of what an iteration computes, the compiler has this share beside its collectives."""
        program = graph.program
        self._share = share
        self._of_value = [_body(program, program.home(v.members[0])) for v in graph.values]
        """Of every value class, the innermost loop body that its members are made in; 0 if none."""
        inside: dict[int, list[int]] = {body: [] for body in set(self._of_value) - {0}}
        for op in graph.ops:
            body = _body(program, program.operations[op.op.index].region)
            while body:
                if body in inside:
                    inside[body].append(op.index)
                body = _body(program, program.regions[body].parent)
        self.values = tuple(v for v, body in enumerate(self._of_value) if body)
        """The value classes that are made in loops."""
        self._inside = inside
        """By body, the operation classes in it, those of loops inside of it included."""

    def excess(
        self, seconds: Sequence[float], hidden: Iterable[tuple[int, Sequence[float]]]
    ) -> list[float]:
        """What is taken for hidden on each link, and is longer than what is computed meanwhile.

        Args:
          seconds: of every operation class.
          hidden: of those of `values` that move, the seconds on each link that are hidden.
        """
        moving: dict[int, list[float]] = {}
        for index, links in hidden:
            body = self._of_value[index]
            so_far = moving.get(body)
            moving[body] = list(map(sum, zip(so_far, links, strict=True))) if so_far else [*links]
        found: list[float] = []
        for body, links in moving.items():
            longest = max(links)
            computing = self._share * sum([seconds[op] for op in self._inside[body]])
            if longest > computing:
                share = 1 - computing / longest
                over = [share * link for link in links]
                found = list(map(sum, zip(found, over, strict=True))) if found else over
        return found


def _body(program: Program, region: int) -> int:
    """The innermost body of a loop around a region, or it; 0 if there is none."""
    while region and not program.regions[region].repeats:
        region = program.regions[region].parent
    return region
