"""Lower bounds: no plan that moves lead to takes less, whatever the program, mesh and device."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partita.search import exhaust
from partita.search.bounds import Bound, lower_bound
from partita.search.bounds.messages import Edge, Energy, Messages
from partita.search.bounds.relaxed import Relaxed
from partita.search.relaxed_starts import relaxed_starts
from searched import states
from searching import SIZES, mlp, problem

# --------------------------------------------------------------------------------- programs


def step(a, b, x):
    """A gradient step of a two-layer MLP."""

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params[0]) @ params[1]) ** 2)

    return [p - 0.1 * g for p, g in zip((a, b), jax.grad(loss)((a, b)), strict=True)]


def attention(x, w, v):
    """Queries and keys are of one color, and so conflict."""
    q, k = jnp.einsum("bsd,dhk->bshk", x, w), jnp.einsum("bsd,dhk->bshk", x, v)
    scores = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k))
    return jnp.einsum("bhqs,bshk->bqhk", scores, k).sum()


def square(w, x):
    """A weight whose two dimensions are of one color."""
    return (x @ w @ w.T + x).sum(), w + w.T


def accumulated(w, x):
    """Gradients of a few batches, added up in a loop, and their norm."""

    def add(total, batch):
        return total + jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(w), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(w), x)
    return w - 0.1 * total, jnp.sqrt(jnp.sum(total**2))


def layers(w, x):
    """Layers in a loop, one weight each."""

    def layer(x, w):
        return jnp.tanh(x @ w), jnp.max(x, axis=1)

    return jax.lax.scan(layer, x, w)


def windows(x, w):
    """A convolution, whose shards need a halo, and rows that are looked up."""
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y).mean((1, 2)), y[jnp.arange(2)]


def made(x):
    """What is made from nothing, for uses that need it otherwise."""
    mask = jnp.arange(64)[:, None] < jnp.arange(64)[None, :]
    return jnp.where(mask, x @ x.T, 0.0).sum(axis=0) + jnp.arange(64.0)


PROGRAMS = {
    "step": (step, ((64, 256), (256, 32), (512, 64))),
    "attention": (attention, ((8, 32, 64), (64, 4, 16), (64, 4, 16))),
    "square": (square, ((64, 64), (128, 64))),
    "accumulated": (accumulated, ((64, 128), (4, 256, 64))),
    "layers": (layers, ((4, 64, 64), (256, 64))),
    "windows": (windows, ((8, 16, 16, 8), (3, 3, 8, 16))),
    "made": (made, ((64, 128),)),
}


@pytest.mark.parametrize("kind", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("mesh", ["a=2,b=2", "a=4,b=2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_plan_is_one_of_the_choices_and_costs_no_less(name, mesh, kind):
    p = problem(*PROGRAMS[name], mesh, kind=kind)
    relaxed = Relaxed(p)
    found = states(p, 300)
    for weight in (1.0, 0.4):
        energy = relaxed.energy(weight)
        for state in found:
            time = state.cost.time.step_time
            assert energy.of(relaxed.of(state.lowering)) <= time * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_plan_takes_less_than_the_bound(name, kind):
    p = problem(*PROGRAMS[name], "a=2,b=2", kind=kind)
    bound = lower_bound(p)
    assert bound.seconds > 0
    fastest = min(state.cost.time.step_time for state in states(p, 300))
    assert bound.seconds <= fastest
    assert bound.gap(fastest) < 2


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_best_of_all_plans_takes_no_less_than_the_bound(sizes, share):
    best = exhaust(mlp(sizes, share=share), 5000).best
    bound = lower_bound(mlp(sizes, share=share))
    assert bound.seconds <= best.cost.time.step_time
    if share == 1.0:
        assert bound.gap(best.cost.time.step_time) < 0.1


def test_where_few_colors_may_be_split_the_bound_is_higher():
    p = mlp("wide batch")
    free = lower_bound(p).seconds
    p.everything = False
    p.moves = [move for move in p.moves if move.color == p.moves[-1].color]
    assert lower_bound(p).seconds > free


@pytest.mark.parametrize(
    ("step_time", "told"),
    [
        (1.0, "optimal: no plan takes less"),
        (1.1, "at most 10.0% above the best possible: no plan takes less than 1 s"),
    ],
)
def test_a_plan_is_called_optimal_only_if_that_is_proven(step_time, told):
    assert Bound(1.0, ()).told(step_time) == told
    assert Bound(0.0, ()).told(step_time) == "how far from the best possible is not known"


def test_what_no_single_class_could_do_better_is_proven_optimal():
    """Each device works on its part of a sum along an axis, and nothing is exchanged."""
    p = problem(lambda x: jnp.tanh(x * 2.0), ((4096, 1024),), "a=2,b=2")
    best = exhaust(p, 5000).best
    assert lower_bound(p).told(best.cost.time.step_time) == "optimal: no plan takes less"


def test_a_mesh_of_too_many_axes_has_no_bound():
    mesh = ",".join(f"{name}=2" for name in "abcdefgh")
    assert lower_bound(mlp(mesh=mesh)) is None


# ----------------------------------------------------------------------------------- messages


def an_energy(edges, choices=3, nodes=6, seed=0):
    rng = np.random.default_rng(seed)
    return Energy.joined(
        [rng.random(choices) for _ in range(nodes)],
        [Edge(a, b, rng.random((choices, choices))) for a, b in edges],
    )


def least(energy):
    counts = (range(len(costs)) for costs in energy.nodes)
    return min(energy.of(choices) for choices in itertools.product(*counts))


@pytest.mark.parametrize("seed", range(5))
def test_on_a_tree_the_bound_is_the_minimum(seed):
    energy = an_energy([(0, 2), (1, 2), (2, 4), (3, 4), (4, 5)], seed=seed)
    messages = Messages(energy)
    for _ in range(5):
        bound, choices = messages.run(energy)
    assert bound == pytest.approx(least(energy))
    assert energy.of(choices) == pytest.approx(bound)


@pytest.mark.parametrize("seed", range(20))
def test_with_circles_it_is_never_more_after_any_number_of_passes(seed):
    energy = an_energy(list(itertools.combinations(range(6), 2)), seed=seed)
    messages, minimum = Messages(energy), least(energy)
    bounds = []
    for _ in range(20):
        bound, choices = messages.run(energy)
        assert bound <= minimum + 1e-12
        assert energy.of(choices) >= minimum - 1e-12
        bounds.append(bound)
    assert bounds[-1] > bounds[0]
    # Messages of one energy give a bound for any other.
    other = an_energy(list(itertools.combinations(range(6), 2)), seed=seed + 100)
    assert messages.run(other)[0] <= least(other) + 1e-12


# ----------------------------------------------------------------------------- plans on the way


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_comes_up_on_the_way_to_a_bound_can_be_started_from(name):
    p = problem(*PROGRAMS[name], "a=2,b=2")
    bound = lower_bound(p)
    states = relaxed_starts(p, bound, 3, 1000)
    assert 1 <= len(states) <= 3
    assert min(state.cost.time.step_time for state in states) >= bound.seconds
    # Where the actions are made one by one, they lead to the same layouts.
    for state in states:
        one_by_one = [action for move in state.moves for action in move.decisions]
        assert p.replay(one_by_one).tiling == state.tiling
