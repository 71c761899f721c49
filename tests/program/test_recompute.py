"""Program passes: a copy is the same program; what is recomputed is made behind a barrier."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from checks import array
from partita import models
from partita.mesh import Mesh
from partita.planning.prepare import prepare, targeted
from partita.program import Program
from partita.program.passes import Copier, rebuilt, recompute, run, unchanged
from well_formed import check


def program_of(fn, *args, mesh: str = "data=8") -> Program:
    return prepare(fn, args, {}, Mesh.of(mesh), targeted("tpu_v5e", None)).program


def made_by(program: Program, kind: str) -> list[int]:
    return [op.results[0] for op in program.operations if op.short == kind]


def two_layers(a, b, x):
    """A loss and its gradient, written out: releases of JAX differentiate in other orders."""
    first = jnp.tanh(x @ a)
    last = jnp.tanh(first @ b)
    pulled = (1 - last * last) @ b.T
    return jnp.sum(last), (pulled * (1 - first * first)) @ a.T


def loops_and_branches(x, n):
    def body(carry, row):
        carry = jax.lax.cond(n > 2, jnp.sin, lambda c: jnp.cos(c) * row, carry)
        return carry, jax.lax.optimization_barrier((carry, row))[0]

    return jax.lax.scan(body, x[0], x), jax.lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x)
    )


SQUARE = array(8, 8)


@pytest.mark.parametrize("preset", ["mlp", "gpt-tiny", "llama-tiny", "decode-tiny", "resnet-tiny"])
def test_a_copy_of_a_model_is_the_same(preset):
    model = models.build(preset)
    same_as_its_copy(program_of(model.fn, *model.args))


def test_a_copy_of_loops_branches_and_barriers_is_the_same():
    same_as_its_copy(program_of(loops_and_branches, SQUARE, jax.ShapeDtypeStruct((), jnp.int32)))


def same_as_its_copy(program: Program) -> None:
    check(program)
    copied = rebuilt(program)
    check(copied.program)
    assert dataclasses.replace(copied.program, changed=False) == program
    assert copied.values == unchanged(program).values
    assert copied.operations == unchanged(program).operations
    assert not copied.changed


def test_every_item_may_be_repeated():
    program = program_of(loops_and_branches, SQUARE, jax.ShapeDtypeStruct((), jnp.int32))

    def twice(copier: Copier, item):
        return copier.copy(item), copier.copy(item)

    after = rebuilt(program, twice)
    check(after.program)
    deepest = max(len(program.around(op.region)) for op in program.operations)
    assert deepest == 3
    inner = [op for op in program.operations if op.short == "sine"]
    copies = [op for op in after.program.operations if op.short == "sine"]
    assert len(copies) == 2**deepest * len(inner)
    assert {op.template for op in copies} == {op.template for op in inner}


def test_a_value_is_made_again_before_its_next_use():
    program = program_of(two_layers, SQUARE, SQUARE, SQUARE)
    first, last = made_by(program, "tanh")
    start = program.values[last].producer + 1
    after = recompute(program, [first], start)
    check(after.program)
    was, _, again = made_by(after.program, "tanh")
    assert after.values[first] == was
    assert [op.operands for op in after.program.operations if was in op.operands] == [
        op.operands for op in program.operations[:start] if first in op.operands
    ]
    held = [op for op in after.program.operations if op.kind == "partita.barrier"]
    made = after.program.operations[after.program.values[again].producer]
    assert made.operands[0] in {op.results[0] for op in held}
    reads = {v for op in after.program.operations[made.index + 1 :] for v in op.operands}
    assert again in reads and was not in reads


def test_what_changed_is_what_is_new_and_what_reads_it():
    program = program_of(two_layers, SQUARE, SQUARE, SQUARE)
    first, last = made_by(program, "tanh")
    after = recompute(program, [first], program.values[last].producer + 1)
    old = {after.operations[op.index] for op in program.operations}
    new = {op.index for op in after.program.operations} - old
    made = {v for op in new for v in after.program.operations[op].results}
    reading = {op.index for op in after.program.operations if made.intersection(op.operands)}
    assert after.changed == new | reading


def test_the_barrier_waits_for_what_the_use_reads_besides():
    program = program_of(two_layers, SQUARE, SQUARE, SQUARE)
    first, last = made_by(program, "tanh")
    start = program.values[last].producer + 1
    after = recompute(program, [first], start).program
    (barrier,) = (item for item in after.body.items if not isinstance(item, int))
    inputs = [after.operations[part].operands[0] for part in barrier.parts]
    assert any((after.values[v].producer or 0) >= start for v in inputs)


def test_constants_are_made_again_and_pass_no_barrier():
    def fn(x):
        scaled = jnp.sin(x) * 2.0
        return scaled + 1.0, jnp.cos(jnp.sum(scaled)) * scaled

    program = program_of(fn, SQUARE)
    (product,) = (v for v in made_by(program, "multiply") if program.values[v].producer < 5)
    cosine = program.values[made_by(program, "cosine")[0]].producer
    after = recompute(program, [product], cosine)
    check(after.program)
    held = [op for op in after.program.operations if op.kind == "partita.barrier"]
    makers = [after.program.values[op.operands[0]].producer for op in held]
    kinds = {after.program.operations[maker].short for maker in makers}
    assert kinds == {"sine", "broadcast_in_dim"}  # which is of the cosine


def test_what_nothing_reads_before_is_moved():
    def fn(x):
        late = jnp.sin(x)
        return jnp.cos(x), late * 3.0

    program = program_of(fn, SQUARE)
    (sine,) = made_by(program, "sine")
    cosine = program.values[made_by(program, "cosine")[0]].producer
    after = recompute(program, [sine], cosine)
    check(after.program)
    assert len(made_by(after.program, "sine")) == 1
    assert after.program.values[after.values[sine]].producer > after.operations[cosine]


def test_in_a_loop():
    def fn(x):
        def body(carry, _):
            inner = jnp.tanh(carry)
            return jnp.cos(inner) @ inner + jnp.sin(inner), None

        return jax.lax.scan(body, x, None, length=3)[0]

    program = program_of(fn, SQUARE)
    (tanh,) = made_by(program, "tanh")
    sine = program.values[made_by(program, "sine")[0]].producer
    after = recompute(program, [tanh], sine)
    check(after.program)
    _, again = made_by(after.program, "tanh")
    op = after.program.operations[after.program.values[again].producer]
    assert (op.times, op.region) == (3, program.operations[sine].region)


def test_a_loop_that_carries_what_is_made_again_has_changed():
    def fn(x):
        def body(carry, _):
            inner = jnp.tanh(carry)
            return inner, jnp.sin(jnp.cos(inner) @ inner + inner)

        return jax.lax.scan(body, x, None, length=3)

    program = program_of(fn, SQUARE)
    (tanh,) = made_by(program, "tanh")
    last = max(use for use, _ in program.uses()[tanh] if program.operations[use].region)
    after = recompute(program, [tanh], last)
    check(after.program)
    carry = next(op for op in program.operations if tanh in op.operands[1:] and not op.region)
    carried = after.program.operations[after.operations[carry.index]]
    assert carried.operands[1] == made_by(after.program, "tanh")[1]
    assert carried.index in after.changed


def test_maps_of_several_passes_lead_from_the_first_program():
    program = program_of(two_layers, SQUARE, SQUARE, SQUARE)
    first, last = made_by(program, "tanh")
    start = program.values[last].producer + 1
    once = recompute(program, [last], start)
    twice = run(
        program, [lambda p: recompute(p, [last], start), lambda p: recompute(p, [first], start)]
    )
    check(twice.program)
    assert len(made_by(once.program, "tanh")) == 2  # the last one is moved
    assert len(made_by(twice.program, "tanh")) == 3
    for old in program.arguments + program.results:
        assert twice.program.describe(twice.values[old]) == program.describe(old)
    assert len(twice.changed) > len(once.changed)


@pytest.mark.parametrize(
    ("values", "before", "message"),
    [
        (lambda p: [p.arguments[0]], 0, "is not made by an operation"),
        (lambda p: made_by(p, "tanh"), 10**6, "no operation from 1000000 on"),
        (lambda p: made_by(p, "tanh"), 0, "made after the first use"),
    ],
)
def test_what_cannot_be_recomputed(values, before, message):
    program = program_of(two_layers, SQUARE, SQUARE, SQUARE)
    with pytest.raises(ValueError, match=message):
        recompute(program, values(program), before)


@pytest.mark.parametrize("preset", ["mlp", "llama-tiny"])
def test_every_kind_of_operation_of_a_model(preset):
    model = models.build(preset)
    program = program_of(model.fn, *model.args)
    uses = program.uses()
    kinds = {(op.kind, op.region): op for op in program.operations if op.results}
    done = 0
    for op in kinds.values():
        last = max((use for use, _ in uses[op.results[0]]), default=0)
        try:
            after = recompute(program, op.results, last)
        except ValueError:
            continue
        check(after.program)
        done += 1
    assert done > len(kinds) / 2
