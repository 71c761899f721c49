"""Arrays that a function closes over: listed, counted, and hoisted to arguments."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import partita as pt
from checks import planner
from partita.text import relative

HERE = relative(__file__)
KEYS = jax.random.split(jax.random.key(0), 2)
UP = 0.1 * jax.random.normal(KEYS[0], (64, 256))  # 64 KiB
DOWN = 0.1 * jax.random.normal(KEYS[1], (256, 64)).astype(jnp.bfloat16)  # 32 KiB
TABLE = np.arange(10, dtype=np.float32)  # 40 B
BIAS = np.ones((256,), np.float32)  # one element throughout
X = jnp.ones((8, 64))
OURS = UP.nbytes + DOWN.nbytes + TABLE.nbytes


@jax.jit
def layer(x):
    return jnp.tanh(x @ UP + BIAS) @ DOWN


def model(x):
    """Two uses of each matrix, one of them in a loop."""
    return jax.lax.fori_loop(0, 2, lambda i, h: layer(h) + jnp.asarray(TABLE)[i], layer(x))


plan = planner(mesh="data=4,model=2", hardware="cpu")


def test_constants_are_listed_the_largest_first_each_once():
    up, down, table = plan(model, X).constants
    assert (up.name, up.shape, up.dtype, up.bytes) == ("constants[0]", (64, 256), "f32", 65536)
    assert (down.name, down.shape, down.dtype, down.bytes) == (
        "constants[1]",
        (256, 64),
        "bf16",
        32768,
    )
    assert (table.name, table.bytes) == ("constants[2]", 40)
    line = f"{HERE}:{layer.__wrapped__.__code__.co_firstlineno + 2}"
    assert up.source == line
    assert up.used == (f"dot_general at {line}",)
    assert not up.hoisted
    assert str(up) == f"constants[0]: f32[64,256], 65536 B, used by dot_general at {line}"


def test_what_is_one_element_throughout_or_an_argument_is_no_constant():
    def fn(w, x):
        return x @ w + BIAS[:1] + jnp.zeros((8, 256)) + jnp.arange(256.0)

    assert plan(fn, UP, X).constants == ()
    assert plan(fn, UP, X).estimate.constant_memory == 0


@pytest.mark.filterwarnings("ignore:.* examples, which .* does not divide")
def test_constants_of_element_types_of_all_kinds_are_seen_and_hoisted():
    arrays = {
        "bool": np.arange(2048) % 3 == 0,
        "int4": jnp.arange(4096).astype(jnp.int4),
        "fp8": (jnp.arange(2048) % 8).astype(jnp.float8_e4m3fn),
        "complex": np.exp(1j * np.arange(512)).astype(np.complex64),
        "zeros": np.zeros(512, np.complex64),
    }

    def fn(x):
        return {name: jnp.repeat(jnp.asarray(a)[:4], x.shape[0]) for name, a in arrays.items()}

    x = jnp.ones(2)
    made = plan(fn, x)
    assert sorted(c.dtype for c in made.constants) == ["complex<f32>", "f8E4M3FN", "i1", "i4"]
    hoisted = plan(fn, x, hoist_constants=True)
    assert sorted(str(a.dtype) for a in hoisted.closed_over) == [
        "bool",
        "complex64",
        "float8_e4m3fn",
        "int4",
    ]
    for array in hoisted.closed_over:
        original = next(a for a in arrays.values() if a.dtype == array.dtype)
        np.testing.assert_array_equal(np.asarray(original), array)
    want = fn(x)
    for name, got in hoisted.jit()(x).items():
        np.testing.assert_array_equal(np.asarray(want[name]), np.asarray(got))


# ---------------------------------------------------------------------------------- memory


def test_constants_take_memory_on_every_device_all_the_time():
    """Two products in a row; alive are argument, constants, what is read and what is made."""
    constants, x, hidden, out = UP.nbytes + 2 * DOWN.nbytes, X.nbytes, 8 * 256 * 4, 8 * 64 * 4
    wide = DOWN.astype(jnp.float32)

    def fn(x):
        return (x @ UP) @ wide

    def peak(mesh, *tactics):
        return plan(fn, X, mesh=mesh, tactics=tactics).estimate

    whole = peak("data=1")
    assert whole.constant_memory == constants
    assert whole.peak_memory == x + constants + hidden + out
    assert whole.argument_memory == x
    split = peak("data=4", pt.ManualPartition({"x": 0}, axis="data"))
    assert split.constant_memory == constants
    assert split.peak_memory == constants + (x + hidden + out) / 4


def test_a_constant_used_twice_is_there_once():
    twice = plan(lambda x: (x @ UP) + jnp.sum(UP, axis=0), X, mesh="data=1").estimate
    assert twice.constant_memory == UP.nbytes


def test_a_split_constant_is_whole_and_its_piece_besides():
    """The program holds the whole, and every device cuts its piece out of it."""

    def fn(x):
        return x @ UP

    made = plan(fn, X, mesh="model=2", tactics=pt.ManualPartition({"result": 1}, axis="model"))
    out = 8 * 256 * 4
    assert made.estimate.peak_memory == X.nbytes + UP.nbytes + (UP.nbytes + out) / 2
    np.testing.assert_allclose(made.jit()(X), fn(X), rtol=1e-5, atol=1e-5)


def test_reading_a_constant_takes_time():
    """The same product, of an argument and of a constant: the same bytes move."""
    closed = plan(lambda x: x @ UP, X).estimate
    passed = plan(lambda x, w: x @ w, X, UP).estimate
    assert closed.compute_time == passed.compute_time
    assert closed.peak_memory == passed.peak_memory


def test_what_does_not_fit_with_its_constants_does_not_fit():
    made = plan(lambda x: x @ UP, X, memory=UP.nbytes)
    assert not made.estimate.fits
    assert made.estimate.peak_memory > UP.nbytes


# ---------------------------------------------------------------------------------- report


def test_the_report_lists_constants_from_64_kib_and_their_sum():
    text = str(plan(model, X))
    assert "; arguments 2.0 KiB, constants 96.0 KiB" in text
    rows = text[text.index("Constants, replicated: 96.0 KiB in all") :].splitlines()
    assert rows[2].split()[:4] == ["constants[0]", "f32[64,256]", "64.0", "KiB"]
    assert rows[3].split() == ["2", "smaller", "32.0", "KiB"]
    assert rows[4].startswith("hoist_constants=True")


def test_the_report_leaves_small_constants_out():
    assert "onstants" not in str(plan(lambda x: x @ DOWN.T, jnp.ones((8, 64))))


# ---------------------------------------------------------------------------------- hoisting

MEGATRON = (
    pt.ManualPartition({"x": 0}, axis="data"),
    pt.ManualPartition({"constants[0]": 1}, axis="model"),
)


def test_hoisted_constants_are_arguments_that_tactics_split_and_jit_passes():
    made = plan(model, X, tactics=MEGATRON, hoist_constants=True)
    assert made.program.argument_names == ("x", "constants[0]", "constants[1]")
    layouts = dict(zip(made.program.argument_names, made.spmd.argument_layouts, strict=True))
    assert layouts == {"x": ((0,), ()), "constants[0]": ((), (1,)), "constants[1]": ((1,), ())}
    assert [c.hoisted for c in made.constants] == [True, True, False]
    assert made.in_shardings == (PartitionSpec("data"),)
    assert made.estimate.constant_memory == TABLE.nbytes
    assert made.estimate.argument_memory == X.nbytes / 4 + (UP.nbytes + DOWN.nbytes) / 2
    run = made.jit()
    np.testing.assert_allclose(run(X), model(X), rtol=1e-5, atol=1e-5)
    text = run.lower(X).compile().as_text()
    assert "f32[64,128]" in text  # half of the matrix on each device,
    assert "f32[64,256]" not in text  # and nowhere the whole


def test_hoisted_is_the_same_program_as_with_the_arrays_as_arguments():
    def explicit(x, up, down):
        return jnp.tanh(x @ up) @ down

    hoisted = plan(
        lambda x: explicit(x, UP, DOWN),
        X,
        tactics=pt.AutomaticPartition(budget=100),
        hoist_constants=True,
    )
    given = plan(explicit, X, UP, DOWN, tactics=pt.AutomaticPartition(budget=100))
    assert hoisted.spmd.argument_layouts == given.spmd.argument_layouts
    assert any(map(any, hoisted.spmd.argument_layouts[1:]))  # the search has split some of them
    assert hoisted.estimate == given.estimate


def test_a_size_says_which_constants_are_hoisted():
    names = ("x", "constants[0]", "constants[1]", "constants[2]")
    for size, count in ((40, 4), ("40 B", 4), (41, 3), ("64KiB", 2), ("1GB", 1), (False, 1)):
        assert plan(model, X, hoist_constants=size).program.argument_names == names[:count]
    with pytest.raises(pt.HardwareError, match='cannot read hoist_constants="much"'):
        plan(model, X, hoist_constants="much")


def test_keywords_donation_and_pytrees_stay_as_they_are():
    def fn(state, *, scale):
        return {"h": layer(state["h"]) * scale}

    state, scale = {"h": jnp.ones((8, 64))}, jnp.float32(2)
    made = plan(fn, state, scale=scale, donate_argnums=0, hoist_constants=True)
    want = fn(state, scale=scale)
    run = made.jit()
    placed = made.shard(state)
    np.testing.assert_allclose(run(*placed, scale=scale)["h"], want["h"], rtol=1e-5, atol=1e-5)
    assert placed[0]["h"].is_deleted()
    assert made.program.aliases == {0: 0}
    with pytest.raises(TypeError, match="other"):
        plan(layer, X, hoist_constants=True).jit()(X, other=scale)


def test_jit_hoists_too():
    run = pt.jit(model, mesh="data=4,model=2", tactics=MEGATRON, hoist_constants=True)
    np.testing.assert_allclose(run(X), model(X), rtol=1e-5, atol=1e-5)


def test_constants_in_a_file_are_hoisted_as_well(tmp_path):
    exported = jax.export.export(jax.jit(model), platforms=["cpu"])(X)
    for name, data in (
        ("model.mlirbc", exported.mlir_module_serialized),
        ("model.bin", bytes(exported.serialize())),
    ):
        (tmp_path / name).write_bytes(data)
        whole = plan(tmp_path / name)
        assert [c.bytes for c in whole.constants] == [UP.nbytes, DOWN.nbytes, TABLE.nbytes]
        made = plan(tmp_path / name, tactics=MEGATRON, hoist_constants=True)
        assert made.spmd.argument_layouts == (
            plan(model, X, tactics=MEGATRON, hoist_constants=True).spmd.argument_layouts
        )
        np.testing.assert_allclose(made.jit()(X), model(X), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(made.fn(X), model(X), rtol=1e-5, atol=1e-5)


def test_a_written_program_takes_hoisted_constants_last(tmp_path):
    made = plan(model, X, tactics=MEGATRON, hoist_constants=True)
    made.export(tmp_path / "model.bin")
    exported = jax.export.deserialize(bytearray((tmp_path / "model.bin").read_bytes()))
    mesh = made.device_mesh()
    place = lambda a, *spec: jax.device_put(  # noqa: E731
        a, jax.sharding.NamedSharding(mesh, PartitionSpec(*spec))
    )
    up, down = made.closed_over
    got = jax.jit(exported.call)(place(X, "data"), (place(up, None, "model"), place(down, "model")))
    np.testing.assert_allclose(got, model(X), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- former names


def test_former_names_work_for_one_release_and_say_the_new_ones(tmp_path):
    with pytest.warns(DeprecationWarning, match="lift_constants= is now called hoist_constants="):
        made = plan(model, X, tactics=MEGATRON, lift_constants=True)
    assert made.program.argument_names[-1] == "constants[1]"
    with pytest.warns(DeprecationWarning, match="Plan.lifted is now called Plan.closed_over"):
        assert made.lifted is made.closed_over
    with pytest.warns(DeprecationWarning, match="Constant.lifted is now called Constant.hoisted"):
        assert made.constants[0].lifted
    with pytest.warns(DeprecationWarning, match="Core.lifted is now called Core.closed_over"):
        assert made.core.lifted is made.closed_over
    exported = jax.export.export(jax.jit(model), platforms=["cpu"])(X)
    (tmp_path / "model.bin").write_bytes(exported.serialize())
    module = pt.read(tmp_path / "model.bin")
    with pytest.warns(DeprecationWarning, match="Module.lifting is now called Module.hoisting"):
        hoisted = module.lifting(1024)
    with pytest.warns(DeprecationWarning, match="Module.lifted is now called Module.closed_over"):
        assert len(hoisted.lifted) == 2
