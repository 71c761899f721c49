"""Random constraints in a random program: what steps make is given shardings over a mesh."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

import partita as pt
from fuzzing.programs import Program
from partita.mesh import Mesh

SHARE = 0.4  # of the steps


def constrain(program: Program, mesh: str, seed: int) -> None:
    """Constrains what some steps make, those in loops and branches included."""
    rng = random.Random(f"constraints {seed}")
    pools = [program.pool]
    for pool in pools:
        pools += [inner for step in pool.steps for inner in step.inner]
        for step in pool.steps:
            if rng.random() < SHARE:
                specs = [_spec(v.shape, Mesh.of(mesh), rng) for v in step.outputs]
                step.fn = _constrained(step.fn, specs)
                step.text += f" constrained to {', '.join(map(str, specs))}"


def _constrained(fn: Callable[..., Any], specs: list[PartitionSpec]) -> Callable[..., Any]:
    def constrained(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(fn(*args))
        return jax.tree.unflatten(structure, map(pt.constrain, leaves, specs))

    return constrained


def _spec(shape: tuple[int, ...], mesh: Mesh, rng: random.Random) -> PartitionSpec:
    """For each dimension some axes that divide it, none, or what is left open."""
    left = [*mesh.names]
    rng.shuffle(left)
    entries: list[Any] = []
    for size in shape:
        row: list[str] = []
        while left and rng.random() < 0.5 and size % mesh.size((mesh.axis(left[-1]),)) == 0:
            row.append(left.pop())
            size //= mesh.size((mesh.axis(row[-1]),))
        whole = PartitionSpec.UNCONSTRAINED if rng.random() < 0.3 else None
        entries.append(tuple(row) or whole)
    return PartitionSpec(*entries)
