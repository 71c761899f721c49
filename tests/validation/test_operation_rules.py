"""Transfer rules of operations: what devices may hold of operands, and what they hold then."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from partita.mesh import Mesh
from partita.validation.operations import results_of
from partita.validation.state import Mismatch, State

MESH = Mesh.of("x=4")
LAYOUT = ((), ())
WHOLE, ZEROS = State(LAYOUT), State(LAYOUT, zero=True)
PART, GREATEST = State(LAYOUT, {0: "add"}), State(LAYOUT, {0: "max"})
ROWS, PART_OF_ROWS = State(((0,), ())), State(((0,), ()), {0: "add"})
SCALAR = State(())


def results(program, fn, states, along_first=False, types=("f32[8,8]",) * 2):
    """What devices hold of the result of a function that is one operation at the end."""
    made = program(fn, *types[: len(states)])
    op = made.operations[-1]
    split = [() for _ in op.rule.factors]
    if along_first:
        split[op.rule.leading(op.rule.operands[0][0])] = (0,)
    operands = [*states, *[SCALAR] * (len(op.operands) - len(states))]
    return results_of(op, tuple(split), operands, made, MESH)


@pytest.mark.parametrize(
    ("fn", "states", "unreduced"),
    [
        (lambda x: -x, [PART], {0: "add"}),
        (lambda x: x.T, [PART], {0: "add"}),
        (lambda x: x.sum(0), [PART], {0: "add"}),
        (lambda x, y: x + y, [PART, PART], {0: "add"}),
        (lambda x, y: x + y, [PART, ZEROS], {0: "add"}),
        (lambda x, y: x * y, [PART, WHOLE], {0: "add"}),
        (lambda x: x.astype(jnp.bfloat16), [PART], {0: "add"}),
        (jnp.tanh, [WHOLE], {}),
    ],
    ids="negate transpose sum add add-zeros scale narrow whole".split(),
)
def test_what_is_linear_makes_parts_of_parts(program, fn, states, unreduced):
    (made,) = results(program, fn, states)
    assert made.unreduced == unreduced


@pytest.mark.parametrize(
    ("fn", "states", "message"),
    [
        (jnp.tanh, [PART], "not linear in a part of a sum"),
        (lambda x, y: x * y, [PART, PART], "not linear in a part of a sum"),
        (lambda x, y: x / y, [WHOLE, PART], "not linear in a part of a sum"),
        (lambda x, y: x + y, [PART, WHOLE], "adds a whole value to parts of a sum"),
        (lambda x: x.astype(jnp.int32), [PART], "rounds parts of a sum"),
        (lambda x: x.max(0), [PART], "does not add parts of a sum"),
        (lambda x: -x, [GREATEST], "parts are not of a sum"),
        (lambda x: -x, [ROWS], r"is \(x, -\): the operation reads \(-, -\)"),
    ],
    ids="tanh product denominator whole round max negated-max sharded".split(),
)
def test_everything_else_needs_the_whole_value(program, fn, states, message):
    with pytest.raises(Mismatch, match=message):
        results(program, fn, states)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (WHOLE, r"is \(-, -\): the operation reads \(x, -\)"),
        (PART_OF_ROWS, "works along an axis over which an operand is unreduced"),
        (State(((0,), ()), varying=frozenset({0})), "it splits what differs already"),
    ],
    ids="whole part different".split(),
)
def test_an_operation_that_is_split_reads_shards_of_a_whole_value(program, state, message):
    assert results(program, lambda x: -x, [ROWS], along_first=True)[0].layout == ((0,), ())
    with pytest.raises(Mismatch, match=message):
        results(program, lambda x: -x, [state], along_first=True)
