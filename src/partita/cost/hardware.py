"""Hardware as data: what one device can do, and the networks that join devices.

A kind of device is a TOML file. Those that partita knows lie in the folder `device_types`, one file
each, and users write their own in the same form. Every figure carries its source: the vendor's
document, or `assumption: ...` where there is no public figure.

The units are bytes, seconds, bytes/s and FLOP/s (operations/s for integers). Peaks are dense and
at XLA's default precision, so a float32 peak is that of TF32 on recent GPUs.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from partita.errors import HardwareError, closest
from partita.spmd import COLLECTIVES

KINDS = resources.files("partita.cost").joinpath("device_types")

# For each element type, where a peak is taken from when the file does not state it: the first
# type that the file does state, and the fraction of its peak.
FALLBACKS: dict[str, tuple[tuple[str, float], ...]] = {
    "bf16": (("f16", 1.0), ("f32", 1.0)),
    "f16": (("bf16", 1.0), ("f32", 1.0)),
    "f32": (("bf16", 0.5), ("f16", 0.5)),
    "f64": (("f32", 0.5), ("bf16", 0.25), ("f16", 0.25)),
    "f8": (("bf16", 1.0), ("f16", 1.0), ("f32", 1.0)),
    "s8": (("bf16", 1.0), ("f16", 1.0), ("f32", 1.0)),
}

# A file must state one of these, so that every fallback ends.
BASE_DTYPES = ("bf16", "f16", "f32")

# The peak that applies to each element type, StableHLO's names and JAX's short ones. Only
# integers of 8 bits and fewer have fast units; wider ones run at the float32 rate.
PEAK_OF = (
    (r"tf32|complex<f32>|c64|(i|ui|s|u)(16|32|64)", "f32"),
    (r"complex<f64>|c128", "f64"),
    (r"f[468]E\w+", "f8"),
    (r"i1|pred|(i|ui|s|u)[248]", "s8"),
)

DEVICE_KINDS = (
    (r"v6 ?(lite|e)", "tpu_v6e"),
    (r"v5 ?(lite|e)", "tpu_v5e"),
    (r"v5p?\b", "tpu_v5p"),
    (r"v4", "tpu_v4"),
    (r"v3", "tpu_v3"),
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"H100", "h100"),
    (r"A100.*40", "a100_40gb"),
    (r"A100", "a100_80gb"),
    (r"V100", "v100"),
    (r"P100", "p100"),
    (r"cpu", "cpu"),
)
"""Patterns of JAX's `device_kind`, and the hardware file for each."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a hardware file. Its fields are all there is to it."""


class Figure(_Table, frozen=True):
    """A positive number and where it is from."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not (self.value > 0 and math.isfinite(self.value)):
            raise ValueError(f"a figure must be finite and above 0, got {self.value}")
        if not self.source.strip():
            raise ValueError(f"the figure {self.value} has an empty source; say where it is from")


class Efficiency(_Table, frozen=True):
    """The fractions of peak FLOP/s and of memory bandwidth that large operations reach (0..1].

    Attributes:
        matmul: of the peak, by matrix products that fill the matrix units.
        memory: of the bandwidth, by what streams through memory.
        gather: of the bandwidth, by the rows that gathers and scatters move; as `memory` if the
            file does not state it.
        convolution: of the peak, by convolutions that fill the matrix units; as `matmul` if the
            file does not state it.
    """

    matmul: Figure
    memory: Figure
    gather: Figure | None = None
    convolution: Figure | None = None

    def __post_init__(self) -> None:
        for name, figure in self.stated().items():
            if figure.value > 1:
                raise ValueError(f"{name} is a fraction of the peak, at most 1, got {figure.value}")

    def stated(self) -> dict[str, Figure]:
        """The figures that there are, by name."""
        figures = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: figure for name, figure in figures.items() if figure is not None}


class Block(_Table, frozen=True):
    """A block of so many rows and columns; what does not fill whole ones is padded.

    Of a matrix unit, the block that it works on: what small matrix products leave of it is idle.
    What a product contracts is padded to a multiple of `rows`, and one side of its result, or the
    features of a convolution, to a multiple of `columns`.

    Of memory, the tile in which arrays lie there: one dimension is padded to a multiple of
    `columns`, another to a multiple of `rows`, or to a power of two if it is smaller.
    """

    rows: Figure
    columns: Figure

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            value = getattr(self, name).value
            if value < 1 or value != int(value):
                raise ValueError(f"{name} of a block must be a whole number, got {value}")


class Kernels(_Table, frozen=True):
    """What the compiler of a kind computes in one kernel.

    Attributes:
        fuse_products: whether kernels of matrix products and convolutions compute the elementwise
            operations before and behind them, too.
        source: where that is from.
        not_before_products: elementwise operations, as StableHLO names them, whose results such
            kernels read from memory all the same.
    """

    fuse_products: bool
    source: str
    not_before_products: tuple[str, ...] = ()


class Network(_Table, frozen=True):
    """A network that joins up to `size` devices.

    `bandwidth` is the bytes/s a device can send along one mesh axis: on a torus, both directions
    of that axis's ring together; through a switch, all that the device injects, one way.
    `latency` is the seconds of one hop of the torus or one step of a ring through the switch.
    On a torus, only axes whose size is a multiple of `wrap` close to a ring; the others are lines,
    whose ends have one direction only. A reduce_scatter over all devices, if they are one of
    `scattered_as_sums`, is compiled as an all_reduce of which each keeps a piece.
    """

    name: str
    topology: Literal["torus", "switch"]
    size: int
    bandwidth: Figure
    latency: Figure
    wrap: int = 1
    scattered_as_sums: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"network {self.name!r} must join at least 2 devices, got {self.size}")
        if self.wrap < 1:
            raise ValueError(f"network {self.name!r}: wrap must be at least 1, got {self.wrap}")

    def __str__(self) -> str:
        return (
            f"{self.topology} of up to {self.size}, {self.bandwidth.value / 1e9:.4g} GB/s, "
            f"{self.latency.value * 1e6:.3g} us a step"
        )


COMBINE = Figure(
    30 * 2**20 + 7, "assumption: the limit of XLA's GPU compiler, as the file states none"
)


ALONE = Kernels(False, "assumption: products have kernels of their own, as the file does not say")

WHOLE = Block(*[Figure(1, "assumption: nothing is padded, as the file states no block")] * 2)


class Hardware(_Table, frozen=True):
    """One kind of device.

    Attributes:
        name: the kind, or the stem of the user's file.
        description: which product, and what counts as one device.
        memory: bytes that a program can use.
        memory_bandwidth: bytes/s.
        peak_flops: dense FLOP/s by element type: some of bf16, f16, f32, f64, f8, s8.
        efficiency: the fractions of those that large operations reach.
        networks: what joins devices, fastest first.
        matrix_unit: the block that dimensions of matrix products are padded to; 1 by 1, which pads
            nothing, if the file does not state it.
        tile: the tiles in which arrays lie in memory; 1 by 1 if the file does not state it.
        kernels: what the compiler computes in one kernel; each product in one of its own if the
            file does not state it.
        overlapped: kinds of collectives that the compiler lets run beside other work; all, if the
            file does not state it.
        combine: bytes up to which the compiler makes one all_reduce of several.
        clock: cycles/s, of kinds whose compiler estimates cycles; nothing else is priced by it.

    Example:
        >>> load("tpu_v5e").flops("bf16")
        197000000000000.0
    """

    name: str
    description: str
    memory: Figure
    memory_bandwidth: Figure
    peak_flops: dict[str, Figure]
    efficiency: Efficiency
    networks: tuple[Network, ...]
    matrix_unit: Block = WHOLE
    tile: Block = WHOLE
    kernels: Kernels = ALONE
    overlapped: tuple[str, ...] = tuple(COLLECTIVES)
    combine: Figure = COMBINE
    clock: Figure | None = None

    def __post_init__(self) -> None:
        _check_peaks(self.peak_flops)
        for kind in self.overlapped:
            if kind not in COLLECTIVES:
                raise ValueError(
                    f"overlapped has an unknown collective {kind!r}{closest(kind, COLLECTIVES)}; "
                    f"expected some of {', '.join(COLLECTIVES)}"
                )
        _check_networks(self.networks)

    def flops(self, dtype: str) -> float:
        """The dense peak for an element type, in FLOP/s (operations/s for integers).

        A type without a figure of its own takes one from `FALLBACKS`: bf16 and f16 from each
        other or f32, f8 from bf16, f64 from half of f32, integers of up to 8 bits from s8 or
        bf16, wider ones from f32.

        Args:
            dtype: an element type as StableHLO names it: `bf16`, `f8E4M3FN`, `i8`, `ui32`,
                `complex<f32>`.

        Raises:
            HardwareError: `dtype` is no element type.

        Example:
            >>> load("v100").flops("i8")
            62800000000000.0
        """
        peak = _peak_name(dtype)
        if peak in self.peak_flops:
            return self.peak_flops[peak].value
        return next(
            fraction * self.peak_flops[other].value
            for other, fraction in FALLBACKS[peak]
            if other in self.peak_flops
        )

    def __str__(self) -> str:
        peaks = ", ".join(f"{d} {f.value / 1e12:.4g}" for d, f in self.peak_flops.items())
        rows = [
            (
                "memory",
                f"{self.memory.value / 2**30:.4g} GiB, "
                f"{self.memory_bandwidth.value / 1e9:.4g} GB/s ({self.efficiency.memory.value:.0%} "
                "reached)",
            ),
            (
                "peak",
                f"{peaks} TFLOP/s ({self.efficiency.matmul.value:.0%} reached by large matmuls)",
            ),
            *((network.name, str(network)) for network in self.networks),
        ]
        width = max(len(label) for label, _ in rows)
        lines = [f"{self.name}: {self.description}"]
        return "\n".join([*lines, *(f"  {label:<{width}}  {text}" for label, text in rows)])


def kinds() -> tuple[str, ...]:
    """The kinds of device that partita knows, sorted by name.

    Example:
        >>> "tpu_v5e" in kinds()
        True
    """
    return tuple(sorted(Path(e.name).stem for e in KINDS.iterdir() if e.name.endswith(".toml")))


def kind_of(device_kind: str) -> str | None:
    """The kind that JAX's `device_kind` names, one of `kinds()`; None if there is no such file.

    Example:
        >>> kind_of("TPU v5 lite")
        'tpu_v5e'
    """
    return next((n for p, n in DEVICE_KINDS if re.search(p, device_kind, re.IGNORECASE)), None)


def load(name_or_path: str | os.PathLike[str] | Hardware) -> Hardware:
    """The hardware of a known kind, or of a TOML file that the user wrote.

    Args:
        name_or_path: one of `kinds()`; a path that ends in `.toml`; or a `Hardware`, which is
            returned as it is.

    Raises:
        HardwareError: an unknown kind, or a file that is missing, not TOML, or not of the form
            described in this module.

    Example:
        >>> load("tpu_v5e").memory.value  # bytes
        16911433728.0
    """
    if isinstance(name_or_path, Hardware):
        return name_or_path
    name = os.fspath(name_or_path)
    if name.endswith(".toml"):
        return _load_file(Path(name))
    if name not in kinds():
        raise HardwareError(
            f"unknown hardware kind {name!r}{closest(name, kinds())}\n"
            f"known kinds: {', '.join(kinds())}\n"
            "a path ending in .toml, to a file of your own, also works"
        )
    file = KINDS.joinpath(f"{name}.toml")
    return decode(file.read_text("utf-8"), name, where=str(file))


def _load_file(path: Path) -> Hardware:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise HardwareError(f"cannot read the hardware file {str(path)!r}: {reason}") from error
    except UnicodeDecodeError as error:
        raise HardwareError(
            f"the hardware file {str(path)!r} is not UTF-8 text: {error}"
        ) from error
    return decode(text, path.stem, where=str(path))


def decode(text: str, name: str, where: str) -> Hardware:
    """The hardware that the text of a file describes.

    Args:
        text: TOML.
        name: what to call it.
        where: the file is, for messages.

    Raises:
        HardwareError: it is not TOML, or not of the form described in this module.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"the hardware file {where!r} is not valid TOML: {error}") from error
    if "name" in table:
        raise HardwareError(
            f"the hardware file {where!r} has a field `name`; remove it, the file name is the name"
        )
    try:
        return msgspec.convert({"name": name, **table}, Hardware)
    except msgspec.ValidationError as error:
        problem = _with_dtype(str(error), table).replace("`$.", "`")
        raise HardwareError(f"the hardware file {where!r} is not valid: {problem}") from error


def _with_dtype(problem: str, table: dict[str, Any]) -> str:
    """`problem` with the element type it is about, which msgspec writes as `[...]`."""
    if "$.peak_flops[...]" not in problem:
        return problem
    for dtype, figure in table["peak_flops"].items():
        try:
            msgspec.convert(figure, Figure)
        except msgspec.ValidationError:
            return problem.replace("[...]", f".{dtype}")
    return problem


def _check_peaks(peaks: dict[str, Figure]) -> None:
    for dtype in peaks:
        if dtype not in FALLBACKS:
            raise ValueError(
                f"peak_flops has an unknown element type {dtype!r}; expected some of "
                f"{', '.join(FALLBACKS)}"
            )
    if not any(dtype in peaks for dtype in BASE_DTYPES):
        raise ValueError(f"peak_flops must state one of {', '.join(BASE_DTYPES)}")


def _check_networks(networks: tuple[Network, ...]) -> None:
    if not networks:
        raise ValueError("networks must list at least one network")
    names = [network.name for network in networks]
    if len(set(names)) != len(names):
        raise ValueError(f"networks has two of the same name: {', '.join(names)}")
    for fast, slow in itertools.pairwise(networks):
        if fast.bandwidth.value < slow.bandwidth.value:
            raise ValueError(
                f"networks must be listed fastest first, but {slow.name!r} is faster than "
                f"{fast.name!r}"
            )


def _peak_name(dtype: str) -> str:
    if dtype in FALLBACKS:
        return dtype
    for pattern, peak in PEAK_OF:
        if re.fullmatch(pattern, dtype):
            return peak
    raise HardwareError(
        f"unknown element type {dtype!r}; expected a StableHLO name such as bf16, f32, f8E4M3FN, "
        "i8 or complex<f32>"
    )
