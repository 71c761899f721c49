"""Plans compiled for GPUs that this machine need not have.

A topology is written `h100:8`, or `h100:2x8` for two hosts of eight. JAX's plugin for CUDA compiles
for it; the extra `partita[gpu]` installs that. No GPU and no driver is needed. The compiler reads
the properties of a GPU from its hardware file.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Mapping
from typing import ClassVar, Self

import jax
from jax.experimental import topologies
from jax.stages import Lowered

from partita import cost
from partita.cost.devices.hardware import XlaTarget
from partita.cost.estimate import StepTime
from partita.errors import VerifyError
from partita.mesh import Mesh
from partita.program.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from partita.spmd import SpmdProgram
from partita.verify.backends.protocol import Backend
from partita.verify.collectives import Found
from partita.verify.comparison import Becomes
from partita.verify.compile import Compiled, Options, without_cache
from partita.verify.gpu_rewrites import GPU_REWRITES, on_gpu
from partita.verify.hlo import HloModule
from partita.verify.loops import Executions
from partita.verify.predicted import Predicted
from partita.verify.schedule import scheduled_time

_TOPOLOGY = re.compile(r"(?P<kind>\w+):(?:(?P<hosts>\d+)x)?(?P<devices>\d+)")

# Which kernel of several is quickest can only be measured where there is a GPU. Without, products
# are left to cuBLAS: it is what most of them are given to in the end.
_UNTUNED: Options = {"xla_gpu_enable_triton_gemm": False}
_COMBINERS_OFF: Options = {
    f"xla_gpu_{kind.name}_combine_threshold_bytes": "0"
    for kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
}

_MATRIX_TYPES = {"bf16_operations": (10, 16), "f8_operations": (2, 6, 19, 20, 23, 24, 25)}
"""XLA's numbers of the element types that a matrix unit multiplies at one rate."""


@dataclasses.dataclass(frozen=True)
class Gpu(Backend):
    """XLA for NVIDIA's GPUs. It combines collectives, and starts them before they are needed."""

    topology: str

    spelling: ClassVar[str] = (
        "a GPU and how many, such as h100:8, or h100:2x8 for 2 hosts with 8 each"
    )
    extra: ClassVar[str | None] = "gpu"
    compiler: ClassVar[str | None] = "jax-cuda12-plugin"
    rewrites: ClassVar[Mapping[str, str]] = GPU_REWRITES
    refuses: ClassVar[bool] = False

    @classmethod
    def of(cls, topology: str | None) -> Self | None:
        """Returns this backend if the topology begins with the name of a GPU whose hardware file
        holds what the compiler needs."""
        kind, _, _ = (topology or "").partition(":")
        return cls(topology) if topology and kind in kinds() else None

    @classmethod
    def described(cls) -> str:
        """Spelling of its topologies, with the available GPUs."""
        return f"{cls.spelling} (GPUs: {', '.join(kinds())})"

    @property
    def device_type(self) -> str | None:
        """Device type in the topology's name, which is also the name of its hardware file."""
        return self.topology.partition(":")[0]

    def device_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """Returns a mesh of the topology's GPUs, which this machine need not have.

        Raises:
          VerifyError: the compiler is not installed, or the topology is misspelled.
          MeshError: the topology has another number of devices, or cannot be arranged as the mesh.
        """
        parts = _TOPOLOGY.fullmatch(self.topology)
        if parts is None:
            raise VerifyError(
                f"topology {self.topology!r} is spelled otherwise; expected {self.spelling}"
            )
        if not is_installed():
            raise VerifyError(
                f"compiling for {self.topology} needs JAX's plugin for CUDA, which is not "
                "installed; pip install 'partita[gpu]' (no GPU is needed)"
            )
        hosts, devices = int(parts["hosts"] or 1), int(parts["devices"])
        target = cost.load(parts["kind"]).xla_target
        assert target is not None  # it is one of `kinds`
        described = functools.partial(
            topologies.get_topology_desc,
            platform="cuda",
            target_config=as_proto(target, parts["kind"]),
            topology=f"1x{hosts}x{devices}",
        )
        return self.arranged(described, hosts * devices, mesh)

    def compile(self, lowered: Lowered, options: Options) -> Compiled:
        """Compiles, without JAX's cache of compiled programs."""
        with without_cache():
            return super().compile(lowered, options)

    def time(
        self, module: HloModule, runs: Executions, found: list[Found], plan: Predicted
    ) -> StepTime | None:
        """Returns the time of the compiled schedule, because this compiler orders instructions by
        what it knows of the GPU."""
        return scheduled_time(module, runs, plan.mesh, plan.hardware)

    def known_rewrites(self, spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
        """Returns the rewrites that `partita.verify.gpu_rewrites` documents."""
        return on_gpu(spmd)

    def options(self, *, windowed_einsum: bool = False, combine: bool = True) -> Options:
        """Returns options that leave products to cuBLAS, and without combiners unless `combine`."""
        return dict(_UNTUNED) if combine else _UNTUNED | _COMBINERS_OFF


def is_installed() -> bool:
    """Returns whether JAX's plugin for CUDA is installed."""
    try:
        return importlib.util.find_spec("jax_plugins.xla_cuda12") is not None
    except ModuleNotFoundError:  # there is no plugin at all
        return False


@functools.cache
def kinds() -> tuple[str, ...]:
    """Returns the device types whose hardware file describes them to XLA's compiler."""
    return tuple(name for name in cost.device_types() if cost.load(name).xla_target)


def as_proto(target: XlaTarget, name: str) -> str:
    """Returns the description of a GPU that XLA's compiler reads: a `GpuTargetConfigProto`, as
    text.

    Limits that all GPUs share, and that no hardware file holds, come from CUDA's programming guide.
    """
    major, minor = target.compute_capability.rstrip("af").split(".")
    feature = {"a": "ACCELERATED_FEATURES", "f": "FAMILY_COMPATIBLE_FEATURES"}
    wanted = feature.get(target.compute_capability[-1])
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_core": target.shared_memory,
        "shared_memory_per_block_optin": target.shared_memory_of_block,
        "core_count": target.multiprocessors,
        "fpus_per_core": target.fpus,
        "clock_rate_ghz": target.clock / 1e9,
        "device_memory_size": target.memory,
        "memory_bandwidth": int(target.memory_bandwidth),
        "l2_cache_size": target.l2,
        "pcie_bandwidth": int(target.pcie_bandwidth),
    }
    lines = [f"{key}: {value}" for key, value in device.items()]
    said = f" feature_extension: {wanted}" if wanted else ""
    lines.append(f"cuda_compute_capability {{ major: {major} minor: {minor}{said} }}")
    if target.nvlinks:
        lines.append(f"device_interconnect_info {{ active_links: {target.nvlinks} }}")
    if target.matrix_units:
        lines.append(f"matrix_unit_description {{ {_rates(target)} }}")
    inside = "\n  ".join(lines)
    return (
        f"gpu_device_info {{\n  {inside}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 8 patch: 0 }\n"
        f'device_description_str: "NVIDIA {name.upper()}"\n'
    )


def _rates(target: XlaTarget) -> str:
    return " ".join(
        f"rate_infos {{ key: {key} value {{ clock_rate_ghz: {target.matrix_clock / 1e9} "
        f"units_per_core: {target.matrix_units} ops_per_clock: {getattr(target, operations)} }} }}"
        for operations, keys in _MATRIX_TYPES.items()
        for key in keys
    )


BACKEND = Gpu
