"""`python -m tools.gpu.fit`: the figures of GPUs' hardware files, fitted to measured times.

Of every series of sizes, each third is kept aside: the errors that are printed are of those alone.
They are predicted from the hardware file as it is, and once more without what it states of products
and of kinds of collectives, so from datasheets; beside that stand the figures that the other two
thirds give, which are those of the file.

    python -m tools.gpu.fit                                 # the tables in this folder
    python -m tools.gpu.fit --collectives a.csv --products b.csv   # others of the same form
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from partita.cost import Hardware, interconnect, load
from partita.cost.devices.fitting import TimedCollective, TimedProduct, fit_collective, fit_products
from partita.mesh import Mesh
from partita.text import seconds as in_seconds

FOLDER = Path(__file__).parent
MEASURED_AS = {"h100": "sm_90", "b200": "sm_100_B200", "gb200": "sm_100_GB200"}
"""What the collectives of device types were measured on; H200 has the board of H100."""
PRODUCTS_AS = {"h100": "sm_90", "b200": "sm_100_B200"}
PATTERN = "ring"
"""Of permutations: every device sends to the next, as halos and pipelines do."""
WIDTHS = {"bf16": 2, "f32": 4}
ASIDE = 3
"""One row of so many is kept aside."""

Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True)
class Errors:
    """Relative errors of predictions of rows that were kept aside."""

    mean: float
    median: float
    worst: float

    def __str__(self) -> str:
        return f"{self.mean:.0%} / {self.median:.0%} / {self.worst:.0%}"


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Errors of predictions of these times."""
    off = np.abs(np.array(predicted) / np.array(measured) - 1)
    return Errors(float(off.mean()), float(np.median(off)), float(off.max()))


def split(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to fit, and every third, which is kept aside."""
    listed = list(rows)
    aside = [row for number, row in enumerate(listed) if number % ASIDE == ASIDE - 1]
    return [row for number, row in enumerate(listed) if number % ASIDE != ASIDE - 1], aside


def collectives(path: Path, target: str) -> dict[str, list[list[TimedCollective]]]:
    """Of every kind, a series by size for each number of devices."""
    found: dict[tuple[str, int], list[TimedCollective]] = {}
    for row in _read(path):
        if row["target"] == target and row["pattern"] in ("", PATTERN):
            timed = TimedCollective(
                row["kind"], int(row["devices"]), int(row["bytes"]), float(row["seconds"])
            )
            found.setdefault((timed.kind, timed.devices), []).append(timed)
    kinds: dict[str, list[list[TimedCollective]]] = {}
    for (kind, _), series in found.items():
        kinds.setdefault(kind, []).append(sorted(series, key=lambda row: row.bytes))
    return kinds


def products(path: Path, target: str, dtype: str) -> list[TimedProduct]:
    """Products of one element type, in order of their sizes."""
    rows = []
    for row in _read(path):
        if (row["target"], row["type"]) == (target, dtype):
            batch, m, n, k = (int(row[field]) for field in ("batch", "m", "n", "k"))
            moved = WIDTHS[dtype] * batch * (m * k + k * n + m * n)
            rows.append(TimedProduct(batch, m, n, k, moved, float(row["seconds"])))
    return sorted(rows, key=lambda row: (row.batch, row.m, row.n, row.k))


def from_datasheets(hardware: Hardware) -> Hardware:
    """A device type without what its file states of products and kinds of collectives."""
    networks = tuple(msgspec.structs.replace(net, collectives={}) for net in hardware.networks)
    return msgspec.structs.replace(hardware, networks=networks, products=None)


def collective_times(hardware: Hardware, rows: Sequence[TimedCollective]) -> list[float]:
    """What the cost model predicts."""
    return [
        interconnect(Mesh(("x",), (row.devices,)), hardware).collective_seconds(
            row.kind, (0,), row.bytes
        )
        for row in rows
    ]


def product_times(hardware: Hardware, rows: Sequence[TimedProduct], dtype: str) -> list[float]:
    """What the cost model predicts of sizes that are multiples of the matrix unit."""
    efficiency, stated = hardware.efficiency, hardware.products
    reached = (efficiency.matmul_f32 if dtype == "f32" else None) or efficiency.matmul
    rate = hardware.flops(dtype) * reached.value
    start, ramp = (stated.start.value, stated.ramp.value) if stated else (0.0, 0.0)
    return [
        start + max(row.flops * (1 + ramp / row.k) / rate, row.bytes / _bandwidth(hardware))
        for row in rows
    ]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--collectives", type=Path, default=FOLDER / "collectives.csv")
    parser.add_argument("--products", type=Path, default=FOLDER / "products.csv")
    arguments = parser.parse_args()
    console = Console(width=200)
    console.print(collectives_table(arguments.collectives))
    console.print(products_table(arguments.products))


def collectives_table(path: Path) -> Table:
    """Every kind of collective on every device type."""
    table = _table("collective")
    for name, target in MEASURED_AS.items():
        hardware = load(name)
        for kind, series in collectives(path, target).items():
            parts = [split(rows) for rows in series]
            fitted = fit_collective([row for used, _ in parts for row in used])
            aside = [row for _, kept in parts for row in kept]
            measured = [row.seconds for row in aside]
            table.add_row(
                name,
                kind,
                str(len(aside)),
                *(
                    str(errors(collective_times(each, aside), measured))
                    for each in (from_datasheets(hardware), hardware)
                ),
                _told(fitted),
            )
        table.add_section()
    return table


def products_table(path: Path) -> Table:
    """Products of every element type on every device type."""
    table = _table("product")
    for name, target in PRODUCTS_AS.items():
        hardware = load(name)
        for dtype in WIDTHS:
            used, aside = split(products(path, target, dtype))
            fitted = fit_products(used, _bandwidth(hardware))
            fitted["reached"] = fitted.pop("rate") / hardware.flops(dtype)
            measured = [row.seconds for row in aside]
            table.add_row(
                name,
                dtype,
                str(len(aside)),
                *(
                    str(errors(product_times(each, aside, dtype), measured))
                    for each in (from_datasheets(hardware), hardware)
                ),
                _told(fitted),
            )
        table.add_section()
    return table


def _table(what: str) -> Table:
    of = "mean / median / worst error"
    return Table("device", what, "aside", f"datasheets: {of}", f"file: {of}", "fitted to the rest")


def _told(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {_figure(name, value)}" for name, value in figures.items())


def _figure(name: str, value: float) -> str:
    if name in ("start", "step", "chunk"):
        return in_seconds(value)
    return f"{value / 1e9:.3g} GB/s" if name in ("bandwidth", "own", "narrow") else f"{value:.3g}"


def _bandwidth(hardware: Hardware) -> float:
    return hardware.memory_bandwidth.value * hardware.efficiency.memory.value


def _read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


if __name__ == "__main__":
    main()
