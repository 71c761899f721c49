"""The price of a step laid out in time: it adds up to the estimate, and nothing overlaps."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, planner
from partita import models
from partita.cost.timeline.intervals import COMPUTE
from partita.models.strategies import data_parallel, fsdp, tensor_parallel

SCHEDULES = {
    "data": lambda name: [data_parallel()],
    "fsdp": lambda name: [data_parallel(), fsdp()],
    "tensor": lambda name: [data_parallel(), *tensor_parallel(name)],
}
CASES = [
    ("gpt-tiny", "fsdp", "tpu_v5e", {}),
    ("gpt-tiny", "tensor", "h100", {}),
    ("gpt-tiny", "fsdp", "h100", {"memory": "1MiB"}),  # gathers weights again
    ("llama-tiny", "fsdp", "h100", {}),  # layers in a loop, which hides little
    ("moe-tiny", "tensor", "tpu_v5e", {}),
]


@functools.cache
def made(name, schedule, hardware, **options):
    """The plan of a built-in model, and its timeline."""
    model = models.load(name)
    return pt.plan(
        *[model.fn, *model.args],
        mesh="data=4,model=2",
        hardware=hardware,
        tactics=SCHEDULES[schedule](name),
        **options,
    )


def gaps(intervals):
    """Seconds between each interval and the next."""
    return [b.start - a.end for a, b in itertools.pairwise(intervals)]


@pytest.mark.parametrize(("name", "schedule", "hardware", "options"), CASES)
class TestEveryTimeline:
    def test_adds_up_to_the_estimate(self, name, schedule, hardware, options):
        plan = made(name, schedule, hardware, **options)
        found, estimate = plan.timeline, plan.estimate
        near = functools.partial(pytest.approx, rel=1e-9, abs=1e-15)
        assert found.busy(COMPUTE, "compute") == near(estimate.compute_time)
        assert found.busy(COMPUTE, "wait") == near(estimate.exposed_time)
        links = [found.busy(1 + link, "hidden") for link in range(len(estimate.link_times))]
        assert links == [near(seconds) for seconds in estimate.link_times]
        assert max(i.end for i in found.intervals) == near(estimate.step_time)

    def test_has_one_thing_at_a_time(self, name, schedule, hardware, options):
        plan = made(name, schedule, hardware, **options)
        least = -1e-9 * plan.estimate.step_time
        for lane in range(len(plan.timeline.lanes)):
            for kinds in ({"compute", "wait"}, {"exposed"}, {"hidden"}):
                here = [i for i in plan.timeline.intervals if i.lane == lane and i.kind in kinds]
                assert min(gaps(here), default=0) >= least

    def test_has_every_collective(self, name, schedule, hardware, options):
        plan = made(name, schedule, hardware, **options)
        shown = {i.collective for i in plan.timeline.intervals} - {None}
        assert shown == {c.index for c in plan.collectives}


def body(w, x):
    return lax.fori_loop(0, 50, lambda _, y: jnp.tanh(y @ w), x)


plan = planner(mesh="x=4", tactics=[pt.ManualPartition({"w": 1}, axis="x")])


@pytest.mark.parametrize("iterations", [1, 7, 64])
def test_loops_are_unrolled_up_to_a_limit_and_last_as_long(iterations):
    made = plan(body, array(64, 64), array(32, 64))
    found = made.done.timeline_of(iterations)
    dots = [i for i in found.intervals if i.kind == "compute" and i.name.startswith("dot")]
    assert len(dots) == min(iterations + (iterations < 50), 50)
    assert sum(i.times for i in dots) == 50
    assert max(i.end for i in found.intervals) == pytest.approx(made.estimate.step_time)


def test_there_are_fewer_iterations_where_there_would_be_too_many_intervals():
    made = plan(body, array(64, 64), array(32, 64))
    assert made.done.timeline_of(iterations=40, most=100).iterations < 40


def test_collectives_that_the_program_has_itself_are_waited_for():
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))

    def summed(x):
        return jax.shard_map(
            lambda shard: lax.psum(shard, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
        )(x)

    made = planner(mesh="x=4")(summed, array(64, 64))
    (wait,) = (i for i in made.timeline.intervals if i.kind == "wait")
    assert (wait.name, wait.collective) == ("all_reduce", 0)
    assert wait.busy == pytest.approx(made.estimate.exposed_time)


def test_links_have_the_names_of_networks_and_on_a_torus_of_axes():
    torus = planner(mesh="x=2,y=2")(body, array(64, 64), array(32, 64))
    switch = planner(mesh="x=2,y=2", hardware="h100")(body, array(64, 64), array(32, 64))
    assert torus.timeline.lanes == ("compute", "ici x", "ici y")
    assert switch.timeline.lanes == ("compute", "nvlink")
