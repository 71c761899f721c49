"""How often computations run: trip counts of loops in compiled text, and what is multiplied."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from partita.verify.hlo import parse
from partita.verify.loops import executions

# A loop as the TPU compiler writes it: tiled layouts, no trip count, a step carried in the tuple.
LOOP = """
%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {
  %p = (s32[]{:T(128)}, f32[8]{0:T(128)}, /*index=2*/s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8]{0:T(128)} get-tuple-element(%p), index=1
  %step = s32[]{:T(128)} get-tuple-element(%p), index=2
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} STEP
  %y = f32[8]{0:T(128)} fusion(%x), kind=kLoop, calls=%inside
  ROOT %t = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}) tuple(%next, %y, CARRIED)
}

%condition (q: (s32[], f32[8], s32[])) -> pred[] {
  %q = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %k = s32[]{:T(128)} get-tuple-element(%q), index=2
  %limit = s32[]{:T(128)} constant(LIMIT)
  ROOT %c = pred[]{:T(512)} compare(COMPARED), direction=DIRECTION
}

%inside (z: f32[8]) -> f32[8] {
  %z = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%z)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(128)} parameter(0)
  %start = s32[]{:T(128)} constant(START)
  %copied = s32[]{:T(128)} copy(%start)
  %two = s32[]{:T(128)} constant(2)
  %in = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}) tuple(%copied, %a, %two)
  %w = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}) while(%in), condition=%condition, \
body=%body
  ROOT %r = f32[8]{0:T(128)} get-tuple-element(%w), index=1
}
"""
PLAIN = {
    "STEP": "add(%i, %one)",
    "CARRIED": "%step",
    "LIMIT": "6",
    "COMPARED": "%j, %limit",
    "DIRECTION": "LT",
    "START": "0",
}


def loop(**changes):
    text = LOOP
    for name, value in {**PLAIN, **changes}.items():
        text = text.replace(name, value)
    return executions(parse(text))


TRIPS = [
    ({}, 6),
    ({"START": "2"}, 4),
    ({"STEP": "add(%one, %i)"}, 6),
    ({"STEP": "add(%i, %step)"}, 3),  # carried along, and constant where it goes in
    ({"STEP": "add(%i, %step)", "LIMIT": "5"}, 3),
    ({"DIRECTION": "LE"}, 7),
    ({"DIRECTION": "NE"}, 6),
    ({"COMPARED": "%limit, %j", "DIRECTION": "GT"}, 6),
    ({"STEP": "subtract(%i, %one)", "START": "6", "LIMIT": "0", "DIRECTION": "GT"}, 6),
    ({"STEP": "subtract(%i, %one)", "START": "6", "LIMIT": "0", "DIRECTION": "GE"}, 7),
    ({"COMPARED": "%j, %k"}, 2),  # the limit is carried, too
    ({"START": "9"}, 0),
]


@pytest.mark.parametrize(("changes", "trips"), TRIPS)
def test_trip_counts_are_read_off_the_counter(changes, trips):
    found = loop(**changes)
    assert not found.unknown
    assert found.times == {"main": 1, "body": trips, "condition": trips + 1}
    assert found.fused == {"inside": trips}


UNKNOWN = [
    {"STEP": "multiply(%i, %step)"},
    {"STEP": "add(%i, %step)", "CARRIED": "%next"},  # the step changes as it goes
    {"COMPARED": "%j, %k", "CARRIED": "%next"},  # the limit does
    {"DIRECTION": "EQ"},
    {"START": "?"},
    {"STEP": "add(%i, %one)", "DIRECTION": "GT", "LIMIT": "-1"},  # counts away from its limit
]


@pytest.mark.parametrize("changes", UNKNOWN)
def test_what_cannot_be_told_counts_once_and_is_named(changes):
    found = loop(**changes)
    assert found.unknown == ("w",)
    assert found.times["body"] == 1


def test_a_trip_count_that_is_written_beside_the_loop_is_taken():
    text = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    for name, value in {**PLAIN, "STEP": "multiply(%i, %step)"}.items():
        text = text.replace(name, value)
    assert executions(parse(text)).times["body"] == 5


def test_loops_of_a_real_program_multiply():
    def fn(x):
        def inner(h, _):
            return jnp.tanh(h @ x), None

        def outer(h, _):
            return jax.lax.scan(inner, h, None, length=3)[0] * 2, None

        return jax.lax.scan(outer, x, None, length=5)[0]

    text = jax.jit(fn).lower(jnp.ones((16, 16))).compile().as_text()
    module = parse(text)
    found = executions(module)
    products = [
        found.times.get(name, 0) + found.fused.get(name, 0)
        for name, computation in module.computations.items()
        if any(i.opcode in ("dot", "custom-call") for i in computation)
    ]
    assert products == [15] and not found.unknown


def test_branches_count_as_taken_and_reducers_do_not_count():
    text = """
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %s = f32[] add(%x, %y)
}
%left (l: f32[8]) -> f32[8] {
  ROOT %l = f32[8]{0} parameter(0)
}
%right (r: f32[8]) -> f32[8] {
  ROOT %r = f32[8]{0} parameter(0)
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %k = s32[] constant(0)
  %sum = f32[8]{0} all-reduce(%a), replica_groups={{0,1}}, to_apply=%add
  ROOT %c = f32[8]{0} conditional(%k, %a, %sum), branch_computations={%left, %right}
}
"""
    assert executions(parse(text)).times == {"main": 1, "left": 1, "right": 1}
