"""What is lowered and priced step by step is what it is at once, to the last bit."""

from __future__ import annotations

import random

import pytest

from fuzzing import programs
from partita.analysis import analyse, fold
from partita.cost import CostModel, load
from partita.decisions import ShardClass
from partita.mesh import Mesh
from partita.spmd import Lowerer
from partita.tiling import Propagator, untiled

HARDWARE = load("tpu_v5e")
MESHES = ("x=2,y=4", "x=2,y=2,z=2")
MOVES = 10


def content(lowering):
    """Everything that a lowering says, comparable between lowerers."""
    forms = [(f.needs, f.halos, f.makes, f.sums, f.axes, f.layout) for f in lowering.forms]
    plans = [(p.layout, p.unreduced, p.steps, p.needs, p.reshards) for p in lowering.plans]
    return forms, plans, lowering.unreduced, lowering.outstanding


def figures(cost):
    """Every figure of a cost. (Groups of collectives are numbered as they are met.)"""
    plans = [
        (p.kept, p.compute, p.exposed, p.hidden, [rest for _, *rest in p.parts]) for p in cost.plans
    ]
    return (
        cost.time,
        cost.peak,
        dict(cost.regathered),
        cost.ops.tolist(),
        cost.changes.tolist(),
        plans,
    )


class Walk:
    """Random moves in a program, some of which leave out parts, and steps back."""

    def __init__(self, program, mesh, seed, memory=None):
        self.analysis = analyse(program, int(HARDWARE.regather_window.value))
        self.graph, self.mesh, self.memory = fold(self.analysis), Mesh.of(mesh), memory
        self.rng = random.Random(seed)
        self.propagator = Propagator(self.graph, self.mesh, self.analysis.groups.conflict_groups)
        self.lowerer, self.cost_model = self.fresh()

    def fresh(self):
        """A lowerer and a cost model that know nothing yet."""
        model = CostModel(self.graph, self.analysis, self.mesh, HARDWARE, self.memory)
        return Lowerer(self.graph, self.mesh, int(HARDWARE.latency_bytes.value)), model

    def at_once(self, tiling):
        """A tiling, lowered and priced from scratch."""
        lowerer, model = self.fresh()
        lowering = lowerer.lower(tiling)
        return lowering, model.cost(lowering)

    def moved(self, tiling):
        """A tiling after a random move, of a color or of a single class."""
        if self.rng.random() < 0.3:
            return self.local().take(self.propagator, tiling).tiling
        color = self.rng.randrange(self.analysis.groups.colors)
        axis = self.rng.randrange(len(self.mesh.names))
        conflicts = self.analysis.groups.conflict_groups
        roles = {n: self.rng.choice(roles) for n, roles in enumerate(conflicts)}
        propagation = self.propagator.tile_color(tiling, color, axis, roles)
        if self.rng.random() < 0.4:
            some = [node for node in sorted(propagation.taken) if self.rng.random() < 0.7]
            propagation = self.propagator.restrict(tiling, some, axis)
        return propagation.tiling

    def local(self):
        """A random action on a single class."""
        axis = self.rng.randrange(len(self.mesh.names))
        kind = self.rng.choice(["op", "value"])
        chosen = self.rng.choice(self.graph.ops if kind == "op" else self.graph.values)
        return ShardClass(kind, chosen.members[0], axis, self.rng.randrange(-1, len(chosen.colors)))

    def steps(self):
        """Tilings, each lowered and priced from another one: several moves before it, or behind."""
        lowering = self.lowerer.lower(untiled(self.graph))
        known = [(lowering, self.cost_model.cost(lowering))]
        for _ in range(MOVES):
            (base, cost), (other, _) = (self.rng.choice(known) for _ in range(2))
            tiling = self.moved(other.tiling)
            lowering = self.lowerer.lower(tiling, base)
            known.append((lowering, self.cost_model.cost(lowering, cost)))
            yield base, *known[-1]


def assert_nothing_depends_on_the_way(walk):
    changed = 0
    for base, lowering, cost in walk.steps():
        fresh, priced = walk.at_once(lowering.tiling)
        assert content(lowering) == content(fresh)
        assert figures(cost) == figures(priced)
        changed += content(lowering) != content(base)
    return changed


@pytest.mark.parametrize("seed", range(12))
def test_of_random_programs(program, seed):
    made = programs.program(seed)
    walk = Walk(program(made.fn, made.arguments()), MESHES[seed % len(MESHES)], seed)
    assert_nothing_depends_on_the_way(walk)


@pytest.mark.parametrize("memory", [None, 2_000_000, 300_000])
def test_of_a_train_step_with_much_and_little_memory(gpt_program, memory):
    """Where memory is short, something is gathered again."""
    assert assert_nothing_depends_on_the_way(Walk(gpt_program(1), MESHES[0], 0, memory)) >= 3
