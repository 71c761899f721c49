"""Random small programs under random schedules: same numbers, and the collectives predicted.

The whole program is run, not its parts: import, propagation, lowering, emission and XLA's compiler.
An example is one program under one schedule. For some, for all in a hunt, the loop nests of the
plan are run as well (`Plan.core`), which share nothing with the lowering. Programs are numbered,
and always the same for a number (`fuzzing/`); each is traced and run by itself once, and checked
under several schedules.

    PARTITA_EXAMPLES=2000 pytest tests/whole/test_ops_random.py      looks longer
    PARTITA_SEED=5000 pytest tests/whole/test_ops_random.py          looks at programs from 5000 on
    python tests/hunt.py logs/ --seconds 3600                  looks for an hour, and goes on there
                                                               when started again

A test that fails names the program's number: `python tests/hunt.py logs/ --only N` makes it small.

Tolerance: every value knows how far rounding may move it (`fuzzing/pool.py`). Arguments and what is
only moved are exact, and only they decide anything that jumps: an order, a place, a branch. Single
precision is allowed 1e-4 of the largest element: sums of up to a few hundred terms are taken in
another order, and a few operations follow one another, which makes some 1e-6. Half precision is
allowed more. A wrong collective loses or repeats a whole piece.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from fuzzing.checking import Checker
from fuzzing.constraining import constrain
from fuzzing.pool import FLOAT
from fuzzing.programs import program, schedules

EXAMPLES = int(os.environ.get("PARTITA_EXAMPLES", "200"))
FIRST = int(os.environ.get("PARTITA_SEED", "0"))
PARTS = 8
CORE_EVERY = 3
"""Loop nests are run for every third schedule of a program: that takes as long as all else."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_partitioned_program_equals_the_original(part):
    left, number = EXAMPLES // PARTS, FIRST + part
    while left > 0:
        checker = Checker(program(number), CORE_EVERY)
        for schedule in schedules(checker.program, min(left, checker.worth)):
            try:
                checker.check(schedule)
            except Exception as error:
                error.add_note(f"program {number}:\n{checker.program}\n{schedule}")
                raise
            left -= 1
        number += PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_a_program_with_constraints_equals_the_original(part):
    """Each with constraints for the mesh of its one schedule; a tenth of the examples."""
    for number in range(FIRST + part, FIRST + EXAMPLES // 10, PARTS):
        made = program(number)
        (schedule,) = schedules(made, 1)
        constrain(made, schedule.mesh, number)
        try:
            Checker(made).check(schedule)
        except Exception as error:
            error.add_note(f"program {number}:\n{made}\n{schedule}")
            raise


# ------------------------------------------------------------- what random programs rarely reach


def looked_up(index_dtype):
    """A look-up, and an addition, at the places that narrow integers say."""

    def fn(table, indices):
        rows = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
        found = jax.lax.gather(table, indices, rows, (1, table.shape[1]))
        into = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
        return found, jax.lax.scatter_add(table, indices, jnp.tanh(found), into)

    indices = np.array([[3], [100], [127], [3]], index_dtype)
    return fn, [np.arange(512 * 4, dtype=np.float32).reshape(512, 4) / 512, indices]


def of_numbers(fn, dtype):
    """A function of 16 x 8 numbers and of 4 row numbers."""
    numbers = np.arange(16 * 8).reshape(16, 8) % 23 - 7
    if dtype == np.complex64:
        numbers = numbers * (1 - 0.5j)
    return fn, [numbers.astype(dtype), np.array([3, -1, 8, 3], np.int32)]


RARE = {
    "narrow signed indices": looked_up(np.int8),
    "narrow unsigned indices": looked_up(np.uint8),
    "complex sums": of_numbers(lambda x, i: jnp.sum(x, 0), np.complex64),
    "complex look-ups": of_numbers(lambda x, i: x[i], np.complex64),
    "complex additions at places": of_numbers(lambda x, i: x.at[i].add(2 + 1j), np.complex64),
    "boolean look-ups": of_numbers(lambda x, i: (x > 0)[i], np.int32),
    "bits of integers": of_numbers(
        lambda x, i: [
            jax.lax.reduce(x, np.int32(-1), jax.lax.bitwise_and, (0,)),
            jax.lax.reduce(x, np.int32(0), jax.lax.bitwise_or, (0,)),
            jax.lax.reduce(x, np.int32(0), jax.lax.bitwise_xor, (0,)),
        ],
        np.int32,
    ),
    "bits of bytes": of_numbers(
        lambda x, i: jax.lax.reduce(x, np.uint8(255), jax.lax.bitwise_and, (0,)), np.uint8
    ),
    "all and any": of_numbers(lambda x, i: (jnp.all(x > -7, 0), jnp.any(x > 14, 0)), np.int32),
    "a divided sum of integers": of_numbers(
        lambda x, i: jax.lax.div(jnp.sum(x, 0), jnp.int32(5)), np.int32
    ),
    "a sum of bytes that wraps": of_numbers(
        lambda x, i: jnp.sum(x, 0, dtype=jnp.int8).astype(FLOAT), np.int8
    ),
    "a slice of nothing": of_numbers(lambda x, i: (x[:0], x[:, :0]), np.float32),
    "half precision": of_numbers(lambda x, i: jnp.max(x, 0) * jnp.min(x, 0), np.float16),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", RARE)
def test_rare_operations(name, dim):
    """Exact: what is summed are small whole numbers."""
    fn, args = RARE[name]

    def named(numbers, places):
        return fn(numbers, places)

    tactics = [
        pt.ManualPartition({"numbers": dim}, axis="y"),
        pt.ManualPartition({"places": 0}, axis="x"),
    ]
    plan = pt.plan(named, *args, mesh="x=2,y=4", hardware="cpu", tactics=tactics)
    ours, theirs = plan.jit()(*args), jax.jit(fn)(*args)
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == their.dtype
        np.testing.assert_allclose(mine, their, rtol=1e-6)


SLICED = {
    "a slice that begins at 4, not at 12": lambda x: jax.lax.dynamic_slice_in_dim(x, x[0], 4),
    "an update of what was put together": lambda x: jax.lax.dynamic_update_slice_in_dim(
        jnp.roll(x, 3), x[:1], x[3], 0
    ),
}


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("name", SLICED)
def test_a_device_keeps_a_piece_of_a_slice(name, dtype):
    """XLA merges slices that follow each other; what moves a window back inside must survive."""

    def fn(x):
        return SLICED[name](x)

    x = np.array([12, 1, 2, 3, 4, 5, 6, 7], dtype)
    tactics = pt.ManualPartition({"result": 0}, axis="y")
    plan = pt.plan(fn, x, mesh="y=4", hardware="cpu", tactics=tactics)
    np.testing.assert_array_equal(plan.jit()(x), jax.jit(fn)(x))


def test_exchanged_pieces_of_what_was_transposed_and_padded():
    """The gradient of the part of `x` that serves as a kernel is exchanged, zeros beside it."""

    def fn(x):
        def loss(x):
            numbers = ("NWC", "WIO", "NWC")
            kernel = jnp.moveaxis(x[:, :4], (0, 1), (-1, -2))
            image = jnp.moveaxis(x, 1, -1)
            made = jax.lax.conv_general_dilated(
                image, kernel, (1,), "VALID", feature_group_count=2, dimension_numbers=numbers
            )
            return jnp.sum(jnp.tanh(made / 24))

        return jax.grad(loss)(x)

    x = np.cos(np.arange(48, dtype=np.float32)).reshape(2, 8, 3)
    tactics = pt.ManualPartition({"x": 1}, axis="y")
    plan = pt.plan(fn, x, mesh="y=2", hardware="cpu", tactics=tactics)
    assert any(c.kind == "all_to_all" for c in plan.collectives)
    np.testing.assert_allclose(plan.jit()(x), jax.jit(fn)(x), atol=1e-6)
