"""`calibrate`: measures the devices at hand, and writes the hardware file that plans are made for.

Rates are those that large operations reach, so the efficiencies of matrix products and of memory
are 1, and those of gathers and convolutions are fractions of these rates. Every figure is the best
of several runs: what else the machine does only ever makes it slower.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scipy.optimize import nnls

from partita.cost.files import decode, device_type_of, encode, load
from partita.cost.hardware import Efficiency, Hardware
from partita.cost.network import Network
from partita.cost.schema import Figure
from partita.errors import HardwareError
from partita.files import write
from partita.options import integer, wrong
from partita.stablehlo.internals import platform_of

Progress = Callable[[str], None]

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
"""Element types whose products are timed."""

MOST_SECONDS = 3600
"""The longest time to measure one operation."""

ROW = 256
"""Elements of the rows that are gathered."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long to measure."""

    seconds: float = 0.3
    """Of each operation; larger ones are tried until one run takes a tenth of it."""
    runs: int = 5
    """How often each operation is timed; the best time counts."""

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds <= MOST_SECONDS):
            raise wrong("seconds", self.seconds, f"a time above 0, of at most {MOST_SECONDS} s")
        integer(self.runs, "runs", 1)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The network that joins the devices, as measured."""

    topology: Literal["torus", "switch"]
    devices: int
    bandwidth: float
    """Bytes/s."""
    latency: float
    """Seconds."""


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
        devices say they are, if it is known, but for networks.
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
    """The devices as measured; what cannot be measured is as on a known device type."""
    device = devices[0]
    when = f"measured by partita calibrate on {datetime.date.today()}, jax {jax.__version__}"

    def figure(value: float, how: str) -> Figure:
        return Figure(float(f"{value:.9g}"), f"{when}: {how}")

    progress("memory bandwidth")
    bandwidth = memory_bandwidth(device, budget)
    peaks = {}
    for short, dtype in DTYPES.items():
        progress(f"products of {short}")
        peaks[short] = matmul_rate(device, dtype, budget)
    progress("gathers and convolutions")
    gathers = min(1.0, gather_rate(device, budget) / bandwidth)
    convolutions = min(1.0, convolution_rate(device, budget) / peaks["f32"])
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
            gather=figure(gathers, f"rows of {ROW} float32"),
            convolution=figure(convolutions, "3x3, 256 channels, float32"),
        ),
    }
    if len(devices) > 1:
        progress(f"collectives of {len(devices)} devices")
        fit = network(devices, budget)
        how = f"all_gather and all_reduce over {fit.devices} devices, fitted"
        rates = figure(fit.bandwidth, how), figure(fit.latency, how)
        found["networks"] = (Network("link", fit.topology, fit.devices, *rates),)
    known = like or device_type_of(device.device_kind)
    if known is None:
        return Hardware(**found)
    base = load(known)
    taken: Hardware = _taken_from(base.name, base)
    return msgspec.structs.replace(taken, **found)


def _taken_from(name: str, value: Any, field: str = "") -> Any:
    """A table of another device type, each of its sources with the name of that."""
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


def memory_bandwidth(device: Any, budget: Budget) -> float:
    """Bytes/s that a device reads and writes."""

    def case(size: int) -> tuple[Callable[[], Any], float]:
        array = jax.device_put(jnp.ones(size, jnp.float32), device)
        scale = jax.jit(lambda x: 2 * x + 1)
        return lambda: scale(array), 8.0 * size

    return _rate((case(2**power) for power in range(20, 31)), budget)


def matmul_rate(device: Any, dtype: Any, budget: Budget) -> float:
    """FLOP/s of large products of an element type."""

    def case(size: int) -> tuple[Callable[[], Any], float]:
        matrix = jax.device_put(jnp.ones((size, size), dtype), device)
        product = jax.jit(lambda a: a @ a)
        return lambda: product(matrix), 2.0 * size**3

    return _rate((case(2**power) for power in range(8, 15)), budget)


def gather_rate(device: Any, budget: Budget) -> float:
    """Bytes/s of reading single rows of a table, and writing them one after another."""

    def case(rows: int) -> tuple[Callable[[], Any], float]:
        table = jax.device_put(jnp.ones((rows, ROW), jnp.float32), device)
        order = jax.device_put(jax.random.permutation(jax.random.key(0), rows), device)
        gather = jax.jit(lambda table, order: table[order])
        return lambda: gather(table, order), 2.0 * table.nbytes

    return _rate((case(2**power) for power in range(10, 21)), budget)


def convolution_rate(device: Any, budget: Budget) -> float:
    """FLOP/s of convolutions of float32 images."""
    channels, side = 256, 14

    def case(images: int) -> tuple[Callable[[], Any], float]:
        shape = (images, side, side, channels)
        x = jax.device_put(jnp.ones(shape, jnp.float32), device)
        kernel = jax.device_put(jnp.ones((3, 3, channels, channels), jnp.float32), device)
        names = ("NHWC", "HWIO", "NHWC")
        convolve = jax.jit(
            lambda x, kernel: jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=names
            )
        )
        return lambda: convolve(x, kernel), 2.0 * x.size * kernel.size / channels

    return _rate((case(2**power) for power in range(9)), budget)


def network(devices: Sequence[Any], budget: Budget) -> Fit:
    """Bandwidth and latency of collectives over devices, fitted to several sizes.

    The model is that of the cost of a collective: on a ring of n devices, an all_gather to S
    bytes takes (n-1)/n S / bandwidth and as many latencies as there are steps; an all_reduce twice
    that.
    """
    n = len(devices)
    topology: Literal["torus", "switch"] = "torus" if devices[0].platform == "tpu" else "switch"
    hops = n / 2 if topology == "torus" else n - 1
    rows, times = [], []
    for size in (2**14, 2**18, 2**22, 2**24):
        for kind, passes in (("all_gather", 1), ("all_reduce", 2)):
            rows.append([passes * (n - 1) / n * size, passes * hops])
            times.append(_best(_collective(devices, kind, size), budget))
    # Small and large collectives count alike: what is fitted is the relative error.
    weighted = np.array(rows) / np.array(times)[:, None]
    per_byte, latency = _nonnegative(weighted, np.ones(len(times)))
    return Fit(topology, n, 1 / max(per_byte, 1e-15), max(latency, 1e-9))


def _collective(devices: Sequence[Any], kind: str, size: int) -> Callable[[], Any]:
    """One collective with a payload of `size` bytes on each device."""
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    split = PartitionSpec("x")
    count = size // 4 // len(devices) * len(devices)
    if kind == "all_gather":
        body = lambda x: jax.lax.all_gather(x, "x", tiled=True)  # noqa: E731
        elements, out = count, PartitionSpec()
    else:
        body = lambda x: jax.lax.psum(x, "x")  # noqa: E731
        elements, out = count * len(devices), PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=out, check_vma=False)
    array = jax.device_put(jnp.ones(elements, jnp.float32), NamedSharding(mesh, split))
    run = jax.jit(mapped)
    return lambda: run(array)


def _nonnegative(matrix: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Least squares with coefficients of at least zero."""
    found, _ = nnls(matrix, target)
    return float(found[0]), float(found[1])


def _rate(cases: Iterable[tuple[Callable[[], Any], float]], budget: Budget) -> float:
    """Work per second of the largest case for which there is time."""
    best = 0.0
    for run, work in cases:
        seconds = _best(run, budget)
        best = max(best, work / seconds)
        if seconds > budget.seconds / 10:
            break
    if not math.isfinite(best) or best <= 0:
        raise HardwareError("the clock of this machine is too coarse to measure anything")
    return best


def _best(run: Callable[[], Any], budget: Budget) -> float:
    """Seconds of the quickest run, compiled before."""
    jax.block_until_ready(run())
    best = math.inf
    end = time.perf_counter() + budget.seconds
    for number in range(1000):
        start = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - start)
        if number + 1 >= budget.runs and time.perf_counter() > end:
            break
    return best
