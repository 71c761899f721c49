"""Rule sets that LLM code is written with: priced as what XLA compiles from them on host devices.

Five sets of rules, layers written one by one or scanned, the loss alone or a train step, two
meshes. What is compiled is the user's own `jax.jit`, with all shardings in it. Where the quick
answer differs, the reason is in `KNOWN`, and the plan warns.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tools.compiling import compiled

import partita as pt
from partita.program.collectives import ALL_REDUCE, REDUCE_SCATTER
from partita.verify.collectives import found_collectives
from partita.verify.comparison import hlo_collective
from partita.verify.hlo import parse

P = PartitionSpec
SIZES = {"batch": 16, "length": 8, "embed": 32, "mlp": 64, "heads": 8, "head": 4}
LAYERS = 2
MESHES = {"4x2": (4, 2), "2x4": (2, 4)}


@dataclasses.dataclass(frozen=True)
class Rules:
    """Axes of the mesh by dimension: of weights, and of what is computed."""

    weights: dict
    activations: dict


BOTH = ("data", "model")
TENSOR = {"mlp": "model", "heads": "model"}
RULES = {
    "FSDP": Rules({"embed": BOTH}, {"batch": BOTH}),
    "FSDP and tensor": Rules({"embed": "data", **TENSOR}, {"batch": "data", **TENSOR}),
    "Megatron with sequence": Rules(TENSOR, {"batch": "data", "between": "model", **TENSOR}),
    "MaxText": Rules({"embed": "data", **TENSOR}, {"batch": "data", "embed": "model", **TENSOR}),
    "T5X in 2D": Rules(TENSOR, {"batch": "data", "embed": "model", **TENSOR}),
}
WEIGHTS = {
    "query": ("embed", "heads", "head"),
    "key": ("embed", "heads", "head"),
    "value": ("embed", "heads", "head"),
    "mixed": ("heads", "head", "embed"),
    "in": ("embed", "mlp"),
    "out": ("mlp", "embed"),
}

AGAIN = "the partitioner for hosts gathers an operand again that another product has gathered"
KNOWN = {
    (rules, layers, "train step", mesh): AGAIN
    for rules, meshes in (("MaxText", MESHES), ("T5X in 2D", ["2x4"]))
    for layers in ("unrolled", "scanned")
    for mesh in meshes
}
"""Where the quick answer differs from what is compiled, with the reason."""

CASES = list(itertools.product(RULES, ("unrolled", "scanned"), ("loss", "train step"), MESHES))


def spec(rules, dims):
    return P(*(rules.get(dim) for dim in dims))


def program(rules, layers, step, mesh):
    """The user's function under `jax.jit`, and its arguments with their shardings."""

    def keep(x, *dims):
        sharding = NamedSharding(mesh, spec(rules.activations, dims))
        return jax.lax.with_sharding_constraint(x, sharding)

    def norm(x):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    def layer(x, w):
        x = keep(x, "batch", "between", "embed")
        h = norm(x)
        query, key, value = (
            keep(jnp.einsum("bld,dhk->blhk", h, w[name]), "batch", None, "heads", None)
            for name in ("query", "key", "value")
        )
        scores = jax.nn.softmax(jnp.einsum("blhk,bmhk->bhlm", query, key))
        mixed = keep(jnp.einsum("bhlm,bmhk->blhk", scores, value), "batch", None, "heads", None)
        x = keep(x + jnp.einsum("blhk,hkd->bld", mixed, w["mixed"]), "batch", "between", "embed")
        h = keep(jax.nn.silu(norm(x) @ w["in"]), "batch", None, "mlp")
        return keep(x + h @ w["out"], "batch", "between", "embed"), None

    def loss(weights, x):
        if layers == "scanned":
            x, _ = jax.lax.scan(layer, x, weights)
        else:
            for number in range(LAYERS):
                x, _ = layer(x, jax.tree.map(lambda w, n=number: w[n], weights))
        return jnp.mean(x**2)

    def train(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    def argument(shape, spec_):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec_))

    weights = {
        name: argument((LAYERS, *(SIZES[dim] for dim in dims)), P(None, *spec(rules.weights, dims)))
        for name, dims in WEIGHTS.items()
    }
    dims = ("batch", "between", "embed")
    x = argument(
        tuple(SIZES[d] for d in ("batch", "length", "embed")), spec(rules.activations, dims)
    )
    if step == "loss":
        return jax.jit(loss), (weights, x)
    placed = jax.tree.map(lambda w: w.sharding, weights)
    return jax.jit(train, out_shardings=(None, placed)), (weights, x)


def collectives_of(text):
    """The collectives of a compiled program; a sum of which each device keeps a shard is a
    reduce_scatter, which compilers for accelerators make of it."""
    found = Counter()
    for each in found_collectives(parse(text)):
        one = each.collective
        if each.cut and one.kind == ALL_REDUCE.name:
            one = dataclasses.replace(one, kind=REDUCE_SCATTER.name)
        found[one] += 1
    return found


@pytest.mark.parametrize(("rules", "layers", "step", "mesh"), CASES, ids=map(" ".join, CASES))
def test_rules_are_priced_as_xla_executes_them(rules, layers, step, mesh):
    devices = jax.make_mesh(MESHES[mesh], BOTH, axis_types=(AxisType.Auto,) * 2)
    fn, args = program(RULES[rules], layers, step, devices)
    plan = pt.simulate(fn, *args, mesh=devices, hardware="tpu_v5e")
    ours = Counter(hlo_collective(each, plan.mesh) for each in plan.collectives)
    theirs = collectives_of(compiled(fn, *args).as_text())
    warned = any("XLA may" in warning for warning in plan.history[0].warnings)
    reason = KNOWN.get((rules, layers, step, mesh))
    assert (ours == theirs, warned) == (reason is None, reason is not None), (
        f"more compiled: {theirs - ours}, more predicted: {ours - theirs}"
    )
