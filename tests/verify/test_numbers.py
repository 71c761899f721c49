"""A plan's numbers next to the original's: what rounding explains, and where a fault begins."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from checks import array, numbers, planner
from partita.emit.collectives import EMITTERS
from partita.stablehlo.mlir import hlo

plan = planner(mesh="data=4", hardware="cpu")
ROWS = [pt.ManualPartition({"x": 0}, axis="data")]


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return {"w": w - 1e-4 * gradient, "loss": value}


@pytest.fixture
def scaled(monkeypatch):
    """`scaled("all_reduce")` has collectives of a kind give one percent less."""

    def scaled(kind):
        emit = EMITTERS[kind]

        def less(build, value, step):
            result = emit(build, value, step)
            return hlo.multiply(result, build.fill(result.type, 0.99))

        monkeypatch.setitem(EMITTERS, kind, less)

    return scaled


def test_rounding_is_no_difference():
    made = plan(step, array(8, 4), array(16, 8), tactics=ROWS)
    check = made.check_numbers(numbers(8, 4), numbers(16, 8))
    assert check.ok and check.origin is None
    assert [(row.name, row.shape) for row in check.rows] == [
        ("result['loss']", ()),
        ("result['w']", (8, 4)),
    ]
    assert all(0 < row.tolerance < 2e-5 and row.difference < 1e-6 for row in check.rows)
    assert str(check).endswith("The same numbers, but for rounding.")


def test_a_wrong_collective_is_where_the_difference_begins(scaled):
    scaled("all_reduce")
    check = plan(loss, array(8, 4), array(16, 8), tactics=ROWS).check_numbers()
    assert not check.ok
    assert [round(row.difference, 4) for row in check.rows] == [0.01]
    assert check.origin.what.startswith("the all_reduce over data of what is made at tests/")
    assert "DIFFERS: 1 of 1 results" in str(check)
    assert "It begins at the all_reduce over data" in str(check)


def test_a_wrong_gradient_that_hardly_moves_the_weights_is_found(scaled):
    """One percent of 1e-4 of it is below the rounding of the weights."""
    scaled("all_reduce")
    fn = lambda w, x: step(w, x)["w"]  # noqa: E731
    check = plan(fn, array(8, 4), array(16, 8), tactics=ROWS).check_numbers()
    assert all(row.ok for row in check.rows)
    assert not check.ok and check.origin is not None
    assert "no result shows it with these arguments" in str(check)


def test_a_fault_inside_of_a_loop_is_that_of_the_loop(scaled):
    scaled("all_gather")

    def layers(w, x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0] + 1

    tactics = [pt.ManualPartition({"x": 1}, axis="data")]
    made = plan(layers, array(8, 8), array(16, 8), tactics=tactics)
    assert any(c.kind == "all_gather" and c.count == 3 for c in made.collectives)
    assert made.check_numbers().origin.what.startswith("the loop at tests/")


def test_the_first_of_many_is_found_step_by_step(scaled, monkeypatch):
    monkeypatch.setattr("partita.verify.numbers.AT_ONCE", 2)
    scaled("all_reduce")
    check = plan(loss, array(8, 4), array(16, 8), tactics=ROWS).check_numbers()
    assert check.origin.what.startswith("the all_reduce over data")


def largest_place(x):
    """Sums that differ in the last place only, if at all: which is largest is up to rounding."""
    return jnp.argmax(jnp.sum(x, 0)), jnp.sum(x, 0)


def test_whole_numbers_are_exact_unless_rounding_moves_the_original_too():
    x = np.random.default_rng(0).permuted(np.tile(numbers(16, 1), (1, 64)), axis=0)
    check = plan(largest_place, array(16, 64), tactics=ROWS).check_numbers(x)
    place, _ = check.rows
    assert place.tolerance == 0 and check.ok
    counted = plan(lambda x: jnp.sum(x > 0, 0), array(16, 8), tactics=ROWS).check_numbers()
    assert [row.difference for row in counted.rows] == [0]


def test_a_wrong_count_differs(monkeypatch):
    def twice(build, value, step, emit=EMITTERS["all_reduce"]):
        result = emit(build, value, step)
        return hlo.add(result, result)

    monkeypatch.setitem(EMITTERS, "all_reduce", twice)
    check = plan(lambda x: jnp.sum(x > 0, 0), array(16, 8), tactics=ROWS).check_numbers()
    assert not check.ok and "other elements" in str(check)
    assert check.as_dict()["results"][0]["difference"] is None


def test_what_is_no_number_must_be_so_in_the_original():
    x = numbers(16, 8)
    x[3, 2], x[5, 1] = np.nan, np.inf
    check = plan(lambda x: jnp.sum(x, 0), array(16, 8), tactics=ROWS).check_numbers(x)
    assert check.ok and not check.rows[0].finite
    assert "not all finite" in str(check)


def test_coarse_types_have_wide_tolerances():
    def product(w, x):
        return x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)

    check = plan(product, array(8, 4), array(16, 8), tactics=ROWS).check_numbers()
    assert check.ok and 0.01 < check.rows[0].tolerance <= 0.1
    assert check.rows[0].dtype == "bfloat16"


def test_arguments_are_drawn_for_every_type_and_by_the_seed():
    def mixed(key, x, places, mask, scale=1.0):
        drawn = jax.random.uniform(key, x.shape)
        return jnp.where(mask, x[places] * scale + drawn, 0), jnp.sqrt(x)

    args = jax.random.key(0), array(16), array(16, dtype=jnp.int32), array(16, dtype=bool)
    made = plan(mixed, *args, scale=2.0, tactics=ROWS)
    check = made.check_numbers(seed=3)
    assert check.ok and all(row.finite for row in check.rows)
    assert check.arguments == "With random arguments of seed 3, none of them negative."


def test_static_arguments_are_those_of_the_plan():
    def power(x, n):
        return jnp.sum(x**n)

    made = plan(power, array(16), 3, static_argnums=1, tactics=ROWS)
    assert made.check_numbers().ok
    assert made.check_numbers(numbers(16), 3).ok


def test_a_plan_that_is_too_large_is_checked_on_smaller_arguments(monkeypatch):
    made = plan(loss, array(512, 512), array(4096, 512), tactics=ROWS)
    monkeypatch.setattr("partita.planning.smaller.MOST_FLOPS", 1e7)
    check = made.check_numbers()
    assert check.ok
    assert check.notes == ("Too large to run here: smaller, with 8 in place of 4096.",)


def test_a_plan_that_takes_no_smaller_arguments_is_refused(monkeypatch):
    made = plan(lambda x: (x @ x.T).reshape(64, 64), array(64, 32), tactics=ROWS)
    monkeypatch.setattr("partita.planning.smaller.MOST_FLOPS", 1e4)
    with pytest.raises(pt.UnsupportedError, match=r"too large to run on host devices: .* FLOP"):
        made.check_numbers()


def test_too_few_devices():
    made = pt.plan(loss, array(8, 4), array(64, 8), mesh="data=16", hardware="cpu", tactics=[])
    with pytest.raises(pt.MeshError, match="xla_force_host_platform_device_count=16"):
        made.check_numbers()


def test_a_check_is_data():
    check = plan(loss, array(8, 4), array(16, 8), tactics=ROWS).check_numbers()
    found = json.loads(json.dumps(check.as_dict()))
    assert found["ok"] and found["mesh"] == {"data": 4} and found["origin"] is None
    assert found["results"][0]["name"] == "result"
