"""A graph network simulator (GNS, encode-process-decode) and its Adam train step.

Nodes and edges are encoded by multi-layer perceptrons that end in a layer norm; every message
passing step gathers the nodes at both ends of an edge, updates the edges, sums them at their
receivers, and updates the nodes, with residuals; a last perceptron reads the nodes. The batch is
one graph (a batch of graphs is one disconnected graph). Parameters are kept in float32 and used
in `config.dtype`.

Shape legend: V nodes, E edges, I node features, J edge features, D latent, O output.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from partita.models import layers, training

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GNSConfig:
    """Sizes of a GNS. All are numbers of elements; `dtype` is the compute type."""

    steps: int
    """Message passing steps, each with parameters of its own."""
    nodes: int
    edges: int
    node_features: int
    edge_features: int
    latent: int
    hidden: int
    """Width of the hidden layers of every perceptron."""
    hidden_layers: int
    outputs: int
    dtype: str = "bfloat16"
    learning_rate: float = 1e-3


PRESETS = {
    "gns-tiny": GNSConfig(2, 64, 256, 16, 8, 32, 32, 2, 8),
    "gns": GNSConfig(24, 2048, 65536, 64, 16, 512, 1024, 5, 3),
}


def init(config: GNSConfig, key: jax.Array) -> Params:
    """The train state: parameters (float32) and Adam's state."""
    c = config
    keys = iter(jax.random.split(key, 2 * c.steps + 3))

    def mlp(width_in: int, width_out: int) -> list[Params]:
        widths = [width_in, *[c.hidden] * c.hidden_layers, width_out]
        layers = list(itertools.pairwise(widths))
        return [
            {"w": jax.random.normal(k, shape) * shape[0] ** -0.5, "b": jnp.zeros(shape[1])}
            for k, shape in zip(jax.random.split(next(keys), len(layers)), layers, strict=True)
        ]

    def normed(width_in: int) -> Params:
        scale, bias = jnp.ones(c.latent), jnp.zeros(c.latent)
        return {"mlp": mlp(width_in, c.latent), "scale": scale, "bias": bias}

    params = {
        "encode_nodes": normed(c.node_features),
        "encode_edges": normed(c.edge_features),
        "process": [
            {"edges": normed(3 * c.latent), "nodes": normed(2 * c.latent)} for _ in range(c.steps)
        ],
        "decode": mlp(c.latent, c.outputs),
    }
    return training.state(params, config.learning_rate)


def _mlp(x: jax.Array, layers: list[Params]) -> jax.Array:
    """Matrices and biases with ReLUs between them, over the last dimension."""
    for number, layer in enumerate(layers):
        x = x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)
        if number < len(layers) - 1:
            x = jax.nn.relu(x)
    return x


def _normed(x: jax.Array, params: Params) -> jax.Array:
    """A perceptron followed by a layer norm, which is computed in float32."""
    return layers.layer_norm(_mlp(x, params["mlp"]), params, 1e-5)


def predict(config: GNSConfig, params: Params, graph: Params) -> jax.Array:
    """The outputs of the nodes of a graph, `[V, O]`."""
    senders, receivers = graph["senders"], graph["receivers"]
    nodes = _normed(graph["nodes"].astype(config.dtype), params["encode_nodes"])
    edges = _normed(graph["edges"].astype(config.dtype), params["encode_edges"])
    for step in params["process"]:
        ends = jnp.concatenate([edges, nodes[senders], nodes[receivers]], axis=-1)
        edges = edges + _normed(ends, step["edges"])
        received = jax.ops.segment_sum(edges, receivers, config.nodes)
        nodes = nodes + _normed(jnp.concatenate([nodes, received], axis=-1), step["nodes"])
    return _mlp(nodes, params["decode"])


def loss(config: GNSConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of `batch['targets']`, `[V, O]`, given the graph."""
    out = predict(config, params, batch)
    return jnp.mean((out.astype(jnp.float32) - batch["targets"]) ** 2)


def train_step(config: GNSConfig, state: Params, batch: Params) -> tuple[Params, jax.Array]:
    """One Adam step: the new state and the loss before it."""
    return training.step(lambda p: loss(config, p, batch), state, config.learning_rate)


def abstract_batch(config: GNSConfig) -> Params:
    """The batch as `ShapeDtypeStruct`s: features, targets, and both ends of every edge."""
    c = config
    return {
        "nodes": jax.ShapeDtypeStruct((c.nodes, c.node_features), jnp.float32),
        "edges": jax.ShapeDtypeStruct((c.edges, c.edge_features), jnp.float32),
        "senders": jax.ShapeDtypeStruct((c.edges,), jnp.int32),
        "receivers": jax.ShapeDtypeStruct((c.edges,), jnp.int32),
        "targets": jax.ShapeDtypeStruct((c.nodes, c.outputs), jnp.float32),
    }


def example_batch(config: GNSConfig, key: jax.Array) -> Params:
    """A random graph with random features and targets."""
    bounds = dict.fromkeys(("senders", "receivers"), config.nodes)
    return training.example(abstract_batch(config), key, bounds)
