"""What it would be worth to pad: sizes that axes do not divide, and what a plan would take then."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from partita import models
from partita.analysis import analyse
from partita.frontend.calling import Marked
from partita.frontend.trace import trace
from partita.program.resized import resized


@functools.cache
def train_step(**changed):
    """A tiny GPT, and its train step as a program."""
    model = models.build("gpt-tiny", **changed)
    program = trace(model.fn, model.args, {}, Marked.of(donate_argnums=0)).program
    return model.fn, *model.args, program


def dims_like(program, name, dim):
    """All dimensions of the color group of a dimension of an argument."""
    analysis = analyse(program)
    group, color = analysis.groups.color_group, analysis.names.dim_colors
    of = program.arguments[program.argument_names.index(name)]
    wanted = group[color(of)[dim]]
    return [
        (value.index, number)
        for value in program.values
        for number, each in enumerate(color(value.index))
        if each >= 0 and group[each] == wanted
    ]


@pytest.mark.parametrize(
    ("size", "name", "dim", "old", "new"),
    [
        ("vocabulary", "state['params']['embed']", 0, 521, 528),
        ("ffn", "state['params']['layers'][0]['w_in']", 1, 250, 256),
        ("batch", "batch['tokens']", 0, 15, 16),
    ],
)
def test_a_program_with_another_size_is_the_one_that_the_model_has_then(size, name, dim, old, new):
    before, after = (train_step(**{size: each})[-1] for each in (old, new))
    found = resized(before, dims_like(before, name, dim), old, new)
    assert [value.type for value in found.values] == [value.type for value in after.values]
    assert [op.rule for op in found.operations] == [op.rule for op in after.operations]


def test_a_size_that_parts_of_a_dimension_depend_on_is_not_followed():
    """Of a dimension that is two of them, a slice may have either meaning."""
    program = trace(
        lambda x: x.reshape(6, 4)[:, :2].sum(),
        [jax.ShapeDtypeStruct((24,), jnp.float32)],
        {},
        Marked.of(),
    ).program
    assert resized(program, [(program.arguments[0], 0)], 24, 25) is None


def planned(mesh="data=8", budget=200, **changed):
    step, state, batch, _ = train_step(**changed)
    return pt.plan(
        step, state, batch, mesh=mesh, hardware="tpu_v5e", donate_argnums=0, budget=budget
    )


@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_a_vocabulary_that_does_not_divide_is_worth_padding():
    made = planned(batch=2, vocabulary=50257)
    (padded,) = [each for each in made.history[-1].refused if "50257" in each.what]
    assert padded.what == "state['params']['embed'] dim 0, of 50257"
    assert padded.reason == "not divisible by data=8"
    assert "with 50264 instead, 0.014 % more, the plan would take" in padded.instead


def test_what_divides_is_not():
    assert planned(batch=2, vocabulary=50264).history[-1].refused == ()


@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_a_length_that_earlier_tactics_would_not_divide_is_not_looked_at():
    """Of a sequence of 32 in two parts, 33 would be worth it for an axis of 3 alone."""
    step, state, batch, _ = train_step()
    sequence = pt.ManualPartition({"batch['tokens']": 1}, axis="data")
    search = pt.AutomaticPartition(budget=50)
    made = pt.plan(
        step, state, batch, mesh="data=2,odd=3", hardware="h100", tactics=[sequence, search]
    )
    assert not [each for each in made.history[-1].refused if "33 instead" in str(each)]
