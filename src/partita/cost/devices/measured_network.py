"""Measured speed of the network between devices: timed collectives of several sizes and groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scipy.optimize import nnls

from partita.cost.devices.fitting import TimedCollective
from partita.cost.devices.stopwatch import Budget, best_of
from partita.program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    COLLECTIVES,
    REDUCE_SCATTER,
)

SIZES = (2**14, 2**18, 2**22, 2**24)
"""Payloads in bytes."""

_Body = Callable[[Any, int], Any]
_BODIES: dict[str, _Body] = {
    ALL_GATHER.name: lambda x, n: jax.lax.all_gather(x, "x", tiled=True),
    ALL_REDUCE.name: lambda x, n: jax.lax.psum(x, "x"),
    REDUCE_SCATTER.name: lambda x, n: jax.lax.psum_scatter(x, "x", tiled=True),
    ALL_TO_ALL.name: lambda x, n: jax.lax.all_to_all(x, "x", 0, 0, tiled=True),
    COLLECTIVE_PERMUTE.name: lambda x, n: jax.lax.ppermute(
        x, "x", [(place, (place + 1) % n) for place in range(n)]
    ),
}
"""Bodies of the collectives, run by each device in a group of n along x."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Latency and bandwidth of the network that joins the devices."""

    topology: Literal["torus", "switch"]
    devices: int
    bandwidth: float
    """Bandwidth in bytes/s."""
    latency: float
    """Latency in seconds."""


def timed(devices: Sequence[Any], budget: Budget) -> list[TimedCollective]:
    """Times collectives over all devices. Through a switch it times every kind, also over groups of
    2, 4 and so on, all groups at once."""
    n = len(devices)
    groups = [2**power for power in range(1, n.bit_length()) if n % 2**power == 0 and 2**power < n]
    kinds: Sequence[str] = tuple(_BODIES)
    if topology(devices) == "torus":
        groups, kinds = [], [kind for kind in kinds if COLLECTIVES[kind].replicates]
    return [
        TimedCollective(kind, group, size, best_of(_collective(devices, kind, group, size), budget))
        for kind in kinds
        for group in (*groups, n)
        for size in SIZES
    ]


def topology(devices: Sequence[Any]) -> Literal["torus", "switch"]:
    """Returns the topology that joins such devices."""
    return "torus" if devices[0].platform == "tpu" else "switch"


def network(devices: Sequence[Any], rows: Sequence[TimedCollective]) -> Fit:
    """Fits bandwidth and latency to the times of all_gathers and all_reduces over all devices.

    The model is that of the cost of a collective. On a ring of n devices, an all_gather to S bytes
    takes (n-1)/n S / bandwidth and as many latencies as there are steps; an all_reduce twice that.
    """
    n, kind = len(devices), topology(devices)
    hops = n / 2 if kind == "torus" else n - 1
    used = [row for row in rows if COLLECTIVES[row.kind].replicates and row.devices == n]
    matrix = np.array([[row.sent, COLLECTIVES[row.kind].passes * hops] for row in used])
    # Small and large collectives count alike: what is fitted is the relative error.
    weighted = matrix / np.array([row.seconds for row in used])[:, None]
    (per_byte, latency), _ = nnls(weighted, np.ones(len(used)))
    return Fit(kind, n, 1 / max(float(per_byte), 1e-15), max(float(latency), 1e-9))


def _collective(devices: Sequence[Any], kind: str, group: int, size: int) -> Callable[[], Any]:
    """Returns a collective with `size` bytes of payload on each device, in all groups at once."""
    mesh = jax.sharding.Mesh(np.array(devices).reshape(-1, group), ("groups", "x"))
    split = PartitionSpec(("groups", "x"))
    count = size // 4 // group * group
    local = count // group if kind == ALL_GATHER.name else count
    mapped = jax.shard_map(
        lambda x: _BODIES[kind](x, group),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
        check_vma=False,
    )
    ones = jnp.ones(local * len(devices), jnp.float32)
    array = jax.device_put(ones, NamedSharding(mesh, split))
    run = jax.jit(mapped)
    return lambda: run(array)
