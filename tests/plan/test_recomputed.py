"""Programs with recomputed values: compiled, run and compared with the original."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, assert_same, numbers, runs_as_the_original
from partita import models
from partita.mesh import Mesh
from partita.plan import Plan
from partita.planning.prepare import prepare, targeted
from partita.program import Program
from partita.program.passes import recompute
from partita.verify.random_arguments import drawn
from well_formed import check

MESHES = pytest.mark.parametrize("mesh", ["data=1", "data=8", "data=4,model=2"])


def planned(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: str,
    tactics: Sequence[Any],
    change: Callable[[Program], Program],
) -> tuple[Plan, Plan]:
    """Plans of a function, and of its program after a change, with the same tactics."""
    before = prepare(fn, tuple(args), {}, Mesh.of(mesh), targeted("tpu_v5e", None))
    after = dataclasses.replace(before, program=change(before.program))
    check(after.program)
    sharded = tactics if mesh != "data=1" else ()
    return tuple(Plan.of(each, each.schedule(sharded)) for each in (before, after))


def barriers(plan: Plan, *args: Any) -> int:
    """How many barriers the compiler is given; that for hosts drops them."""
    return plan.jit().lower(*plan.shard(*args)).as_text().count("stablehlo.optimization_barrier")


# ---------------------------------------------------------------- a small MLP


WIDE = 1024


def mlp_step(params, x):
    def loss(params):
        hidden = x
        for up, down in params:
            hidden = jnp.tanh(hidden @ up) @ down
        return jnp.mean(hidden**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


MLP = (
    [(0.1 * numbers(16, WIDE, seed=n), 0.1 * numbers(WIDE, 16, seed=9 + n)) for n in range(4)],
    numbers(2048, 16),
)


def wide_again(program: Program) -> Program:
    """Computes what is wide of each layer but the last again, when the backward pass reads it."""
    for layer in range(3):
        tanh = [op for op in program.operations if op.short == "tanh"][layer]
        derivative = next(op for op in program.operations[tanh.index :] if op.short == "subtract")
        values = [tanh.operands[0], *tanh.results, *derivative.results]
        start = next(op.index for op in program.operations if "transpose(jvp" in op.scope)
        program = recompute(program, values, start).program
    return program


@MESHES
def test_an_mlp_runs_as_before_with_less_memory(mesh):
    tactics = [pt.ManualPartition({"x": 0}, axis="data")]
    if "model" in mesh:
        tactics.append(pt.ManualPartition({"params*[0]": 1}, axis="model"))
    before, after = planned(mlp_step, MLP, mesh, tactics, wide_again)
    runs_as_the_original(after, *MLP)
    assert barriers(before, *MLP) == 0
    assert barriers(after, *MLP) == 3
    hidden = 4 * 2048 * WIDE // after.mesh.devices
    saved = before.estimate.peak_memory - after.estimate.peak_memory
    assert saved > 0.8 * hidden
    assert after.estimate.step_time > before.estimate.step_time


# ---------------------------------------------------------------- a transformer of two layers


def first_layer_again(program: Program) -> Program:
    """Computes all that the first layer makes again, when the backward pass reads some of it."""
    start = next(op.index for op in program.operations if "transpose(jvp" in op.scope)
    norms = [op.index for op in program.operations[:start] if op.short == "rsqrt"]
    layer = program.operations[norms[0] : norms[2]]  # two norms a layer
    return recompute(program, [v for op in layer for v in op.results], start).program


@MESHES
def test_a_transformer_runs_as_before_with_less_memory(mesh):
    model = models.build("gpt-tiny", dtype="float32")
    tactics = [pt.ManualPartition({"batch*": 0}, axis="data")]
    if "model" in mesh:
        tactics.append(pt.ManualPartition({"*['wq']": 1, "*['wk']": 1, "*['wv']": 1}, axis="model"))
    state, batch = model.args
    longer = jax.tree.map(lambda a: array(4 * a.shape[0], *a.shape[1:], dtype=a.dtype), batch)
    before, after = planned(model.fn, (state, longer), mesh, tactics, first_layer_again)
    assert after.estimate.peak_memory < before.estimate.peak_memory
    args = drawn((state, longer), seed=0)
    step = after.jit()
    placed = after.shard(*args)
    assert barriers(after, *args) == 1
    assert_same(step(*placed), jax.jit(model.fn)(*args), 1e-4)
