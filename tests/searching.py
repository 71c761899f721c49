"""A small problem to search: the forward pass of an MLP, of sizes at which different plans win."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from partita.analysis import analyse, fold
from partita.cost import CostModel, load
from partita.frontend.calling import Marked
from partita.frontend.trace import trace
from partita.mesh import Mesh
from partita.search import Problem
from partita.tiling import untiled

SIZES = {
    "wide batch": (4096, 512, 512),
    "even": (512, 1024, 4096),
    "large weights": (4, 2048, 8192),
}
"""Batch, width and hidden width."""


def forward(a, b, x):
    """A two-layer MLP."""
    return jnp.mean((jnp.tanh(x @ a) @ b) ** 2)


@functools.cache
def analysed(fn, *shapes):
    """The analysis of a function of float32 arrays, and its classes."""
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = trace(fn, types, {}, Marked.of()).program
    analysis = analyse(program, int(load("tpu_v5e").regather_window.value))
    return analysis, fold(analysis)


def problem(fn, shapes, mesh, share=1.0, kind="tpu_v5e"):
    """A new problem. `share`: memory, as a share of what it takes on one device."""
    analysis, graph = analysed(fn, *shapes)
    mesh, start = Mesh.of(mesh), untiled(graph)

    def build(capacity):
        model = CostModel(graph, analysis, mesh, load(kind), capacity)
        return Problem(analysis, graph, start, mesh, model, range(len(mesh.names)))

    return build(max(int(share * build(None).start.cost.peak), 1))


def mlp(sizes="even", mesh="data=2,model=2", share=1.0):
    """The MLP, to be searched."""
    batch, width, hidden = SIZES[sizes]
    return problem(forward, ((width, hidden), (hidden, width), (batch, width)), mesh, share)


def run(algorithm, problem, budget=200, seed=0):
    """The best state that an algorithm finds."""
    return algorithm(problem, budget, seed, lambda done, best: None)
