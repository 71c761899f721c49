"""How XLA's partitioner runs products: every rule with experiments, which XLA compiles."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import array
from partita.tactics import partitioner

P = PartitionSpec
EXPERIMENTS = [
    (rule, experiment) for rule in partitioner.PRODUCTS for experiment in rule.experiments
]


def spec(text):
    return P(*(None if axes == "-" else tuple(axes.split("+")) for axes in text.split(",")))


def simulated(experiment, **options):
    lhs, rhs, result = map(spec, experiment)
    return pt.simulate(
        jnp.matmul,
        array(192, 320),
        array(320, 448),
        mesh="x=4,y=2",
        hardware="cpu",
        in_shardings=(lhs, rhs),
        out_shardings=result,
        **options,
    )


@pytest.mark.parametrize(
    ("rule", "experiment"), EXPERIMENTS, ids=[" ".join(e) for _, e in EXPERIMENTS]
)
def test_products_run_as_xla_compiles_them(rule, experiment):
    plan = simulated(experiment, compile=True)
    assert plan.compiled.differences == (), f"{rule.name}\n{plan.compiled}"


@pytest.mark.parametrize("rule", partitioner.PRODUCTS, ids=lambda rule: rule.name.split(":")[0])
def test_every_rule_decides_something(rule, monkeypatch):
    with_it = simulated(rule.experiments[0]).assignment.ops
    without = tuple(each for each in partitioner.PRODUCTS if each is not rule)
    monkeypatch.setattr(partitioner, "PRODUCTS", without)
    assert simulated(rule.experiments[0]).assignment.ops != with_it
