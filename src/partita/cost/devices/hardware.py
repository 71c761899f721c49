"""Hardware as data: what one device can do, and the networks that join devices.

A device type is a TOML file of the form that these tables declare. Every figure carries its source:
the vendor's document, or `assumption: ...` where there is no public figure.

The units are bytes, seconds, bytes/s and FLOP/s (operations/s for integers). Peaks are dense and
at XLA's default precision, so a float32 peak is that of TF32 on recent GPUs.
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Literal

from partita.cost.devices.network import Network
from partita.cost.devices.schema import (
    Bytes,
    BytesPerSecond,
    Figure,
    Fraction,
    Seconds,
    Table,
    check_count,
    unit,
)
from partita.errors import HardwareError, closest
from partita.escape import printed
from partita.program.collectives import ALL_REDUCE
from partita.spmd import COLLECTIVES
from partita.text import MOST_BYTES

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


Peak = Annotated[Figure, unit("FLOP/s")]


class Efficiency(Table, frozen=True):
    """The fractions of peak FLOP/s and of memory bandwidth that large operations reach (0..1].

    Attributes:
        matmul: of the peak, by matrix products that fill the matrix units.
        memory: of the bandwidth, by what streams through memory.
        gather: of the bandwidth, by the rows that gathers and scatters move; as `memory` if the
            file does not state it.
        convolution: of the peak, by convolutions that fill the matrix units; as `matmul` if the
            file does not state it.
        matmul_f32: of the peak, by matrix products of float32; as `matmul` if the file does not
            state it.
    """

    matmul: Fraction
    memory: Fraction
    gather: Fraction | None = None
    convolution: Fraction | None = None
    matmul_f32: Fraction | None = None

    def __post_init__(self) -> None:
        for name, figure in self.stated().items():
            if figure.value > 1:
                raise ValueError(f"{name} is a fraction of the peak, at most 1, got {figure.value}")

    def stated(self) -> dict[str, Figure]:
        """Returns the stated figures, by name."""
        figures = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: figure for name, figure in figures.items() if figure is not None}


class TileShape(Table, frozen=True):
    """Rows and columns of a tile; an array that does not fill its last tiles is padded.

    Of a matrix unit, the tile that it works on: what small matrix products leave of it is idle.
    What a product contracts is padded to a multiple of `rows`, and one side of its result, or the
    features of a convolution, to a multiple of `columns`.

    Of memory, the tile in which arrays are stored there: one dimension is padded to a multiple of
    `columns`, another to a multiple of `rows`, or to a power of two if it is smaller.
    """

    rows: Annotated[Figure, unit("")]
    columns: Annotated[Figure, unit("")]

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            check_count(f"{name} of a tile", getattr(self, name))


class Products(Table, frozen=True):
    """Overhead of matrix products on top of their multiplications.

    A product of m by k with k by n takes `start + 2 m n (k + ramp) / rate`.

    Attributes:
        start: seconds that any product takes, the launch of its kernel included.
        ramp: elements of the contracted dimension that would take as long as the start and the end
            of a kernel, in which the matrix units wait for the first tiles and the last are stored.
    """

    start: Seconds
    ramp: Annotated[Figure, unit("elements")]


ROW = Figure(1536, "assumption: that of XLA's TPU compiler, as the file states none")


class Kernels(Table, frozen=True):
    """Operations that the compiler of a device type computes in one kernel.

    Attributes:
        fuse_products: whether kernels of matrix products and convolutions compute the elementwise
            operations before and after them, too.
        source: where that is from.
        not_before_products: elementwise operations, as StableHLO names them, whose results such
            kernels read from memory all the same.
        longest_row: elements of the longest row of a product that such a kernel reduces and goes
            on with, as in a softmax.
        library_products: whether products are calls of a library instead, which reads operands from
            memory, transposed if need be, and adds at most one array to the result.
        scatters_apart: whether every scatter is a kernel of its own, which changes in place what it
            scatters into; what a scatter into zeros is added to is that.
        costly: elementwise operations, as StableHLO names them, that are not computed again in
            every kernel that reads them, whatever storing them moves.
        row_filled: of a row, padded to a power of two, the share that it fills at the least for one
            kernel to compute what is costly, reduce it and go on with both, as in a softmax; any,
            if the file does not state it.
        zeros_first: whether what is made from nothing, and stored, is written first of all, as in
            train steps with loops.
        layers_apart: whether what a loop reads of a stack in a narrower type is converted in the
            loop, and not the whole stack before.
        gathers_outermost: whether stacks are relaid out before loops that gather layers of them
            along any but the outermost dimension.
        late_in_loops: kinds of collectives that reduce what one iteration of a loop makes for a
            stack in the next.
        widens_bf16: whether arithmetic in bfloat16 is done in float32, and what is stored for other
            arithmetic stays so.
        held_longer: of what is alive besides arguments, the share that the compiler's scheduler may
            keep alive at the most above what is counted, to have more to overlap collectives with;
            nothing, if the file does not state it.
    """

    fuse_products: bool
    source: str
    not_before_products: tuple[str, ...] = ()
    longest_row: Annotated[Figure, unit("elements")] = ROW
    library_products: bool = False
    scatters_apart: bool = False
    costly: tuple[str, ...] = ()
    row_filled: Fraction | None = None
    zeros_first: bool = False
    layers_apart: bool = False
    gathers_outermost: bool = False
    late_in_loops: tuple[str, ...] = ()
    widens_bf16: bool = False
    held_longer: Fraction | None = None


class VectorUnit(Table, frozen=True):
    """Speed of copies and small products on vector units that work on tiles of memory.

    Attributes:
        narrowest: bytes; elements that have fewer take as long to copy as if they had so many.
        tile_rows: what a tile takes besides its rows, in rows: an array in tiles of fewer rows has
            more tiles, and takes longer to copy.
        product: elements/s of the larger operand of a product that has a single row on a side,
            which matrix units do not compute.
    """

    narrowest: Bytes
    tile_rows: Annotated[Figure, unit("rows")]
    product: Annotated[Figure, unit("elements/s")]


class XlaTarget(Table, frozen=True):
    """Description of a GPU that is not there, for XLA's GPU compiler.

    Attributes:
        compute_capability: `9.0`, or `9.0a` with the features of that architecture alone.
        multiprocessors: of the GPU.
        fpus: float32 units of a multiprocessor.
        clock: of these, in cycles/s.
        memory: bytes.
        memory_bandwidth: bytes/s.
        l2: bytes of the cache that all multiprocessors share.
        shared_memory: bytes of a multiprocessor.
        shared_memory_of_block: bytes that one block of threads may have.
        source: where those are from.
        pcie_bandwidth: bytes/s to the host; 0 if not known.
        nvlinks: links to other GPUs.
        matrix_units: of a multiprocessor; 0 if not known, and so are the following.
        matrix_clock: in cycles/s.
        bf16_operations: multiplications with additions of a matrix unit in a cycle.
        f8_operations: the same.
    """

    compute_capability: str
    multiprocessors: int
    fpus: int
    clock: float
    memory: int
    memory_bandwidth: float
    l2: int
    shared_memory: int
    shared_memory_of_block: int
    source: str
    pcie_bandwidth: float = 0
    nvlinks: int = 0
    matrix_units: int = 0
    matrix_clock: float = 0
    bf16_operations: int = 0
    f8_operations: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d[af]?", self.compute_capability):
            raise ValueError(
                f"compute_capability must be such as 8.0 or 9.0a, got {self.compute_capability!r}"
            )


PLAIN = "plain"
"""Compiler of hardware files that name none."""

ALONE = Kernels(False, "assumption: products have kernels of their own, as the file does not say")

UNPADDED = TileShape(*[Figure(1, "assumption: nothing is padded, as the file states no tile")] * 2)

COMBINE = Figure(
    30 * 2**20 + 7, "assumption: the limit of XLA's GPU compiler, as the file states none"
)

WINDOW = Figure(48, "assumption: as for the device types that partita knows")

PREFETCH = Figure(2, "assumption: that of XLA's TPU compiler, as the file states none")

HOST = Figure(1.5e10, "assumption: as for TPUs, as the file states none")

LATENCY = Figure(2**16, "assumption: as for the device types that partita knows")


ALL_OF_LOOPS = Figure(1, "assumption: all that an iteration computes, as the file states nothing")

ALL_HIDDEN = Figure(1, "assumption: all that could be hidden, as the file states nothing")

ALL_OF_IT = Figure(1, "assumption: a program can use all of it, as the file does not say")


class Hardware(Table, frozen=True):
    """One device type.

    What its compiler does is in the package `compilers`: the rules of the one that a file names are
    the values of fields that it leaves out. "If the file does not state it" is of `plain`.

    Attributes:
        name: of the device type, or the stem of the user's file.
        description: which product, and what counts as one device.
        compiler: a compiler of `partita.cost.compilers`.
        memory: bytes of a device.
        memory_bandwidth: bytes/s.
        peak_flops: dense FLOP/s by element type: some of bf16, f16, f32, f64, f8, s8.
        efficiency: the fractions of those that large operations reach.
        networks: what joins devices, fastest first.
        matrix_unit: the tile that dimensions of matrix products are padded to; 1 by 1, which pads
            nothing, if the file does not state it.
        launch: seconds that starting a kernel costs, each time; none if the file does not state it.
        products: what products cost besides their multiplications; if the file states it, products
            are not padded to the matrix unit, convolutions alone are.
        tile: the tiles in which memory stores arrays; 1 by 1 if the file does not state it.
        vector_unit: what copies take, of layers out of stacks and back, and products of single
            rows; if the file does not state it, no more than reading and writing them.
        kernels: what the compiler computes in one kernel; each product in one of its own if the
            file does not state it.
        overlapped: kinds of collectives that the compiler lets overlap with other work; all, if
            the file does not state it.
        overlap_window: a collective is hidden if more than this many operations are between the
            moment its operand is ready and the moment its result is needed.
        loop_overlap: of what one iteration of a loop computes and does not depend on a collective
            of the iteration, the share that the compiler overlaps with that collective.
        hidden_share: of the time of collectives that could be hidden, the share that compiled
            schedules do hide; a search counts the rest as exposed.
        prefetch: how many products before its first use what is gathered is on its way.
        regather_window: uses of a value more than this many operations apart are far: where memory
            asks for it, a value is gathered again for uses that are far, or for every use.
        combine: bytes up to which the compiler makes one collective of several.
        combined: kinds of collectives of which it does so.
        latency_bytes: bytes that the networks move in the time that any collective takes: of two
            ways to reshard, the one with a collective more has to save as many.
        host_bandwidth: bytes/s between a device and the memory of its host, each way.
        memory_share: the fraction of `memory` that programs are given, if a user says nothing else.
        clock: cycles/s, where the compiler estimates cycles; no cost depends on it.
        xla_target: what XLA's compiler has to be told to compile for such a device without one;
            None if it needs nothing, or that is not known.
        device_kind: a regular expression that JAX's `device_kind` of such devices matches; empty
            if the file does not say.
        platform: what JAX lowers programs for: tpu, cuda, rocm or cpu; that of the devices at hand
            if the file does not say.
        source: where those of these fields are from that have no source of their own.

    Example:
        >>> from partita.cost import load
        >>> load("tpu_v5e").flops("bf16")
        197000000000000.0
    """

    name: str
    description: str
    memory: Annotated[Figure, unit("bytes", column="memory")]
    memory_bandwidth: Annotated[Figure, unit("bytes/s", column="bandwidth")]
    peak_flops: dict[str, Peak]
    efficiency: Efficiency
    networks: tuple[Network, ...]
    matrix_unit: TileShape = UNPADDED
    launch: Seconds | None = None
    products: Products | None = None
    tile: TileShape = UNPADDED
    kernels: Kernels = ALONE
    overlapped: tuple[str, ...] = tuple(COLLECTIVES)
    overlap_window: Annotated[Figure, unit("operations")] = WINDOW
    prefetch: Annotated[Figure, unit("products")] = PREFETCH
    regather_window: Annotated[Figure, unit("operations")] = WINDOW
    combine: Bytes = COMBINE
    combined: tuple[str, ...] = (ALL_REDUCE.name,)
    latency_bytes: Bytes = LATENCY
    host_bandwidth: BytesPerSecond = HOST
    memory_share: Fraction = ALL_OF_IT
    loop_overlap: Fraction = ALL_OF_LOOPS
    hidden_share: Fraction = ALL_HIDDEN
    vector_unit: VectorUnit | None = None
    clock: Annotated[Figure, unit("cycles/s")] | None = None
    xla_target: XlaTarget | None = None
    device_kind: str = ""
    platform: Literal["tpu", "cuda", "rocm", "cpu", ""] = ""
    compiler: str = PLAIN
    source: str = ""

    def __post_init__(self) -> None:
        _check_peaks(self.peak_flops)
        for name in ("overlap_window", "prefetch", "regather_window", "latency_bytes"):
            check_count(name, getattr(self, name))
        for name in ("overlapped", "combined"):
            _check_kinds(name, getattr(self, name))
        _check_networks(self.networks)
        for name in ("memory_share", "loop_overlap", "hidden_share"):
            if getattr(self, name).value > 1:
                raise ValueError(f"{name} is at most 1, got {getattr(self, name).value}")
        if self.memory.value > MOST_BYTES:
            raise ValueError(f"memory must be at most {MOST_BYTES} bytes, got {self.memory.value}")
        try:
            re.compile(self.device_kind)
        except re.error as error:
            raise ValueError(f"device_kind is not a regular expression: {error}") from error

    @property
    def usable_memory(self) -> int:
        """Bytes that a program can use, if a user says nothing else."""
        return int(self.memory.value * self.memory_share.value)

    def flops(self, dtype: str) -> float:
        """Returns the dense peak for an element type, in FLOP/s (operations/s for integers).

        A type without a figure of its own takes one from `FALLBACKS`: bf16 and f16 from each
        other or f32, f8 from bf16, f64 from half of f32, integers of up to 8 bits from s8 or
        bf16, wider ones from f32.

        Args:
            dtype: an element type as StableHLO names it: `bf16`, `f8E4M3FN`, `i8`, `ui32`,
                `complex<f32>`.

        Raises:
            HardwareError: `dtype` is no element type.

        Example:
            >>> from partita.cost import load
            >>> load("v100").flops("i8")
            62800000000000.0
        """
        peak = peak_name(dtype)
        if peak in self.peak_flops:
            return self.peak_flops[peak].value
        return next(
            fraction * self.peak_flops[other].value
            for other, fraction in FALLBACKS[peak]
            if other in self.peak_flops
        )

    def reached(self, dtype: str, convolution: bool = False) -> float:
        """Returns the FLOP/s that large products or convolutions reach on this element type."""
        stated = self.efficiency.convolution if convolution else None
        if not convolution and peak_name(dtype) == "f32":
            stated = self.efficiency.matmul_f32
        return self.flops(dtype) * (stated or self.efficiency.matmul).value

    @printed
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


def _check_kinds(name: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        if kind not in COLLECTIVES:
            raise ValueError(
                f"{name} has an unknown collective {kind!r}{closest(kind, COLLECTIVES)}; "
                f"expected some of {', '.join(COLLECTIVES)}"
            )


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


def peak_name(dtype: str) -> str:
    """Returns the peak that applies to an element type, as `peak_flops` names it.

    Raises:
        HardwareError: `dtype` is no element type.
    """
    if dtype in FALLBACKS:
        return dtype
    for pattern, peak in PEAK_OF:
        if re.fullmatch(pattern, dtype):
            return peak
    raise HardwareError(
        f"unknown element type {dtype!r}; expected a StableHLO name such as bf16, f32, f8E4M3FN, "
        "i8 or complex<f32>"
    )
