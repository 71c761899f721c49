"""Constants of hardware files, fitted to measured times.

The fit minimises the relative error, so that small and large operations count alike. It takes the
absolute value rather than the square, because single times are far off, always to the slow side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize, nnls

from partita.program.collectives import COLLECTIVES

_ROUNDS = 60
"""Rounds of reweighting that turn least squares into least absolute values."""
_CLOSE = 0.01
"""Relative errors below this count as none."""
_LEAST = 1e-15
"""Seconds per byte below which a figure counts as zero."""
_SHORTEST = 1e-9
"""Seconds below which a figure counts as zero."""
_SIZES_OF_CHANNELS = 8
"""Number of payload sizes needed to find up to which one few channels are used."""


@dataclasses.dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective that was timed."""

    kind: str
    devices: int
    """Devices in a group."""
    bytes: int
    """Payload in bytes on each device, the larger of operand and result."""
    seconds: float

    @property
    def sent(self) -> float:
        """Bytes that each device sends."""
        return COLLECTIVES[self.kind].sent(self.bytes, self.devices)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedProduct:
    """A product of `m` by `k` with `k` by `n`, or a batch of them, that was timed."""

    batch: int
    m: int
    n: int
    k: int
    bytes: int
    """Bytes that it reads and writes."""
    seconds: float

    @property
    def flops(self) -> float:
        """Floating-point operations; a multiplication and an addition count as two."""
        return 2.0 * self.batch * self.m * self.n * self.k


def fit_collective(rows: Sequence[TimedCollective]) -> dict[str, float]:
    """Fits the figures of a `CollectiveTime`, by name, for one kind of collective.

    It leaves out figures that the times cannot tell from zero. With groups of one size only, `step`
    and `own` are parts of the others; with few sizes, few channels are those of large chunks.
    """
    permutes = COLLECTIVES[rows[0].kind].travel == "neighbour"
    if permutes and len({row.bytes for row in rows}) >= _SIZES_OF_CHANNELS:
        return _fit_permutation(rows)
    sent = np.array([row.sent for row in rows])
    columns = {"start": np.ones(len(rows)), "per_byte": sent, "chunks": np.sqrt(sent)}
    if len({row.devices for row in rows}) > 1 and not permutes:
        columns["step"] = np.array([row.devices - 1.0 for row in rows])
        columns["per_own_byte"] = np.array([row.bytes / row.devices for row in rows])
    found = _least(columns, np.array([row.seconds for row in rows]))
    per_byte = max(found["per_byte"], _LEAST)
    made = {"start": max(found["start"], _SHORTEST), "bandwidth": 1 / per_byte}
    if found.get("step", 0.0) > _SHORTEST:
        made["step"] = found["step"]
    if found.get("per_own_byte", 0.0) > _LEAST:
        made["own"] = 1 / found["per_own_byte"]
    chunk = found["chunks"] ** 2 / 4 / per_byte
    if chunk > _SHORTEST:
        made["chunk"] = chunk
    return made


def _fit_permutation(rows: Sequence[TimedCollective]) -> dict[str, float]:
    """Fits the figures of a permutation: few channels up to a size, all of them beyond."""
    sent, seconds = (np.array([getattr(r, f) for r in rows]) for f in ("bytes", "seconds"))

    def predicted(figures: np.ndarray) -> np.ndarray:
        start, bandwidth, narrow, most = np.exp(figures)
        made: np.ndarray = start + np.maximum(sent / bandwidth, np.minimum(sent, most) / narrow)
        return made

    large = int(np.argmax(sent))
    bandwidth = sent[large] / seconds[large]
    starts = [
        (seconds.min(), bandwidth, bandwidth / slower, float(most))
        for slower in (1.5, 4.0, 16.0)
        for most in np.unique(sent)[1:-1:2]
    ]
    names = ("start", "bandwidth", "narrow", "narrow_bytes")
    found = dict(zip(names, _search(predicted, seconds, starts), strict=True))
    found["start"] = max(found["start"], _SHORTEST)
    if found["narrow"] >= found["bandwidth"]:  # then it makes no difference
        del found["narrow"], found["narrow_bytes"]
    return found


def fit_products(rows: Sequence[TimedProduct], bandwidth: float) -> dict[str, float]:
    """Fits `start` and `ramp` of `Products`, and the `rate` in FLOP/s that large products reach.

    Args:
      rows: products that were timed.
      bandwidth: bytes/s that kernels read and write.
    """
    flops, k, moved, seconds = (
        np.array([getattr(row, field) for row in rows], dtype=float)
        for field in ("flops", "k", "bytes", "seconds")
    )

    def predicted(figures: np.ndarray) -> np.ndarray:
        start, ramp, rate = np.exp(figures)
        made: np.ndarray = start + np.maximum(flops * (1 + ramp / k) / rate, moved / bandwidth)
        return made

    rate = float((flops / seconds).max())
    starts = [(float(seconds.min()), ramp, rate) for ramp in (10.0, 50.0, 200.0)]
    return dict(zip(("start", "ramp", "rate"), _search(predicted, seconds, starts), strict=True))


def _least(columns: dict[str, np.ndarray], seconds: np.ndarray) -> dict[str, float]:
    """Returns coefficients of at least zero with which the columns sum up to the times."""
    relative = np.stack(list(columns.values()), axis=1) / seconds[:, None]
    weights = np.ones(len(seconds))
    found = np.zeros(len(columns))
    for _ in range(_ROUNDS):
        found, _ = nnls(relative * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(relative @ found - 1), _CLOSE))
    return dict(zip(columns, map(float, found), strict=True))


def _search(
    predicted: Callable[[np.ndarray], np.ndarray],
    seconds: np.ndarray,
    starts: Sequence[tuple[float, ...]],
) -> list[float]:
    """Returns the figures whose predictions, from their logarithms, are closest to the times."""

    def error(figures: np.ndarray) -> float:
        return float(np.abs(np.log(predicted(figures) / seconds)).mean())

    tried = (
        minimize(error, np.log(start), method="Nelder-Mead", options={"maxiter": 4000})
        for start in starts
    )
    best = min(tried, key=lambda result: float(result.fun))
    return [float(figure) for figure in np.exp(best.x)]
