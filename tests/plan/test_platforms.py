"""What is planned is the program of the hardware's platform; it runs on a host all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, assert_same, numbers, planner, runs_as_the_original
from partita.cost import device_types, load
from partita.cost.devices.files import FOLDER

plan = planner(mesh="data=2")
ROWS = pt.ManualPartition({"x": 0}, axis="data")


def calls(made):
    return [op.target for op in made.program.operations if op.target]


def square(x):
    return x @ jnp.swapaxes(x, -1, -2) + 9 * jnp.eye(x.shape[-1])


@pytest.mark.parametrize("name", device_types())
def test_every_device_type_says_its_platform(name):
    """The one that JAX lowers programs for."""
    expected = "tpu" if name.startswith("tpu") else "cpu" if name == "cpu" else "cuda"
    assert load(name).platform == expected


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("tpu_v5e", ["LuDecomposition"]),
        ("h100", ["cusolver_getrf_ffi", "cu_lu_pivots_to_permutation"]),
        ("cpu", ["lapack_sgetrf_ffi", "lapack_strsm_ffi", "lapack_strsm_ffi"]),
    ],
)
def test_the_program_is_that_of_the_hardwares_platform(hardware, expected):
    made = plan(jnp.linalg.inv, array(8, 8), hardware=hardware)
    assert made.program.platform == load(hardware).platform
    assert calls(made) == expected


def test_random_bits_are_drawn_as_the_platform_draws_them():
    """JAX makes a loop of it for hosts, to compile quickly, and none for others."""
    draw = lambda key: jax.random.normal(key, (8, 8))  # noqa: E731
    loops = {
        hardware: len(plan(draw, jax.random.key(0), hardware=hardware).program.loops)
        for hardware in ("tpu_v5e", "h100", "cpu")
    }
    assert loops == {"tpu_v5e": 0, "h100": 0, "cpu": 1}


def test_hardware_without_a_platform_is_that_at_hand(tmp_path):
    path = tmp_path / "mine.toml"
    text = (FOLDER / "h100.toml").read_text().replace('platform = "cuda"\n', "")
    path.write_text(text)
    assert plan(jnp.sin, array(8), hardware=str(path)).program.platform == "cpu"


def test_an_unknown_platform_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    text = (FOLDER / "h100.toml").read_text().replace('"cuda"', '"metal"')
    path.write_text(text)
    with pytest.raises(pt.HardwareError, match="Invalid enum value 'metal' - at `platform`"):
        load(path)


@pytest.mark.parametrize("hardware", ["tpu_v5e", "h100"])
def test_what_runs_anywhere_runs_as_planned(hardware):
    """Mixed types, generators and windows of a TPU's or GPU's program; the collectives too."""

    def mixed(x, w, key):
        noise = jax.random.uniform(key, x.shape).astype(x.dtype)
        product = lax.dot_general(
            x + noise, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        return lax.cummax(product, axis=1), jnp.sum(product)

    x = jnp.asarray(numbers(8, 16), jnp.bfloat16)
    made = plan(mixed, x, numbers(16, 8), jax.random.key(0), hardware=hardware, tactics=[ROWS])
    runs_as_the_original(made, x, numbers(16, 8), jax.random.key(0), tolerance=1e-4)


@pytest.mark.parametrize("hardware", ["tpu_v5e", "h100"])
@pytest.mark.parametrize(
    "decompose",
    [jnp.linalg.inv, jnp.linalg.qr, jnp.linalg.eigvalsh, jnp.linalg.cholesky],
    ids=lambda f: f.__name__,
)
def test_code_of_another_platform_has_a_stand_in(hardware, decompose):
    """The function is lowered for the host then, and split there as the plan splits its ends."""
    x = numbers(4, 8, 8)
    made = plan(lambda x: decompose(square(x)), x, hardware=hardware, tactics=[ROWS])
    placed = made.shard(x)
    results = made.jit()(*placed)
    assert_same(results, decompose(square(x)), 1e-3)
    specs = jax.tree.leaves(made.out_shardings, is_leaf=lambda s: isinstance(s, P))
    assert [leaf.sharding.spec for leaf in jax.tree.leaves(results)] == specs


@pytest.mark.parametrize("shape", [(2,), (1, 2)], ids=["as it is", "reshaped"])
def test_a_part_of_a_product_of_a_part_is_a_product(shape):
    """Of integers XLA forgets the product, so it must not see that parts are of parts."""

    def part(x, start, length):
        return lax.dynamic_slice(x, (0,) * (x.ndim - 1) + (start,), (*x.shape[:-1], length))

    def fn(x, i, j):
        return part((part(x, i, 2) * 15).reshape(shape), j, 1)

    x = np.arange(8, dtype=np.int32)
    made = plan(fn, x, 2, 1, hardware="cpu", tactics=[])
    assert made.jit()(x, 2, 1).item() == 45


@pytest.mark.parametrize("hardware", ["cpu", "tpu_v5e"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "transform", [jnp.fft.fft, jnp.fft.rfft, jnp.fft.fft2], ids=lambda f: f.__name__
)
def test_a_fourier_transform_runs_in_front_of_an_all_gather(transform, dim, hardware):
    """A host has it in row-major order alone; the all-gather asks for another order."""
    x = numbers(4, 4, 4, 4)
    tactics = [
        pt.ManualPartition({"result": "replicate"}, axis="data"),
        pt.ManualPartition({"x": dim}, axis="data"),
    ]
    made = plan(lambda x: transform(x), x, hardware=hardware, tactics=tactics)
    assert [c.kind for c in made.collectives] == ["all_gather"]
    runs_as_the_original(made, x)


def doubled(x, interpret=False):
    def kernel(read, write):
        write[...] = 2 * read[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, name="doubled", interpret=interpret)(x)


def test_a_kernel_is_planned_for_its_platform_and_refused_on_another():
    made = plan(lambda x: jnp.sin(doubled(x)), array(16, 128))
    assert calls(made) == ["tpu_custom_call"]
    assert np.prod(made.program.values[made.program.results[0]].type.shape) == 16 * 128
    with pytest.raises(pt.UnsupportedError) as caught:
        made.jit()
    message = str(caught.value)
    assert message.startswith("<lambda> is planned for tpu and calls tpu_custom_call at tests/")
    assert "which cpu devices do not have; run the plan on tpu devices" in message


def test_a_kernel_that_the_hardware_does_not_have_is_an_error_of_ours():
    with pytest.raises(pt.TraceError, match=r"cannot lower <lambda> for cpu: .*interpret mode"):
        plan(lambda x: doubled(x), array(16, 128), hardware="cpu")


def test_an_interpreted_kernel_runs_anywhere():
    x = numbers(16, 128)
    runs_as_the_original(plan(lambda x: doubled(x, interpret=True), x), x)


def test_a_saved_plan_keeps_its_program_on_other_hardware(tmp_path):
    """It is estimated on the other, and is the plan of the same program."""
    key = jax.random.key(0)
    draw = lambda key: jax.random.normal(key, (8, 8))  # noqa: E731
    plan(draw, key).save(tmp_path / "plan.json")
    again = pt.load(tmp_path / "plan.json", draw, key, hardware="cpu")
    assert (again.hardware.name, again.program.platform) == ("cpu", "tpu")
