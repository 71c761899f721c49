"""Sums over many values, each split in its own way, are reduced once: norms of gradients."""

import jax
import jax.numpy as jnp
import optax
import pytest

import partita as pt
from checks import numbers, runs_as_the_original

PARAMS = {
    f"layers_{i}": {"w": numbers(16, 16, seed=i), "b": numbers(16, seed=9 + i)} for i in range(4)
} | {"scale": numbers(3)}  # not divisible: the same on every device
X = numbers(8, 16)


def loss(params, x):
    *layers, scale = (params[name] for name in sorted(params))
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean(x**2) + jnp.sum(scale**2)


def squares(tree):
    return [jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)]


NORMS = {
    "optax": optax.tree.norm,  # `global_norm` by its present name
    "sum": lambda tree: jnp.sqrt(sum(squares(tree))),
    "from zero": lambda tree: jnp.sqrt(sum(squares(tree), start=jnp.float32(0))),
    "reduce": lambda tree: jnp.sqrt(
        jax.tree.reduce(lambda a, x: a + jnp.sum(x * x), tree, initializer=0.0)
    ),
}


def clipped(norm):
    def step(params, x):
        gradient = jax.grad(loss)(params, x)
        scale = 1 / jnp.maximum(norm(gradient), 1e-3)
        return jax.tree.map(lambda p, g: p - g * scale, params, gradient)

    return step


FSDP = [pt.DataParallel(axis="data"), pt.FullyShardedDataParallel(axis="data")]
BOTH = [
    pt.DataParallel(axis="data"),
    pt.ManualPartition({"params*_1*'w'*": 1, "params*_2*'b'*": 0}, axis="model"),
    pt.FullyShardedDataParallel(axis="data"),
]


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize(
    ("mesh", "tactics", "over"),
    [({"data": 4}, FSDP, ("data",)), ({"data": 2, "model": 2}, BOTH, ("data", "model"))],
    ids=["one axis", "differing axes"],
)
def test_clipping_costs_one_all_reduce_of_one_number(norm, mesh, tactics, over):
    plan = pt.plan(
        clipped(norm), PARAMS, X, mesh=mesh, hardware="tpu_v5e", tactics=tactics, donate_argnums=0
    )
    scalars = [c for c in plan.collectives if c.kind == "all_reduce" and c.bytes == 4]
    assert [(c.count, set(c.axes)) for c in scalars] == [(1, set(over))]
    runs_as_the_original(plan, PARAMS, X)


def test_what_is_the_same_on_every_device_counts_once():
    """A single number that is added to an unreduced one is masked, not reduced with it."""

    def fn(x, y):
        return jnp.sum(x) + jnp.sum(y) - jnp.max(y)

    x, y = numbers(8), numbers(3, seed=1)
    tactics = [pt.ManualPartition({"x": 0}, axis="data")]
    plan = pt.plan(fn, x, y, mesh={"data": 4}, hardware="tpu_v5e", tactics=tactics)
    assert [(c.kind, c.bytes) for c in plan.collectives] == [("all_reduce", 4)]
    runs_as_the_original(plan, x, y)


def test_what_is_made_on_every_device_is_not_added_to_parts_of_a_sum():
    """A matrix of one number from no argument, which is made as its uses need it."""

    def fn(x):
        return jnp.exp(-(x @ x.T / 3 + jnp.eye(1)))

    tactics = [pt.ManualPartition({"x": 1}, axis="data")]
    runs_as_the_original(
        pt.plan(fn, numbers(1, 8), mesh={"data": 4}, hardware="cpu", tactics=tactics), numbers(1, 8)
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: sum([a @ b, a @ jnp.sin(b)]),
        lambda a, b: jnp.zeros((8, 8)) + a @ b + a @ jnp.sin(b),
        lambda a, b: a @ b + a @ jnp.sin(b) + jnp.zeros((8, 8), jnp.int8).astype(jnp.float32),
    ],
    ids=["sum", "zeros", "zeros at the end"],
)
def test_a_sum_of_arrays_with_zeros_is_reduced_once(fn):
    a, b = numbers(8, 16), numbers(16, 8, seed=1)
    tactics = [pt.ManualPartition({"a": 1}, axis="data")]
    plan = pt.plan(fn, a, b, mesh={"data": 4}, hardware="tpu_v5e", tactics=tactics)
    assert [(c.kind, c.count) for c in plan.collectives] == [("all_reduce", 1)]
    runs_as_the_original(plan, a, b)


def test_what_is_not_zero_is_added_after_the_reduction():
    a, b = numbers(8, 16), numbers(16, 8, seed=1)
    tactics = [pt.ManualPartition({"a": 1}, axis="data")]
    plan = pt.plan(
        lambda a, b: 1.0 + a @ b, a, b, mesh={"data": 4}, hardware="tpu_v5e", tactics=tactics
    )
    assert [(c.kind, c.count) for c in plan.collectives] == [("all_reduce", 1)]
    runs_as_the_original(plan, a, b)
