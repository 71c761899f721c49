"""The cost model: compute by hand, what hides under what, and that its shortcuts change nothing."""

from __future__ import annotations

import random

import jax.numpy as jnp
import msgspec
import pytest
from jax import lax

from partita.analysis import analyse, discrete, fold
from partita.cost import CostModel
from partita.cost.devices.hardware import Efficiency, Hardware, Network
from partita.cost.devices.schema import Figure
from partita.mesh import Mesh
from partita.spmd import COLLECTIVES, Lowerer
from partita.tiling import Propagator, Tiling, assignment, untiled

FLOPS, BANDWIDTH = 1e14, 1e12
MATMUL, MEMORY = 0.8, 0.5  # the fractions of them that are reached


def figure(value):
    return Figure(value, "made up for this test")


TOY = Hardware(
    "toy",
    "made up",
    figure(2**40),
    figure(BANDWIDTH),
    {"f32": figure(FLOPS), "bf16": figure(2 * FLOPS)},
    Efficiency(figure(MATMUL), figure(MEMORY)),
    (Network("ici", "torus", 64, figure(1e11), figure(1e-6)),),
)


def model(bench):
    return CostModel(bench.graph, bench.analysis, bench.mesh, TOY)


def price(bench, *actions):
    return model(bench).cost(bench.lowerer.lower(bench.tile(*actions)))


def same(a, b):
    """Whether two prices agree, but for the last bits of sums in another order."""
    ours = (a.time.compute_time, a.time.exposed_time, a.time.hidden_time, a.peak)
    theirs = (b.time.compute_time, b.time.exposed_time, b.time.hidden_time, b.peak)
    return ours == pytest.approx(theirs, rel=1e-9, abs=1e-18) and a.regathered == b.regathered


# ------------------------------------------------------------------------- compute by hand


def product(m, k, n, dtype="f32"):
    """Time of `[m, k] @ [k, n]` by a roofline."""
    size, peak = {"f32": (4, FLOPS), "bf16": (2, 2 * FLOPS)}[dtype]
    moved = size * (m * k + k * n + m * n) / (BANDWIDTH * MEMORY)
    return max(2 * m * k * n / (peak * MATMUL), moved)


def stream(elements, size=4):
    """Time to read or write this many elements."""
    return elements * size / (BANDWIDTH * MEMORY)


COMPUTE = [
    # limited by FLOP/s, and by bandwidth
    (lambda x, w: x @ w, ["f32[1024,1024]", "f32[1024,1024]"], product(1024, 1024, 1024)),
    (lambda x, w: x @ w, ["f32[8,1024]", "f32[1024,1024]"], product(8, 1024, 1024)),
    (
        lambda x, w: x @ w,
        ["bf16[1024,1024]", "bf16[1024,1024]"],
        product(1024, 1024, 1024, "bf16"),
    ),
    # A chain reads its input and writes its result once.
    (lambda x: jnp.tanh(2 * x + 1), ["f32[1024,256]"], 2 * stream(1024 * 256)),
    # An input that is used twice in a kernel is read once.
    (lambda x: x * jnp.tanh(x), ["f32[1024,256]"], 2 * stream(1024 * 256)),
    (lambda x: jnp.sum(x, 0), ["f32[1024,256]"], stream(1024 * 256) + stream(256)),
    # Two kernels: the stored value in between is written, then read.
    (
        lambda x, w: jnp.tanh(x) @ w,
        ["f32[1024,1024]", "f32[1024,1024]"],
        2 * stream(1024 * 1024) + product(1024, 1024, 1024),
    ),
]


@pytest.mark.parametrize(("fn", "types", "expected"), COMPUTE)
def test_compute_is_a_roofline_per_kernel(bench, fn, types, expected):
    priced = price(bench(fn, *types))
    assert priced.time.compute_time == pytest.approx(expected)
    assert priced.time.exposed_time == priced.time.hidden_time == 0
    assert priced.time.step_time == priced.time.compute_time


def test_the_local_sizes_count(bench):
    b = bench(lambda x, w: x @ w, "f32[1024,1024]", "f32[1024,1024]", mesh="x=4,y=2")
    assert price(b, ("x", 0, "x")).time.compute_time == pytest.approx(product(256, 1024, 1024))
    assert price(b, ("x", 1, "x")).time.compute_time == pytest.approx(product(1024, 256, 1024))
    both = price(b, ("x", 0, "x"), ("w", 1, "y"))
    assert both.time.compute_time == pytest.approx(product(256, 1024, 512))


def test_what_no_axis_divides_is_computed_by_every_device(bench):
    b = bench(lambda x, w: x @ w, "f32[1024,1024]", "f32[1024,1024]", mesh="x=8")
    assert price(b).time.compute_time == pytest.approx(product(1024, 1024, 1024))


# ------------------------------------------------------------------------------ collectives


def test_a_collective_with_nothing_to_run_under_is_exposed(bench):
    b = bench(lambda x, w: x @ w, "f32[1024,1024]", "f32[1024,1024]", mesh="x=8")
    # Contracted along x: a whole partial product on every device, summed over a ring of eight.
    summed = 2 * (7 / 8 * 4 * 1024**2 / 1e11 + 4e-6)
    priced = price(b, ("x", 1, "x"))
    assert priced.time.exposed_time == pytest.approx(summed)
    assert priced.time.hidden_time == 0
    assert priced.time.step_time == pytest.approx(priced.time.compute_time + summed)


def layers(count):
    def fn(x, ws):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    return fn, ["f32[1024,512]", ["f32[512,512]"] * count]


def test_a_weight_gathered_far_ahead_is_hidden(bench):
    """A weight is there from the start; the first layers need it at once, the last ones late."""
    few, many = layers(4), layers(60)
    actions = [("x", 0, "x")]

    def fsdp(fn, types, count):
        b = bench(fn, *types, mesh="x=8")
        # Each weight is propagated for itself, as the batch has taken x of the activations.
        tiling = b.tile(*actions)
        for number in range(count):
            tiling = b.propagation(f"ws[{number}]", 1, "x", tiling, 0).tiling
        lowering = b.lowerer.lower(tiling)
        return model(b).cost(lowering)

    near, far = fsdp(*few, 4), fsdp(*many, 60)
    launch = 1e-6
    each = 7 / 8 * 4 * 512**2 / 1e11 + 4 * launch
    assert (near.time.exposed_time, near.time.hidden_time) == pytest.approx((4 * each, 0))
    # A layer is two operations, so weights more than 48 operations in have time.
    assert far.time.exposed_time + far.time.hidden_time == pytest.approx(60 * each)
    # To launch what is hidden takes its time all the same.
    assert far.time.exposed_time == pytest.approx(25 * each + 35 * launch)
    assert far.time.step_time == far.time.exposed_time + max(
        far.time.compute_time, far.time.hidden_time
    )


def test_in_a_loop_only_what_is_needed_late_in_the_body_is_hidden(bench):
    """Nothing is gathered in one pass for the next."""

    def wait(x):
        for _ in range(30):
            x = jnp.tanh(2 * x)
        return x

    def layer(x, ws):
        return wait(x @ ws["first"]) @ ws["last"], None

    weights = {name: "f32[4,512,512]" for name in ("first", "last")}
    b = bench(lambda x, ws: lax.scan(layer, wait(x), ws)[0], "f32[8192,512]", weights, mesh="x=8")
    tiling = b.tile(("x", 0, "x"))
    for name in weights:
        tiling = b.propagation(f"ws['{name}']", 2, "x", tiling, 0).tiling
    priced = model(b).cost(b.lowerer.lower(tiling))
    launch = 4 * 1e-6
    each = 4 * 7 / 8 * 4 * 512**2 / 1e11 + 4 * launch
    told = (priced.time.exposed_time, priced.time.hidden_time)
    assert told == pytest.approx((each + launch, each - launch), rel=0.03)  # but for slices


def test_what_moves_is_written_and_read_besides(bench):
    """The kernel of the product would convert the weight itself, if it were not gathered."""
    b = bench(lambda x, w: x @ w.astype(jnp.bfloat16), "bf16[8,512]", "f32[512,512]", mesh="x=8")
    tiling = b.propagation("w", 1, "x", b.tile(("x", 0, "x")), 0).tiling
    product = stream(512 + 512, 2)
    piece, whole = 512 * 64, 512 * 512
    converted = stream(piece) + stream(piece, 2) + stream(whole, 2)
    priced = model(b).cost(b.lowerer.lower(tiling))
    assert priced.time.compute_time == pytest.approx(product + converted)


def test_what_the_compiler_does_not_overlap_is_exposed(gpt_bench):
    """Of FSDP, gathers may run beside other work; sums and scatters wait where that is not told."""
    b, actions = gpt_bench(4, "x=8"), []
    for name in ("tokens", "['embed']"):
        found = next(n for n in b.program.argument_names if n.endswith(name) or name in n)
        actions.append((found, int(name != "tokens"), "x"))
    lowering = b.lowerer.lower(b.tile(*actions))
    times = {}
    for kinds in (tuple(COLLECTIVES), ("all_gather",), ()):
        hardware = msgspec.structs.replace(TOY, overlapped=kinds)
        times[kinds] = CostModel(b.graph, b.analysis, b.mesh, hardware).cost(lowering)
    every, gathers, none = times.values()
    total = every.time.exposed_time + every.time.hidden_time
    for priced in (gathers, none):
        assert priced.time.exposed_time + priced.time.hidden_time == pytest.approx(total)
    assert none.time.hidden_time == 0 < gathers.time.hidden_time < every.time.hidden_time


def test_a_gradient_reduced_behind_is_hidden_and_an_activation_is_not(gpt_bench):
    b = gpt_bench(4, "x=8")
    batch = next(name for name in b.program.argument_names if "tokens" in name)
    data = price(b, (batch, 0, "x"))
    assert data.time.hidden_time > data.time.exposed_time
    heads = next(name for name in b.program.argument_names if name.endswith("['wq']"))
    tensor = price(b, (heads, 1, "x"))
    assert tensor.time.exposed_time > tensor.time.hidden_time


def test_an_estimate_says_what_was_priced(bench):
    fn, types = layers(3)
    b = bench(fn, *types, mesh="x=8")
    lowering = b.lowerer.lower(b.tile(("x", 0, "x")))
    cost = model(b)
    priced = cost.cost(lowering)
    estimate = cost.estimate(priced, lowering)
    assert estimate.step_time == priced.time.step_time
    assert estimate.serial_time == pytest.approx(
        priced.time.compute_time + priced.time.exposed_time + priced.time.hidden_time
    )
    assert estimate.peak_memory == round(priced.peak)
    assert estimate.fits == (priced.peak <= estimate.capacity)
    assert estimate.argument_memory == 4 * (1024 * 512 // 8 + 3 * 512 * 512)


def test_traffic_is_the_sum_of_the_collectives(gpt_bench):
    b = gpt_bench(2, "x=4,y=2")
    batch = next(name for name in b.program.argument_names if "tokens" in name)
    heads = next(name for name in b.program.argument_names if name.endswith("['wq']"))
    actions = (batch, 0, "x"), (heads, 1, "y")
    apart = msgspec.structs.replace(TOY, combined=())
    cost, spmd = CostModel(b.graph, b.analysis, b.mesh, apart), b.spmd(*actions)
    lowering = b.lowerer.lower(b.tile(*actions))
    priced = cost.cost(lowering)
    traffic = cost.estimate(priced, lowering).traffic
    assert {key[1] for key in traffic} == {("x",), ("y",)}
    for (kind, axes), entry in traffic.items():
        mine = [c for c in spmd.collectives if (c.kind, c.axes) == (kind, axes)]
        assert (entry.count, entry.bytes) == (len(mine), sum(c.bytes for c in mine))
    total = sum(entry.seconds for entry in traffic.values())
    assert total == pytest.approx(priced.time.exposed_time + priced.time.hidden_time)


# ---------------------------------------------------------- classes, and pricing what changed


def random_actions(analysis, mesh, seed, count=6):
    """Moves of a search, at random: color group, axis, and a role for each conflict."""
    rng = random.Random(seed)
    groups = analysis.groups
    for _ in range(count):
        resolution = {n: rng.choice(roles) for n, roles in enumerate(groups.conflict_groups)}
        yield rng.randrange(groups.colors), rng.randrange(len(mesh.names)), resolution


def program_of(name, program, gpt_program):
    return {
        "gpt": lambda: gpt_program(2),
        "mlp": lambda: program(*(lambda fn, types: (fn, *types))(*layers(3))),
        "square": lambda: program(lambda x: (x + x.T) @ x, "f32[64,64]"),
    }[name]()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["gpt", "mlp", "square"])
def test_pricing_what_changed_equals_pricing_from_scratch(program, gpt_program, name, seed):
    analysis = analyse(program_of(name, program, gpt_program), int(TOY.regather_window.value))
    graph, mesh = fold(analysis), Mesh.of("x=4,y=2")
    propagator = Propagator(graph, mesh, analysis.groups.conflict_groups)
    lowerer, cost = Lowerer(graph, mesh), CostModel(graph, analysis, mesh, TOY)
    tiling = untiled(graph)
    lowering = lowerer.lower(tiling)
    priced = cost.cost(lowering)
    for color, axis, resolution in random_actions(analysis, mesh, seed):
        propagation = propagator.tile_color(tiling, color, axis, resolution)
        tiling = propagation.tiling
        lowering = lowerer.lower(tiling, lowering)
        priced = cost.cost(lowering, priced)
        fresh = CostModel(graph, analysis, mesh, TOY).cost(Lowerer(graph, mesh).lower(tiling))
        assert same(priced, fresh)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("capacity", [300_000, 1_000_000, 3_000_000])
def test_what_is_gathered_again_does_not_depend_on_what_was_priced_before(
    gpt_program, capacity, seed
):
    analysis = analyse(gpt_program(2), int(TOY.regather_window.value))
    graph, mesh = fold(analysis), Mesh.of("x=4,y=2")
    propagator = Propagator(graph, mesh, analysis.groups.conflict_groups)
    lowerer = Lowerer(graph, mesh)
    cost = CostModel(graph, analysis, mesh, TOY, capacity)
    tiling = untiled(graph)
    lowering = lowerer.lower(tiling)
    priced = cost.cost(lowering)
    for color, axis, resolution in random_actions(analysis, mesh, seed):
        propagation = propagator.tile_color(tiling, color, axis, resolution)
        tiling = propagation.tiling
        lowering = lowerer.lower(tiling, lowering)
        priced = cost.cost(lowering, priced)
        other = CostModel(graph, analysis, mesh, TOY, capacity)
        assert same(priced, other.cost(Lowerer(graph, mesh).lower(tiling)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["gpt", "mlp", "square"])
def test_the_folded_price_is_the_unfolded_one(program, gpt_program, name, seed):
    """Where both lower alike: a class decides as one whether to hand partial values on."""
    analysis = analyse(program_of(name, program, gpt_program), int(TOY.regather_window.value))
    graph, single, mesh = fold(analysis), discrete(analysis), Mesh.of("x=4,y=2")
    propagator = Propagator(graph, mesh, analysis.groups.conflict_groups)
    tiling = untiled(graph)
    for color, axis, resolution in random_actions(analysis, mesh, seed, count=3):
        tiling = propagator.tile_color(tiling, color, axis, resolution).tiling
    each = assignment(graph, tiling)
    folded = Lowerer(graph, mesh).lower(tiling)
    unfolded = Lowerer(single, mesh).lower(Tiling(each.ops, each.values, each.pinned))
    if any(
        folded.plans[graph.value_class[v]].steps != unfolded.plans[v].steps
        for v in range(len(single.values))
    ):
        pytest.skip("the class cannot hand on what a single member could")
    ours = CostModel(graph, analysis, mesh, TOY).cost(folded)
    theirs = CostModel(single, analysis, mesh, TOY).cost(unfolded)
    assert same(ours, theirs)


def test_a_class_counts_with_its_multiplicity(gpt_bench):
    """Every further layer costs the same, and adds no class."""
    times, classes = [], []
    for count in (4, 5, 6):
        b = gpt_bench(count, "x=4")
        batch = next(name for name in b.program.argument_names if "tokens" in name)
        priced = price(b, (batch, 0, "x"))
        times.append((priced.time.compute_time, priced.time.exposed_time + priced.time.hidden_time))
        classes.append(len(b.graph.ops))
    for four, five, six in zip(*times, strict=True):
        assert six - five == pytest.approx(five - four)
        assert five > four
    assert len(set(classes)) == 1
