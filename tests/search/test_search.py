"""Search: against all states of a small program, and the promises that it makes on larger ones."""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import partita as pt
from partita.analysis import analyse, fold
from partita.cost import CostModel, load
from partita.decisions import ShardClass, ShardColor
from partita.errors import TacticError
from partita.mesh import Mesh
from partita.search import Problem, iterated_search, protocol, refine, tree_search
from partita.search import problem as problem_module
from partita.search.refine import changes
from partita.tiling import untiled


def problem(program, mesh, capacity=None, kind="tpu_v5e"):
    hardware = load(kind)
    analysis, mesh = analyse(program, int(hardware.regather_window.value)), Mesh.of(mesh)
    graph = fold(analysis)
    cost = CostModel(graph, analysis, mesh, hardware, capacity)
    return Problem(analysis, graph, untiled(graph), mesh, cost, range(len(mesh.names)))


def forward(params, x):
    """A two-layer MLP."""
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"]) ** 2)


def step(params, x):
    """The same, and a gradient step."""
    gradients = jax.grad(forward)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


@pytest.fixture(scope="module")
def build(program):
    """`build(fn, batch, width, hidden)`: a search problem; which plans win depends on the sizes."""

    def build(fn, batch=512, width=1024, hidden=4096, mesh="data=2,model=2", capacity=None):
        params = {"a": f"f32[{width},{hidden}]", "b": f"f32[{hidden},{width // 2}]"}
        return problem(program(fn, params, f"f32[{batch},{width}]"), mesh, capacity)

    return build


def every_state(problem):
    """All states that moves lead to, in any number and order."""
    found, queue = {problem.start.key: problem.start}, [problem.start]
    while queue:
        state = queue.pop()
        for move in problem.moves:
            after = problem.step(state, move)
            if after is not None and after.key not in found:
                found[after.key] = after
                queue.append(after)
    return list(found.values())


def search(problem, budget=1000, seed=0):
    return iterated_search(problem, budget, seed, lambda done, best: None)


def cost_of(problem, state):
    """A state's rank: its cost, and what its moves have to gain."""
    return problem.rank(state)[:3]


# --------------------------------------------------------------------- the best of all states

SIZES = {
    "wide batch": {"batch": 4096, "width": 512, "hidden": 512},
    "even": {"batch": 512, "width": 1024, "hidden": 4096},
    "large weights": {"batch": 4, "width": 2048, "hidden": 8192},
}


@pytest.fixture(scope="module")
def exhausted(build):
    """Every state of a forward pass; what they cost does not depend on the capacity."""
    return functools.cache(lambda sizes: every_state(build(forward, **SIZES[sizes])))


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6, 0.5, 0.4, 0.0])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_best_of_all_states_is_found(build, exhausted, sizes, share):
    states = exhausted(sizes)
    assert 100 < len(states) < 5000
    capacity = int(share * max(state.cost.peak for state in states))
    p = build(forward, **SIZES[sizes], capacity=max(capacity, 1))
    best = search(p)
    assert cost_of(p, best) <= min(cost_of(p, state) for state in states)


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_seed_does_not_matter_in_so_small_a_space(build, exhausted, seed):
    p = build(forward, **SIZES["even"])
    best = search(p, seed=seed)
    assert cost_of(p, best) <= min(cost_of(p, state) for state in exhausted("even"))


# ------------------------------------------------------------------------------ transpositions


def test_two_orders_of_the_same_tilings_are_one_state(build):
    p = build(step)
    merged = 0
    for a in p.moves:
        for b in p.moves:
            one, other = p.replay((a, b)), p.replay((b, a))
            assert (one.key == other.key) == (one.tiling == other.tiling)
            if a != b and one.key == other.key:
                assert one.lowering is other.lowering
                assert (one.moves, other.moves) == ((a, b), (b, a))
                merged += 1
    assert merged > 0


def test_states_are_told_apart_by_which_classes_have_a_layout(build):
    """All of them have the same layouts, each on another matrix."""
    p = build(forward)
    matrices = [v.members[0] for v in p.graph.values if len(v.value.type.shape) == 2]
    states = [p.replay((ShardClass("value", member, 0, 0),)) for member in matrices]
    assert len({state.key for state in states}) == len(matrices) > 2


def test_order_matters_where_moves_compete_for_an_axis(build):
    p = build(step)
    batch, width = (
        next(m for m in p.moves if m.axis == 0 and p.graph.values[v].colors[d] == m.color)
        for v, d in ((p.graph.value_class[p.graph.program.arguments[2]], d) for d in (0, 1))
    )
    assert p.replay((batch, width)).tiling != p.replay((width, batch)).tiling


def test_a_move_that_changes_nothing_leads_nowhere(build):
    p = build(step)
    state = p.replay(p.moves[:1])
    assert p.step(state, p.moves[0]) is None
    evaluations = p.evaluations
    assert p.replay(p.moves[:1] * 3) is state
    assert p.evaluations == evaluations


def test_a_state_is_priced_once(build):
    p = build(forward, mesh="data=2")
    every_state(p)
    priced = p.evaluations
    assert priced == len(p._states) - 1  # but for the start
    every_state(p)
    assert p.evaluations == priced


# ---------------------------------------------------------------------------------- promises


@pytest.fixture(params=["mlp", "gpt"])
def train(request, build, gpt_program):
    """A train step, of whose states a search sees a part."""
    if request.param == "mlp":
        return functools.partial(build, step)
    return lambda capacity=None: problem(gpt_program(2), "data=4,model=2", capacity)


def test_equal_seeds_give_equal_results(train):
    first, second = (search(train(), 100, seed=3) for _ in range(2))
    assert first.moves == second.moves
    assert first.tiling == second.tiling
    assert first.cost.time.step_time == second.cost.time.step_time


@pytest.mark.parametrize(
    ("train", "quantile", "seed"),
    [
        *(("mlp", quantile, seed) for quantile in (0.0, 0.1, 0.4, 0.7, 1.0) for seed in (0, 1)),
        *(("gpt", quantile, 1) for quantile in (0.1, 0.7)),
    ],
    indirect=["train"],
)
def test_no_state_that_was_priced_is_better_than_the_result(train, quantile, seed):
    """For capacities between the smallest and the largest peak seen."""
    seen = train()
    search(seen, 150, seed)
    peaks = [state.cost.peak for state in seen._states.values()]
    p = train(capacity=int(np.quantile(peaks, quantile)))
    best = search(p, 150, seed)
    assert cost_of(p, best) == min(cost_of(p, state) for state in p._states.values())
    if any(s.cost.peak <= p.cost_model.capacity for s in p._states.values()):
        assert best.cost.peak <= p.cost_model.capacity


def test_below_every_peak_the_smallest_plan_is_taken(train):
    p = train(capacity=1)
    best = search(p, 100)
    assert best.cost.peak == min(state.cost.peak for state in p._states.values())


@pytest.mark.parametrize("budget", [1, 7, 50])
def test_budgets_are_kept(train, budget):
    p = train()
    found = tree_search(p, budget, 0)
    assert p.evaluations <= budget
    used = p.evaluations
    refine(p, found, budget)
    assert p.evaluations <= used + budget


def test_refining_never_makes_it_worse(train):
    p = train()
    for seed in range(3):
        start = p.replay([p.moves[(7 * seed + i) % len(p.moves)] for i in range(3)])
        assert p.rank(refine(p, start, 30)) <= p.rank(start)


def test_refining_drops_a_move_that_costs(build):
    """From any two moves, refining finds something no worse than either of them alone."""
    p = build(step)
    for a in p.moves[:6]:
        for b in p.moves[:6]:
            refined = refine(p, p.replay((a, b)), 300)
            assert p.rank(refined) <= min(p.rank(p.replay((m,))) for m in (a, b))


def test_the_moves_of_a_result_lead_to_it(train):
    p = train()
    best = search(p, 100)
    again = p.replay(best.moves)
    assert again.tiling == best.tiling
    # None of them is there for nothing.
    for i in range(len(best.moves)):
        assert p.replay(best.moves[:i]).key != p.replay(best.moves[: i + 1]).key


def test_progress_counts_up_and_its_best_gets_better(train):
    p, seen = train(), []
    tree_search(p, 60, 0, lambda done, best: seen.append((done, p.rank(best))))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    ranks = [rank for _, rank in seen]
    assert ranks == sorted(ranks, reverse=True)


# ------------------------------------------------------------------------------- parts left out


def by_parts(p):
    """Moves that, made after another one, fall into several parts, with those parts."""
    for first in p.moves:
        state = p.replay((first,))
        for move in p.moves:
            propagation = p.propagator.tile_color(
                state.tiling, move.color, move.axis, dict(move.roles)
            )
            parts = p.propagator.connected(propagation.taken)
            if len(parts) > 1:
                yield state, move, parts


def test_without_parts_only_the_others_take_the_axis(build):
    p = build(step)
    found = list(by_parts(p))
    assert found
    for state, move, parts in found:
        whole = p.propagation(state, move)
        for number, part in enumerate(parts):
            less = p.propagation(state, msgspec.structs.replace(move, without=(number,)))
            assert less.taken == whole.taken - part
            assert (
                p.step(state, msgspec.structs.replace(move, without=(number,))).tiling
                == less.tiling
            )


def test_leaving_out_every_part_but_one_in_turn_takes_everything(build):
    p = build(step)
    state, move, parts = next(iter(by_parts(p)))
    for number in range(len(parts)):
        others = tuple(n for n in range(len(parts)) if n != number)
        state_ = p.step(state, msgspec.structs.replace(move, without=others))
        assert state_ is not None
    everything = tuple(range(len(parts)))
    assert p.step(state, msgspec.structs.replace(move, without=everything)) is None


def test_of_several_parts_left_out_each_can_be_taken_in_again(gpt_program):
    p = problem(gpt_program(1), "data=4,model=2")
    state, move = next(
        (state, move)
        for state, move, parts in by_parts(p)
        if len(parts) > 2 and state.moves[0].color != move.color
    )
    less = msgspec.structs.replace(move, without=(0, 1))
    after = list(changes(p, (*state.moves, less)))
    for without in ((0,), (1,)):
        assert (*state.moves, msgspec.structs.replace(move, without=without)) in after


def dropped_out(ws, x, key):
    """Layers, each with dropout by a key of its own."""
    for w, each in zip(ws, jax.random.split(key, len(ws)), strict=True):
        once, again = jax.random.split(each)
        x = jnp.tanh(jnp.where(jax.random.bernoulli(once, 0.9, x.shape), x, 0) @ w)
        x = x + jax.random.normal(again, x.shape)
    return x


@pytest.mark.parametrize("mesh", ["data=2,model=2", "data=4,model=2"])
def test_random_keys_are_not_split(program, mesh):
    """Each gather of a key could hide under the products; it has to be launched all the same."""
    traced = program(dropped_out, ["f32[1024,1024]"] * 4, "f32[4096,1024]", "u32[2]")
    best = search(problem(traced, mesh), budget=300)
    moved = [step for _, step, _ in best.lowering.steps() if step.is_collective]
    assert all(step.bytes > 2**16 for step in moved)
    assert best.cost.time.compute_time < problem(traced, mesh).start.cost.time.compute_time / 3


def test_a_move_that_gains_less_than_the_noise_is_not_taken(program, monkeypatch):
    """Beside a product of a millisecond, what takes less than a microsecond."""

    def both(x, w, y):
        return x @ w, jnp.tanh(y)

    traced = program(both, "f32[4096,8192]", "f32[8192,8192]", "f32[8,512]")
    moves = dict.fromkeys((0.0, problem_module.NOISE))
    for noise in moves:
        monkeypatch.setattr(problem_module, "NOISE", noise)
        p = problem(traced, "data=4")
        best = search(p, budget=200)
        moves[noise] = len(best.moves)
    assert list(moves.values()) == [2, 1]


def test_small_parameters_are_left_whole(program):
    """Batch is split. Splitting all weights saves memory; a bias that is gathered for nothing
    is better left out, which only a move without that part can say."""

    def step(params, x):
        def loss(params):
            h = x
            for w, b in params:
                h = jnp.tanh(h @ w + b)
            return jnp.mean(h**2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    layer = ("f32[2048,2048]", "f32[2048]")
    traced = program(step, [layer, layer], "f32[1024,2048]", donate=0)
    free = problem(traced, "data=8")
    everywhere = min(s.cost.peak for s in every_state(free))
    p = problem(traced, "data=8", capacity=int(everywhere * 1.02))
    best = search(p)
    assert best.cost.peak <= p.cost_model.capacity
    assert cost_of(p, best) <= min(cost_of(p, s) for s in every_state(p))


# -------------------------------------------------------------------------------- as a tactic


@pytest.mark.parametrize("budget", [0, -1])
def test_a_search_must_be_allowed_to_price_something(budget):
    with pytest.raises(TacticError, match=f"budget={budget}: expected an integer of at least 1"):
        pt.AutomaticPartition(budget=budget)


# ------------------------------------------------------------------------- experts and tokens


def experts(x, dispatch, w):
    """64 tokens, 8 experts, capacity 16: dispatched and combined by one-hot products."""
    inputs = jnp.einsum("tec,td->ecd", dispatch, x)
    outputs = jax.nn.relu(jnp.einsum("ecd,edf->ecf", inputs, w))
    return jnp.einsum("tec,ecf->tf", dispatch, outputs)


@pytest.fixture
def experts_problem(program):
    made = program(experts, "f32[64,32]", "f32[64,8,16]", "f32[8,32,32]")
    found = problem(made, "dp=2,ep=4")
    tokens, expert = (
        found.graph.values[found.graph.value_class[made.arguments[number]]].colors[0]
        for number in (0, 2)
    )
    return found, tokens, expert


def kinds(state):
    every = (
        s
        for p in state.lowering.plans
        for s in (*p.steps, *(s for _, steps in p.reshards for s in steps))
    )
    return {step.kind for step in every if step.is_collective}


def test_tokens_and_experts_compete_for_an_axis(experts_problem):
    found, tokens, expert = experts_problem
    first, second = ShardColor(tokens, 1), ShardColor(expert, 1)
    one, other = found.replay([first, second]), found.replay([second, first])
    assert one.key != other.key
    assert "reduce_scatter" in kinds(one)


def test_exchanging_tokens_for_experts_is_a_candidate_with_a_price(experts_problem):
    found, tokens, expert = experts_problem
    plain = (ShardColor(tokens, 0), ShardColor(tokens, 1), ShardColor(expert, 1))
    exchanging = (ShardColor(tokens, 0), ShardColor(tokens, 1, sums=False), ShardColor(expert, 1))
    assert exchanging in list(changes(found, plain))
    state = found.replay(exchanging)
    assert "all_to_all" in kinds(state)
    assert state.cost.time.step_time > 0


# ---------------------------------------------------------------------------- algorithms by name


def test_an_algorithm_of_ones_own_is_registered_by_name(monkeypatch):
    monkeypatch.setattr(protocol, "ALGORITHMS", dict(protocol.ALGORITHMS))

    @protocol.register("random")
    def at_random(problem, budget, seed, progress):
        rng = random.Random(seed)
        for _ in range(budget):
            problem.replay(rng.sample(problem.moves, 2), limit=budget)
        return problem.best

    x, w = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 16), jnp.float32)
    tactic = pt.AutomaticPartition(budget=20, search="random")
    plan = pt.plan(lambda x, w: x @ w, x, w, mesh="x=2,y=2", hardware="cpu", tactics=tactic)
    assert plan.history[0].name == "AutomaticPartition(all axes, search=random)"
    assert plan.estimate.step_time < plan.history[0].before.step_time


def test_an_algorithm_that_is_not_there_is_an_error_that_lists_them():
    expected = "there is no search 'mtcs'.*did you mean 'mcts'.*one of .*mcts, refine"
    with pytest.raises(TacticError, match=expected):
        pt.AutomaticPartition(search="mtcs")
