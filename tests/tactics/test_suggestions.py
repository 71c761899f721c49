"""A request that a size stands against is refused with what could be done instead, and its price.

The case: grouped-query attention of eight query heads and two key/value heads of size 16. Four
devices can split the query heads, but not the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita.planning import schedule

DATA = pt.ManualPartition({"x": 0}, axis="dp")
HEADS = {"params['wq']": 1, "params['wk']": 1, "params['wv']": 1}


def attention(params, x):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, params[name]) for name in ("wq", "wk", "wv"))
    k, v = (jnp.repeat(each, q.shape[2] // each.shape[2], axis=2) for each in (k, v))
    weights = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k))
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, params["wo"])


def plan(*tactics, mesh="dp=2,tp=4"):
    shapes = {"wq": (64, 8, 16), "wk": (64, 2, 16), "wv": (64, 2, 16), "wo": (8, 16, 64)}
    params = {name: array(*shape) for name, shape in shapes.items()}
    return pt.plan(
        attention, params, array(8, 32, 64), mesh=mesh, hardware="tpu_v5e", tactics=[DATA, *tactics]
    )


def heads(changed=None):
    return pt.ManualPartition(HEADS | (changed or {}), axis="tp")


@pytest.fixture(scope="module")
def refused():
    return plan(heads()).history[1].refused


def test_query_heads_fit_and_key_and_value_heads_do_not():
    p = plan(heads())
    assert p.in_shardings[0]["wq"] == jax.P(None, "tp")
    assert p.in_shardings[0]["wk"] == p.in_shardings[0]["wv"] == jax.P()
    k, v, repeated = map(str, p.history[1].refused)
    assert [k, v] == [
        f"params['{name}'] dimension 1: 2 is not divisible by tp=4 "
        "(dimensions 0, 2 could be sharded along tp)"
        for name in ("wk", "wv")
    ]
    assert "(the value is gathered there)" in repeated  # each head for the four that share it


@pytest.mark.parametrize(
    ("text", "tactic", "mesh"),
    [
        (
            "keep params['wk'], params['wv'] replicated along tp",
            heads({"params['wk']": "replicate", "params['wv']": "replicate"}),
            "dp=2,tp=4",
        ),
        ("tp=2, on 4 of the 8 devices", heads(), "dp=2,tp=2"),
        (
            "dimension 2 instead of 1 of params['wq'], params['wk'], params['wv']",
            heads(dict.fromkeys(HEADS, 2)),
            "dp=2,tp=4",
        ),
    ],
)
def test_a_suggestion_costs_what_the_plan_costs_that_does_so(refused, text, tactic, mesh):
    (suggestion,) = (each for each in refused[0].suggestions if each.text == text)
    assert suggestion.estimate == plan(tactic, mesh=mesh).estimate
    assert str(suggestion).startswith(f"{text}: step ")


def test_refusals_of_one_cause_have_the_same_suggestions_and_the_report_says_them_once(refused):
    first, second, _ = refused
    assert first.suggestions == second.suggestions
    text = str(plan(heads()))
    for suggestion in first.suggestions:
        assert text.count(f"or {suggestion}") == 1


def test_megatron_offers_them_too():
    k, *_ = plan(pt.Megatron("tp")).history[1].refused
    assert "tp=2, on 4 of the 8 devices" in [suggestion.text for suggestion in k.suggestions]


def test_in_a_tactic_of_several_a_suggestion_stands_behind_the_first_ones():
    class Both:
        name = "both"

        def apply(self, stage):
            return pt.in_turn(stage, [DATA, heads()])

    p = pt.plan(
        attention, *plan().arguments[0], mesh="dp=2,tp=4", hardware="tpu_v5e", tactics=[Both()]
    )
    for suggestion, same in zip(p.suggestions(), plan(heads()).suggestions(), strict=True):
        assert suggestion.estimate == same.estimate


def test_only_sizes_have_suggestions():
    again = plan(heads(), pt.ManualPartition({"params['wq']": 2}, axis="tp")).history[2].refused
    assert "already used" in again[0].reason
    assert again[0].suggestions == ()


def test_several_dimensions_to_try_are_suggestions_enough():
    (k,) = plan(pt.ManualPartition({"params['wk']": [1]}, axis="tp")).history[1].refused
    (moved,) = plan(pt.ManualPartition({"params['wk']": [1, 2]}, axis="tp")).history[1].actions
    assert k.suggestions
    assert str(moved) == "params['wk'] dim 2 -> tp"


def test_those_of_a_large_program_are_estimated_when_asked_for(monkeypatch):
    monkeypatch.setattr(schedule, "MOST_ESTIMATED", 10)
    p = plan(heads())
    (unknown, *_) = p.history[1].refused[0].suggestions
    assert unknown.estimate is None
    assert str(unknown) == unknown.text
    assert p.suggestions(1)[0].estimate is not None
    with pytest.raises(pt.TacticError, match="no tactic 2; the history has 2"):
        p.suggestions(2)
