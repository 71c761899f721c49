"""Plans compiled for the host devices of this process, which stand for any device type."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import ClassVar, Self

import jax
import numpy as np

from partita.errors import MeshError
from partita.mesh import Mesh
from partita.spmd import SpmdProgram
from partita.verify.backends.protocol import Backend
from partita.verify.comparison import Becomes
from partita.verify.compile import Options
from partita.verify.host_rewrites import HOST_REWRITES, on_host, widening

MOST_DEVICES = 2048
"""Host devices that a process may be given; more take minutes to make."""

# How well code is generated takes most of the time, and changes neither buffers nor collectives.
_QUICKLY: Options = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}


@dataclasses.dataclass(frozen=True)
class Host(Backend):
    """XLA for CPUs. It keeps loops as loops, and all but a few collectives as they are."""

    spelling: ClassVar[str] = "host for the host devices of this process"
    counts_executions: ClassVar[bool] = False
    keeps_collectives: ClassVar[bool] = True
    rewrites: ClassVar[Mapping[str, str]] = HOST_REWRITES
    widening_note: ClassVar[str] = (
        "A host computes bfloat16 in float32, float8 and float4 in float16 (float8_e8m0fnu in "
        "float32), and int4 in int8; such collectives are listed with the bytes of the wider type."
    )

    @classmethod
    def of(cls, topology: str | None) -> Self | None:
        """Returns this backend for no topology, or for one called `host`."""
        return cls(None) if topology in (None, "host") else None

    @property
    def target(self) -> str:
        """Name of the compilation target."""
        return "host devices"

    def prepare(self, devices: int) -> None:
        """Gives this process at least `devices` host devices, if JAX has not created them yet.

        A larger count that the user has set in `XLA_FLAGS` is kept.
        """
        if devices > MOST_DEVICES:
            raise MeshError(
                f"{devices} host devices are too many, {MOST_DEVICES} the most that can be had; "
                "say topology=... to compile for other devices, or verify a smaller mesh"
            )
        name = "--xla_force_host_platform_device_count"
        flags = os.environ.get("XLA_FLAGS", "").split()
        given = [flag for flag in flags if flag.startswith(f"{name}=")]
        counts = [flag.partition("=")[2] for flag in given]
        wanted = max([devices, *(int(count) for count in counts if count.isdecimal())])
        kept = [flag for flag in flags if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([*kept, f"{name}={wanted}"])

    def device_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """A mesh of host devices; raises `MeshError` if this process has too few."""
        devices = jax.devices("cpu")
        if len(devices) < mesh.devices:
            raise MeshError(
                f"mesh {mesh} needs {mesh.devices} host devices, this process has {len(devices)}; "
                f"set XLA_FLAGS=--xla_force_host_platform_device_count={mesh.devices} before it "
                "starts, or say topology=... to compile for other devices"
            )
        grid = np.array(devices[: mesh.devices]).reshape(mesh.sizes)
        return jax.sharding.Mesh(grid, mesh.names)

    def options(self, *, windowed_einsum: bool = False, combine: bool = True) -> Options:
        """To compile quickly."""
        return dict(_QUICKLY)

    def widening(self, dtype: str) -> int:
        """A host has no arithmetic for some types of 4, 8 and 16 bits, and moves wider ones."""
        return widening(dtype)

    def known_rewrites(self, spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
        """Returns the rewrites that `partita.verify.host_rewrites` documents."""
        return on_host(spmd)


BACKEND = Host
