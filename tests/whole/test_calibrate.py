"""Hardware files measured on the devices at hand."""

import jax
import pytest

import partita as pt
from partita.cost import load
from partita.cost.calibrate import calibrate
from partita.cost.devices.measured_network import SIZES, network, timed
from partita.cost.devices.stopwatch import Budget

QUICK = Budget(seconds=0.01, runs=2)


def test_a_measured_file_prices_plans(tmp_path):
    path = tmp_path / "mine.toml"
    hardware = calibrate(path, jax.devices()[:4], budget=QUICK)
    assert load(str(path)) == hardware
    assert [(n.name, n.size) for n in hardware.networks] == [("link", 4)]
    assert set(hardware.peak_flops) == {"f32", "bf16", "f16"}
    # Wide limits: what matters is that these are rates of this machine, in the right unit.
    assert 1e8 < hardware.memory_bandwidth.value < 1e13
    assert 1e8 < hardware.flops("f32") < 1e15
    assert 1e6 < hardware.networks[0].bandwidth.value < 1e13
    assert 1e-9 <= hardware.networks[0].latency.value < 1
    assert "measured by partita calibrate" in hardware.memory_bandwidth.source
    reached = hardware.efficiency.stated()
    assert set(reached) == {"matmul", "memory", "gather", "convolution"}
    assert all(0 < figure.value <= 1 for figure in reached.values())
    x = jax.ShapeDtypeStruct((64, 32), "float32")
    plan = pt.plan(lambda x: x @ x.T, x, mesh="data=4", hardware=str(path), tactics=[])
    assert plan.estimate.compute_time > 0


def test_a_single_device_takes_its_networks_from_a_known_kind(tmp_path):
    path = tmp_path / "mine.toml"
    hardware = calibrate(path, jax.devices()[:1], like="h100", budget=QUICK)
    names = [network.name for network in hardware.networks]
    assert names == [network.name for network in load("h100").networks]
    assert hardware.networks[0].bandwidth.source.startswith("h100: ")
    assert hardware.combine.value == load("h100").combine.value
    assert hardware.matrix_unit.rows.value == load("h100").matrix_unit.rows.value


def test_what_the_compiler_does_is_taken_over(tmp_path):
    like = load("tpu_v5p")
    hardware = calibrate(tmp_path / "mine.toml", jax.devices()[:1], like, budget=QUICK)
    assert hardware.overlapped == like.overlapped
    assert hardware.kernels.not_before_products == like.kernels.not_before_products
    assert hardware.tile.columns.value == like.tile.columns.value
    assert hardware.networks[0].scattered_as_sums == like.networks[0].scattered_as_sums


def test_what_cannot_be_measured_is_that_of_the_kind_that_devices_say_they_are(tmp_path):
    hardware = calibrate(tmp_path / "mine.toml", jax.devices()[:2], budget=QUICK)
    assert hardware.combine.value == load("cpu").combine.value
    assert hardware.combine.source.startswith("cpu: ")
    assert hardware.matrix_unit.columns.value == load("cpu").matrix_unit.columns.value


def test_what_cannot_be_measured_is_said_and_nothing_is_written(tmp_path):
    path = tmp_path / "mine.toml"
    with pytest.raises(pt.HardwareError, match="a single device cannot measure a network"):
        calibrate(path, jax.devices()[:1], budget=QUICK)
    with pytest.raises(pt.HardwareError, match=r"ends in \.toml"):
        calibrate(tmp_path / "mine.json", budget=QUICK)
    with pytest.raises(pt.HardwareError, match="unknown device type 'h10'"):
        calibrate(path, jax.devices()[:1], like="h10", budget=QUICK)
    with pytest.raises(pt.FileError, match="cannot write"):
        calibrate(tmp_path / "no" / "mine.toml", jax.devices()[:2], budget=QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_network_is_fitted_to_what_collectives_take():
    devices = jax.devices()[:2]
    found = network(devices, timed(devices, QUICK))
    assert (found.topology, found.devices) == ("switch", 2)
    assert found.bandwidth > 0 and found.latency > 0


def test_collectives_are_timed_over_groups_of_all_sizes():
    rows = timed(jax.devices()[:4], QUICK)
    kinds = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute"}
    assert {(row.kind, row.devices, row.bytes) for row in rows} == {
        (kind, group, size) for kind in kinds for group in (2, 4) for size in SIZES
    }


def test_kinds_of_collectives_and_starts_of_kernels_are_measured(tmp_path):
    """A machine's own figures take the place of those of the device type that it is like."""
    hardware = calibrate(tmp_path / "mine.toml", jax.devices()[:2], like="h100", budget=QUICK)
    (link,) = hardware.networks
    assert set(link.collectives) == set(load("h100").networks[0].collectives)
    sources = [link.collectives["all_reduce"].start, hardware.launch, hardware.products.ramp]
    assert all(f.source.startswith("measured by partita calibrate") for f in sources)
    assert 1e-9 <= hardware.launch.value < 1e-2 and 1e-9 <= hardware.products.start.value < 1
    # One group size cannot tell steps from the start.
    assert link.collectives["all_gather"].step is None
