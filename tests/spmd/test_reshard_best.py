"""Resharding beside the best that any sequence of steps could do, found by trying all of them.

Best is what a device sends the fewest bytes for, on rings, each collective counting a little too.
"""

from __future__ import annotations

import heapq
import itertools
import math

import pytest

from partita.mesh import Mesh
from partita.program import TensorType
from partita.spmd import reshard

SIZE = 8192  # so that bytes count, not latencies
COLLECTIVE = 1e-3  # of the value's size


def layouts(axes):
    """Every way to give some axes, in some order, to two dimensions."""
    found = set()
    for count in range(len(axes) + 1):
        for run in itertools.permutations(axes, count):
            for dims in itertools.product(range(2), repeat=count):
                found.add(
                    tuple(
                        tuple(a for a, d in zip(run, dims, strict=True) if d == k) for k in (0, 1)
                    )
                )
    return sorted(found)


def runs(axes):
    """Every ordered choice of one axis or more."""
    for count in range(1, len(axes) + 1):
        yield from itertools.permutations(sorted(axes), count)


class Ways:
    """Every step that there is between layouts of one mesh, with what it sends.

    No axis is added but those that may be.
    """

    def __init__(self, mesh, may_be_added):
        self.mesh, self.may_be_added = mesh, frozenset(may_be_added)
        self.layouts = layouts(range(len(mesh.sizes)))

    def piece(self, layout):
        """The part of a value that a device has."""
        return 1 / math.prod(self.mesh.size(axes) for axes in layout)

    def sent(self, axes, size, passes=1):
        return COLLECTIVE + passes * size * (1 - 1 / self.mesh.size(axes))

    def steps(self, layout, partial):
        """What layouts, partial over what, are one step away; and the cost."""
        size, used = self.piece(layout), set().union(*layout)
        for dim, axes in enumerate(layout):

            def put(at, run, to=dim, left=layout):
                return tuple((*a, *run) if d == to else a for d, a in enumerate(left))

            for run in runs(self.may_be_added - used - partial):
                yield put(dim, run), partial, 0.0
            for run in runs(partial & self.may_be_added):
                yield put(dim, run), partial - {*run}, self.sent(run, size)
            for count in range(1, len(axes) + 1):
                run = axes[-count:]
                left = tuple(a[:-count] if d == dim else a for d, a in enumerate(layout))
                yield left, partial, self.sent(run, self.piece(left))
                yield put(dim, run, 1 - dim, left), partial, self.sent(run, size)
        for run in runs(partial):
            yield layout, partial - {*run}, self.sent(run, size, 2)
        for other in self.layouts:
            alike = all(
                self.mesh.size(a) == self.mesh.size(b) for a, b in zip(other, layout, strict=True)
            )
            among = {*itertools.chain(*other)} <= (used | self.may_be_added) - partial
            if alike and other != layout and among:
                yield other, partial, COLLECTIVE + size

    def all_from(self, layout, partial):
        """The least cost to get to any layout, not partial."""
        counter = itertools.count()
        best, queue = {}, [(0.0, next(counter), (layout, frozenset(partial)))]
        while queue:
            cost, _, at = heapq.heappop(queue)
            if at not in best:
                best[at] = cost
                for *there, more in self.steps(*at):
                    heapq.heappush(queue, (cost + more, next(counter), tuple(there)))
        return {layout: cost for (layout, partial), cost in best.items() if not partial}

    def ours(self, steps):
        total = 0.0
        for step in steps:
            size = step.bytes / (4 * SIZE * SIZE)
            if step.kind == "collective_permute":
                total += COLLECTIVE + size
            elif step.is_collective:
                total += self.sent(step.axes, size, 2 if step.kind == "all_reduce" else 1)
        return total


def problems(mesh, extra=frozenset()):
    """All pairs of layouts, with what our steps send and the least that any do.

    Besides the axes that are wanted, `extra` may be used on the way.
    """
    mesh = Mesh.of(mesh)
    axes, type_ = {*range(len(mesh.sizes))}, TensorType((SIZE, SIZE), "f32")
    latency = int(COLLECTIVE * type_.bytes)
    for wanted in ((), *itertools.chain(*(itertools.combinations(axes, n) for n in (1, 2)))):
        ways = Ways(mesh, {*wanted} | extra)
        wants = [want for want in ways.layouts if {*itertools.chain(*want)} == {*wanted}]
        for have in ways.layouts:
            for partial in ((), *runs(axes - {*itertools.chain(*have)})):
                best = ways.all_from(have, partial)
                for want in wants:
                    steps = reshard(
                        type_, have, frozenset(partial), want, mesh, latency_bytes=latency
                    )
                    yield (have, partial, want), ways.ours(steps), best[want]


MESHES = ["x=2,y=4", "x=4,y=4", "x=8,y=2"]


@pytest.mark.parametrize("mesh", MESHES)
def test_no_other_sequence_of_steps_sends_less(mesh):
    """Neither in any order, nor with axes that go together or by a permutation."""
    for problem, ours, best in problems(mesh):
        assert ours == pytest.approx(best, rel=1e-4, abs=1e-9), problem


@pytest.mark.parametrize("mesh", MESHES)
def test_not_half_as_much_would_be_sent_round_about(mesh):
    """By an axis along which nothing is to be split."""
    for problem, ours, best in problems(mesh, extra={0, 1}):
        assert best <= ours + 1e-9 <= 2.01 * best + 2e-9, problem


@pytest.mark.parametrize(
    ("mesh", "want", "kinds"),
    [
        ("x=4,y=4", ((1,), (0,)), ["collective_permute"]),
        ("x=2,y=4", ((1,), (0,)), ["all_to_all"] * 3),
        ("x=4,y=4", ((1,), ()), ["collective_permute", "all_gather"]),
        ("x=2,y=4", ((1, 0), ()), ["all_to_all"] * 2),
        ("x=2,y=4", ((), (0, 1)), ["all_to_all", "collective_permute"]),
        ("x=2,y=4", ((0, 1), ()), ["all_to_all"]),
    ],
)
def test_axes_that_change_places_are_exchanged_not_gathered(mesh, want, kinds):
    type_ = TensorType((SIZE, SIZE), "f32")
    steps = reshard(type_, ((0,), (1,)), frozenset(), want, Mesh.of(mesh), latency_bytes=2**16)
    assert [step.kind for step in steps] == kinds


def test_where_it_is_not_worth_a_collective_more_there_is_none():
    """Bytes decide: a small value is rather gathered than handed round."""
    mesh = Mesh.of("x=4,y=2")

    def kinds(size):
        type_, none = TensorType((size,), "f32"), frozenset()
        steps = reshard(type_, ((0,),), none, ((1,),), mesh, latency_bytes=2**16)
        return [step.kind for step in steps]

    assert kinds(2**24) == ["slice", "collective_permute", "all_gather"]
    assert kinds(2**8) == ["all_gather", "slice"]
