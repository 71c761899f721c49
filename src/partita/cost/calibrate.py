"""`calibrate`: measures the devices at hand, and writes the hardware file that plans are made for.

Rates are those that large operations reach, so the efficiencies of matrix products and of memory
are 1, and those of gathers and convolutions are fractions of these rates. Every figure is the best
of several runs: what else the machine does only ever makes it slower.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec

from partita.cost.devices import measured_device, measured_network
from partita.cost.devices.files import decode, device_type_of, encode, load
from partita.cost.devices.fitting import TimedCollective, fit_collective
from partita.cost.devices.hardware import Efficiency, Hardware, Products
from partita.cost.devices.network import CollectiveTime, Network
from partita.cost.devices.schema import Figure
from partita.cost.devices.stopwatch import Budget
from partita.errors import HardwareError
from partita.files import write
from partita.stablehlo.internals import platform_of

Progress = Callable[[str], None]

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
"""Element types whose products are timed."""

_Figures = Callable[[float, str], Figure]


def calibrate(
    path: str | Path,
    devices: Sequence[Any] | None = None,
    like: str | Hardware | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda text: None,
) -> Hardware:
    """Measures devices and writes a hardware file.

    Args:
      path: of the file, which must end in `.toml`; written at once or not at all.
      devices: of one device type; all of `jax.devices()` by default.
      like: a device type that says what cannot be measured here: what its compiler does, its
        matrix units and tiles, and with a single device, its networks. By default the one that the
        devices say they are, if it is known, except networks.
      budget: how long to measure.
      progress: told what is being measured.

    Returns:
      What the file holds, loaded from it.

    Raises:
      HardwareError: devices of several types, a single device without `like`, or a path that does
        not end in `.toml`.
      FileError: the file cannot be written.
    """
    path, budget = Path(str(path)), budget or Budget()
    if path.suffix != ".toml":
        raise HardwareError(f"a hardware file ends in .toml, got {str(path)!r}")
    devices = list(jax.devices() if devices is None else devices)
    kinds = sorted({device.device_kind for device in devices})
    if not devices:
        raise HardwareError("there are no devices to measure")
    if len(kinds) != 1:
        raise HardwareError(
            f"the devices are of several types: {', '.join(kinds)}; give those of one"
        )
    if len(devices) == 1 and like is None:
        raise HardwareError(
            "a single device cannot measure a network; give more devices (on a CPU set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8), or say like=, a device type "
            "whose networks it has"
        )
    known = None if like is None else load(like)
    text = encode(_measured(path.stem, devices, known, budget, progress))
    hardware = decode(text, path.stem, where=str(path))
    write(path, text.encode())
    return hardware


def _measured(
    name: str, devices: Sequence[Any], like: Hardware | None, budget: Budget, progress: Progress
) -> Hardware:
    """Measures the devices; takes figures that cannot be measured here from a known device type."""
    device = devices[0]
    when = f"measured by partita calibrate on {datetime.date.today()}, jax {jax.__version__}"

    def figure(value: float, how: str) -> Figure:
        return Figure(float(f"{value:.9g}"), f"{when}: {how}")

    progress("memory bandwidth")
    bandwidth = measured_device.memory_bandwidth(device, budget)
    peaks = {}
    for short, dtype in DTYPES.items():
        progress(f"products of {short}")
        peaks[short] = measured_device.matmul_rate(device, dtype, budget)
    progress("gathers and convolutions")
    gathers = min(1.0, measured_device.gather_rate(device, budget) / bandwidth)
    convolutions = min(1.0, measured_device.convolution_rate(device, budget) / peaks["f32"])
    reached = "the rates are those reached"
    found: dict[str, Any] = {
        "name": name,
        "description": f"{device.device_kind}, {when}",
        "device_kind": "",
        "platform": platform_of(device),
        "memory": figure(_memory(devices), "what the device reports"),
        "memory_bandwidth": figure(bandwidth, "a large array, scaled"),
        "peak_flops": {n: figure(peak, "a large square product") for n, peak in peaks.items()},
        "efficiency": Efficiency(
            matmul=figure(1.0, reached),
            memory=figure(1.0, reached),
            gather=figure(gathers, f"rows of {measured_device.ROW} float32"),
            convolution=figure(convolutions, "3x3, 256 channels, float32"),
        ),
    }
    if device.platform != "tpu":
        progress("small kernels")
        found |= _starts(device, bandwidth, budget, figure)
    if len(devices) > 1:
        progress(f"collectives of {len(devices)} devices")
        rows = measured_network.timed(devices, budget)
        found["networks"] = (_network(devices, rows, figure),)
    known = like or device_type_of(device.device_kind)
    if known is None:
        return Hardware(**found)
    base = load(known)
    taken: Hardware = _taken_from(base.name, base)
    return msgspec.structs.replace(taken, **found)


def _starts(device: Any, bandwidth: float, budget: Budget, figure: _Figures) -> dict[str, Any]:
    """Measures the fixed costs of kernels: `launch`, and `start` and `ramp` of products."""
    launch = measured_device.launch(device, budget)
    starts = measured_device.products(device, bandwidth, budget)
    how = "chains of small products of float32, fitted"
    return {
        "launch": figure(launch, "a chain of small kernels"),
        "products": Products(figure(starts["start"], how), figure(starts["ramp"], how)),
    }


def _network(devices: Sequence[Any], rows: Sequence[TimedCollective], figure: _Figures) -> Network:
    """Fits the network that joins the devices, and the time of each kind of collective on it."""
    fit = measured_network.network(devices, rows)
    how = f"all_gather and all_reduce over {fit.devices} devices, fitted"
    kinds = {}
    for kind in {row.kind: None for row in rows} if fit.topology == "switch" else ():
        own = [row for row in rows if row.kind == kind]
        told = f"{kind} over up to {fit.devices} devices, fitted"
        figures = {name: figure(value, told) for name, value in fit_collective(own).items()}
        kinds[kind] = CollectiveTime(**figures)
    rates = figure(fit.bandwidth, how), figure(fit.latency, how)
    return Network("link", fit.topology, fit.devices, *rates, collectives=kinds)


def _taken_from(name: str, value: Any, field: str = "") -> Any:
    """Returns a table of another device type, with that type's name in each of its sources."""
    if isinstance(value, msgspec.Struct):
        inner = {f: _taken_from(name, getattr(value, f), f) for f in value.__struct_fields__}
        return msgspec.structs.replace(value, **inner)
    if isinstance(value, dict):
        return {key: _taken_from(name, each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_taken_from(name, each) for each in value)
    return f"{name}: {value}" if field == "source" and value else value


def _memory(devices: Sequence[Any]) -> float:
    """Bytes that a program can use on one of these devices."""
    stats = devices[0].memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        return float(limit)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total / len(devices)  # of host devices, which share the memory of the machine
