"""Reshards run on eight host devices: the numbers are right, and XLA does what was predicted."""

from __future__ import annotations

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita.analysis import analyse, discrete
from partita.frontend.trace import trace
from partita.mesh import Mesh
from partita.run.executable import export, layout_tree, partition_spec
from partita.spmd import Lowerer, unfold
from partita.tiling import Tiling, untiled
from partita.verify import compare

SIZE = 16
CASES = 20  # in one program: compiling takes most of the time


def split(rng, axes):
    """Some of the axes, in some order, given to two dimensions."""
    layout = [(), ()]
    for axis in rng.sample(axes, rng.randint(0, len(axes))):
        layout[rng.randrange(2)] += (axis,)
    return tuple(layout)


def cases(mesh, seed):
    """Layouts `(have, partial over, want)`."""
    rng, axes = random.Random(seed), list(range(len(mesh.sizes)))
    for _ in range(CASES):
        have, want = split(rng, axes), split(rng, axes)
        free = [axis for axis in axes if axis not in itertools.chain(*have)]
        yield have, tuple(axis for axis in free if rng.random() < 0.4), want


def sums(stacks):
    return [stack.sum(0) for stack in stacks]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mesh", ["x=2,y=4", "x=4,y=2", "x=2,y=2,z=2", "x=1,y=8"])
def test_devices_end_with_what_the_wanted_layout_says(mesh, seed):
    mesh, todo = Mesh.of(mesh), [*cases(Mesh.of(mesh), seed)]
    stack = jax.ShapeDtypeStruct((8, SIZE, SIZE), jnp.float32)
    program = trace(sums, ([stack] * CASES,), {}).program
    graph = discrete(analyse(program))
    ops, values = (list(layouts) for layouts in (untiled(graph).ops, untiled(graph).values))
    for (have, partial, want), argument, result in zip(
        todo, program.arguments, program.results, strict=True
    ):
        (reduce,) = (op.index for op in program.operations if result in op.results)
        # Each device adds up its part of the stack, cut in pieces as `have` says.
        values[argument], values[result] = (partial, *have), want
        rule = graph.ops[reduce].op.rule
        factors = {f[0]: axes for f, axes in zip(rule.operands[0], (partial, *have), strict=True)}
        ops[reduce] = tuple(factors.get(f, ()) for f in range(len(rule.factors)))
    spmd = unfold(Lowerer(graph, mesh).lower(Tiling(tuple(ops), tuple(values))))

    found = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)] * CASES
    exported = export(spmd, (([stack] * CASES,), {}), found)
    devices = jax.make_mesh(
        mesh.sizes, mesh.names, axis_types=(jax.sharding.AxisType.Auto,) * len(mesh.sizes)
    )
    rng = np.random.default_rng(seed)
    whole = [rng.integers(-9, 9, stack.shape).astype(np.float32) for _ in range(CASES)]
    specs = layout_tree(whole, spmd.argument_layouts, lambda lay, n: partition_spec(lay, mesh, n))
    placed = [
        jax.device_put(array, jax.sharding.NamedSharding(devices, spec))
        for array, spec in zip(whole, specs, strict=True)
    ]
    compiled = jax.jit(exported.call).lower(placed).compile()
    for array, made in zip(whole, compiled(placed), strict=True):
        np.testing.assert_array_equal(made, array.sum(0))
    comparison = compare(spmd.collectives, mesh, compiled.as_text())
    assert comparison.equal, f"\n{comparison}"
    assert comparison.predicted
