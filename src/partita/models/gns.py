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
from typing import Any

import jax
import jax.numpy as jnp

from partita.models.parts import layers, training
from partita.models.parts.training import Input

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
    """The parameters (float32)."""
    c = config
    keys = iter(jax.random.split(key, 2 * c.steps + 3))
    hidden = [c.hidden] * c.hidden_layers

    def normed(width_in: int) -> Params:
        mlp = layers.init_perceptron(next(keys), [width_in, *hidden, c.latent])
        return {"mlp": mlp, "scale": jnp.ones(c.latent), "bias": jnp.zeros(c.latent)}

    return {
        "encode_nodes": normed(c.node_features),
        "encode_edges": normed(c.edge_features),
        "process": [
            {"edges": normed(3 * c.latent), "nodes": normed(2 * c.latent)} for _ in range(c.steps)
        ],
        "decode": layers.init_perceptron(next(keys), [c.latent, *hidden, c.outputs]),
    }


def _normed(x: jax.Array, params: Params) -> jax.Array:
    """A perceptron followed by a layer norm, which is computed in float32."""
    return layers.layer_norm(layers.perceptron(x, params["mlp"]), params, 1e-5)


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
    return layers.perceptron(nodes, params["decode"])


def loss(config: GNSConfig, params: Params, batch: Params) -> jax.Array:
    """Mean squared error of `batch['targets']`, `[V, O]`, given the graph."""
    return training.squared_error(predict(config, params, batch), batch["targets"])


def inputs(config: GNSConfig) -> training.Inputs:
    """A graph: features, targets, and both ends of every edge."""
    c = config
    return {
        "nodes": Input((c.nodes, c.node_features)),
        "edges": Input((c.edges, c.edge_features)),
        "senders": Input((c.edges,), c.nodes),
        "receivers": Input((c.edges,), c.nodes),
        "targets": Input((c.nodes, c.outputs)),
    }


MODEL = training.trained(init, loss, inputs)
