"""`python -m tools.accuracy.rates v5e:2x2`: what a compiler thinks single operations take.

Every operation is compiled by itself for one device of the topology, and the compiler's estimate of
its cycles is put beside the roofline. The efficiencies of the TPUs' hardware files are from here.

Copies are left out, where they are not what it is about: they give the arguments and results of so
small a program their layouts. Two
peculiarities of the estimate show, which no hardware file takes over: a kernel that computes in
float32 and writes something narrower, or reduces, is charged for one more float32 array in memory;
and the loop over the rows of a gather or scatter is counted as if it ran once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.table import Table

from partita.cost import Hardware, load
from partita.errors import HardwareError
from partita.mesh import Mesh
from partita.verify.backends import Backend, backend_for
from partita.verify.hlo import HloModule, parse
from partita.verify.loops import executions

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation."""

    figure: str
    """What it says something about: a figure of the hardware file."""
    name: str
    fn: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], ...]
    """Element type and sizes of each."""
    bytes: int
    """That it must read and write."""
    flops: int = 0
    copies: bool = False
    """Whether it is about copies."""

    def ideal(self, hardware: Hardware) -> float:
        """Seconds at the peaks."""
        moving = self.bytes / hardware.memory_bandwidth.value
        if not self.flops:
            return moving
        return max(self.flops / hardware.flops(_short(self.arguments[0][0])), moving)


def cases() -> Iterator[Case]:
    """The operations, by the figure that they are about."""
    yield _product("matmul", 4096, 4096, 4096)
    yield _product("matmul", 8192, 8192, 8192)
    yield _product("matmul", 4096, 4096, 4096, dtype=F32)
    for inner in (2048, 2049, 2176, 2304):
        yield _product("matrix_unit", 4096, inner, 4096)
    for rows in (8, 128, 320):
        yield _product("matrix_unit", rows, 8192, 8192)
    for inner in (64, 512):
        yield _product("matrix_unit", 8192, inner, 8192, dtype=F32)
    for inner, columns in ((64, 1024), (1024, 64)):
        yield _product("matrix_unit", 1024, inner, columns, batch=128)
    for dtype in (F32, BF16, jnp.int8):
        yield _copy(8, dtype)
    for rows in (4, 2):
        yield _copy(rows, BF16)
    for dtype in (F32, BF16):
        yield _product("vector_unit", 1, 8192, 8192, dtype=dtype)
    yield _product("vector_unit", 1, 128, 2048, batch=256)
    for rows, dtype in ((2**10, F32), (2**16, F32), (2**18, F32), (2**16, BF16)):
        yield _stream(f"scale {_show(dtype, rows, 1024)}", _scaled, rows, dtype, 2)
    yield _stream("sum over the minor dimension", lambda x: _scaled(x).sum(1), 2**16, F32, 1)
    yield _stream("sum over the major dimension", lambda x: _scaled(x).sum(0), 2**16, F32, 1)
    yield _stream("softmax", lambda x: jax.nn.softmax(x), 2**16, F32, 2)
    for width in (32, 64, 128, 1024):
        yield _gather(2**15, width, 2**13)
        yield _scatter(2**15, width, 2**13)
    yield from _convolutions("stem", 224, 3, 64, window=7, stride=2, way_back=False)
    yield from _convolutions("3x3", 56, 64, 64)
    yield from _convolutions("3x3", 28, 256, 256)
    yield from _convolutions("3x3", 32, 320, 320)
    yield from _convolutions("3x3", 32, 640, 640)
    yield from _convolutions("depthwise", 28, 384, 384, window=7, groups=384, way_back=False)


def _scaled(x: Any) -> Any:
    return 2 * x + 1


def _short(dtype: Any) -> str:
    """The name of a floating type in StableHLO."""
    return str(jnp.dtype(dtype)).replace("float", "f")


def _show(dtype: Any, *shape: int) -> str:
    return f"{_short(dtype)}[{','.join(map(str, shape))}]"


def _product(
    figure: str, rows: int, inner: int, columns: int, batch: int = 1, dtype: Any = BF16
) -> Case:
    left, right = (batch, rows, inner), (batch, inner, columns)
    elements = batch * (rows * inner + inner * columns + rows * columns)
    return Case(
        figure,
        f"{_show(dtype, *left)} @ [{inner},{columns}]",
        lambda a, b: a @ b,
        ((dtype, *left), (dtype, *right)),
        elements * jnp.dtype(dtype).itemsize,
        2 * batch * rows * inner * columns,
    )


def _stream(name: str, fn: Callable[..., Any], rows: int, dtype: Any, passes: int) -> Case:
    """Something that reads, or reads and writes, an array of 1024 columns."""
    moved = passes * rows * 1024 * jnp.dtype(dtype).itemsize
    return Case("memory", name, fn, ((dtype, rows, 1024),), moved)


def _copy(rows: int, dtype: Any) -> Case:
    """An array in tiles of so many rows that is brought into another order."""
    shape = (64, 2**13 // rows, rows, 128)
    elements = math.prod(shape)
    return Case(
        "vector_unit",
        f"copy {_show(dtype, *shape)}",
        lambda x: jnp.swapaxes(x, 0, 1),
        ((dtype, *shape),),
        2 * elements * jnp.dtype(dtype).itemsize,
        copies=True,
    )


def _gather(table: int, width: int, rows: int) -> Case:
    types = ((F32, table, width), (I32, rows))
    return Case(
        "gather",
        f"{rows} rows of {_show(F32, table, width)}",
        lambda x, i: x[i],
        types,
        2 * 4 * rows * width,
    )


def _scatter(table: int, width: int, rows: int) -> Case:
    types = ((F32, table, width), (I32, rows), (F32, rows, width))
    return Case(
        "gather",
        f"{rows} rows added into {_show(F32, table, width)}",
        lambda x, i, u: x.at[i].add(u),
        types,
        4 * width * 3 * rows,
    )


def _convolutions(
    name: str,
    side: int,
    channels: int,
    features: int,
    *,
    window: int = 3,
    stride: int = 1,
    groups: int = 1,
    way_back: bool = True,
) -> Iterator[Case]:
    """A convolution of 32 images, and the gradients of its kernel and of the images."""
    images, out = 32, side // stride
    x = (BF16, images, side, side, channels)
    w = (BF16, window, window, channels // groups, features)
    y = (BF16, images, out, out, features)
    elements = sum(math.prod(sizes) for _, *sizes in (x, w, y))
    flops = 2 * images * out**2 * math.prod(w[1:])

    def forward(x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        strides = (stride, stride)
        return lax.conv_general_dilated(
            x, w, strides, "SAME", dimension_numbers=names, feature_group_count=groups
        )

    def gradient(of: int) -> Callable[..., Any]:
        return lambda x, w, y: jax.vjp(forward, x, w)[1](y)[of]

    name = f"{name}, {side}x{side}, {channels} to {features}"
    yield Case("convolution", name, forward, (x, w), 2 * elements, flops)
    if way_back:
        yield Case("convolution", f"{name}, kernel", gradient(1), (x, w, y), 2 * elements, flops)
        yield Case("convolution", f"{name}, images", gradient(0), (x, w, y), 2 * elements, flops)


def compiled_seconds(case: Case, backend: Backend, device: Any, hardware: Hardware) -> float:
    """What the compiler estimates for a program on this device alone; 0 if it does not say."""
    assert hardware.clock is not None
    place = SingleDeviceSharding(device)
    types = [jax.ShapeDtypeStruct(s, dtype, sharding=place) for dtype, *s in case.arguments]
    lowered = jax.jit(case.fn, out_shardings=place).lower(*types)
    module = parse(backend.compile(lowered, {}).text)
    if not case.copies:
        module = _without_copies(module)
    return backend.cycles(module, executions(module)) / hardware.clock.value


def _without_copies(module: HloModule) -> HloModule:
    computations = {
        name: dataclasses.replace(
            each,
            instructions={key: i for key, i in each.instructions.items() if i.opcode != "copy"},
        )
        for name, each in module.computations.items()
    }
    return dataclasses.replace(module, computations=computations)


def main(topology: str) -> None:
    """Prints a row for each operation.

    Raises:
      HardwareError: no hardware file is of such a topology, or it has no `clock`.
      VerifyError: there is no such topology, or no compiler for it.
    """
    backend = backend_for(topology)
    hardware = load(backend.device_type) if backend.device_type else None
    sides = topology.partition(":")[2]
    if hardware is None or hardware.clock is None or not sides:
        raise HardwareError(
            f"no hardware file with a clock is of topology {topology!r}; expected such as v5e:2x2"
        )
    devices = math.prod(int(side) for side in sides.split("x") if side.isdigit())
    device = backend.device_mesh(Mesh(("device",), (devices,))).devices.flat[0]
    table = Table(box=None, pad_edge=False)
    for column in ("figure", "operation", "ideal (us)", "compiler (us)", "reached"):
        table.add_column(column, justify="left" if column in ("figure", "operation") else "right")
    for case in cases():
        ideal, seconds = case.ideal(hardware), compiled_seconds(case, backend, device, hardware)
        reached = f"{ideal / seconds:.3f}" if seconds else "-"
        row = (case.figure, case.name, f"{ideal * 1e6:.1f}", f"{seconds * 1e6:.1f}", reached)
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


if __name__ == "__main__":
    main(*sys.argv[1:])
