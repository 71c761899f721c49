"""Compiling a plan with a real XLA: for host devices, or for TPUs that need not be there.

A TPU topology such as `v5e:4x8` is compiled for with libtpu, which comes with the extra
`partita[tpu]`; no TPU is needed, and none is touched.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.stages import Lowered

from partita.errors import MeshError, VerifyError
from partita.mesh import Mesh
from partita.run.executable import Form
from partita.verify.memory import Memory, memory_of
from partita.verify.predicted import Predicted

Options = dict[str, str | bool]
"""Options of a compiler."""

# What libtpu otherwise asks a cloud machine's metadata server for, and reports that it cannot.
# Nothing of it reaches the compiled program.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}

_WINDOWED_EINSUM_OFF: Options = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
_COMBINER_OFF: Options = {
    "xla_jf_crs_combiner_threshold_count": "1",
    "xla_jf_crs_combiner_threshold_in_bytes": "0",
}
# How well code is generated takes most of the time, and changes neither buffers nor collectives.
_HOST: Options = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}

_SAID = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
"""How compilers say what a program needs, and what there is."""


class OutOfMemoryError(VerifyError):
    """The compiler found no way to fit the program into the memory of a device.

    `used` and `capacity` are bytes, as the compiler rounds them; None where it does not say. What
    is used may be temporaries alone.
    """

    def __init__(self, message: str, used: int | None, capacity: int | None) -> None:
        super().__init__(message)
        self.used = used
        self.capacity = capacity


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a compiler made of a plan."""

    text: str
    """The compiled program, as HLO."""
    memory: Memory
    seconds: float
    """How long compiling took."""


def compile_plan(
    plan: Predicted,
    topology: str | None = None,
    form: Form = "partitioned",
    *,
    windowed_einsum: bool = False,
    combine: bool = True,
) -> Compiled:
    """Compiles a plan; nothing is run.

    Args:
      plan: the plan.
      topology: TPUs to compile for, `v5e:4x8`; by default the host devices of this process.
      form: which program, as for `Plan.export`.
      windowed_einsum: of a TPU compiler that partitions by itself, whether it may cut gathers and
        matrix products into loops.
      combine: of a TPU compiler, whether it may combine small sums into one collective.

    Raises:
      MeshError: the topology, or this process, has another number of devices than the mesh.
      OutOfMemoryError: the program does not fit into a device.
      VerifyError: there is no TPU compiler, no such topology, or the compiler fails.
    """
    options = compiler_options(topology, windowed_einsum, combine)
    return compile_lowered(lower_plan(plan, topology, form), topology, options)


def lower_plan(plan: Predicted, topology: str | None = None, form: Form = "partitioned") -> Lowered:
    """A plan lowered by JAX for the devices of a topology, or of the host."""
    mesh = host_mesh(plan.mesh) if topology is None else tpu_mesh(plan.mesh, topology)
    lowered: Lowered = plan.lower(mesh, form)
    return lowered


def compiler_options(
    topology: str | None, windowed_einsum: bool = False, combine: bool = True
) -> Options:
    """What a compiler is told; `compile_plan` says what the arguments are."""
    if topology is None:
        return dict(_HOST)
    options: Options = {} if windowed_einsum else dict(_WINDOWED_EINSUM_OFF)
    return options if combine else options | _COMBINER_OFF


def compile_lowered(lowered: Lowered, topology: str | None, options: Options) -> Compiled:
    """Compiles what `lower_plan` gives; raises as `compile_plan` does."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        dump: Options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True} if topology else {}
        try:
            compiled = lowered.compile(compiler_options=options | dump)
        except jax.errors.JaxRuntimeError as error:
            raise _failure(error, topology) from error
        seconds = time.perf_counter() - start
        return Compiled(_text(compiled, folder), memory_of(compiled.memory_analysis()), seconds)


def _text(compiled: jax.stages.Compiled, folder: str) -> str:
    """The text of a compiled program.

    Some programs of the TPU compiler have instructions that the HLO of this jaxlib does not know,
    and cannot be asked for; the compiler itself has written them to a folder.
    """
    try:
        return compiled.as_text() or ""
    except jax.errors.JaxRuntimeError as error:
        written = sorted(Path(folder).glob("*.after_codegen.txt"))
        if not written:
            raise VerifyError(
                f"the compiled program cannot be read: {_first_line(error)}"
            ) from error
        return written[-1].read_text("utf-8")


def host_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    """A mesh of host devices; raises `MeshError` if this process has too few."""
    devices = jax.devices("cpu")
    if len(devices) < mesh.devices:
        raise MeshError(
            f"mesh {mesh} needs {mesh.devices} host devices, this process has {len(devices)}; set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={mesh.devices} before it starts, "
            "or say topology=... to compile for TPUs"
        )
    grid = np.array(devices[: mesh.devices]).reshape(mesh.sizes)
    return jax.sharding.Mesh(grid, mesh.names)


def provide_host_devices(count: int) -> None:
    """Gives this process at least so many host devices, if JAX has not made them yet.

    What the user has set in `XLA_FLAGS` stays, if it is enough.
    """
    name = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "").split()
    given = [flag for flag in flags if flag.startswith(f"{name}=")]
    wanted = max([count, *(int(flag.partition("=")[2]) for flag in given)])
    kept = [flag for flag in flags if flag not in given]
    os.environ["XLA_FLAGS"] = " ".join([*kept, f"{name}={wanted}"])


def tpu_mesh(mesh: Mesh, topology: str) -> jax.sharding.Mesh:
    """A mesh of the devices of a TPU topology, which this machine need not have.

    Raises:
      VerifyError: libtpu is not installed, or it knows no such topology.
      MeshError: the topology has another number of devices, or cannot be laid out so.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise VerifyError(
            f"compiling for {topology} needs the TPU compiler, libtpu, which is not installed; "
            "pip install 'partita[tpu]' (no TPU is needed)"
        )
    for name, value in _WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise VerifyError(
            f"the TPU compiler knows no topology {topology!r}: {_first_line(error)}; expected a "
            "kind and its sides in chips, such as v5e:4x8, v5p:2x2x4 or v6e:4x4"
        ) from error
    count = len(found.devices)
    if count != mesh.devices:
        raise MeshError(
            f"mesh {mesh} has {mesh.devices} devices, topology {topology} has {count}; they must "
            "be equal"
        )
    try:
        made: jax.sharding.Mesh = topologies.make_mesh(found, mesh.sizes, mesh.names)
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise MeshError(
            f"JAX cannot lay mesh {mesh} on topology {topology}: {_first_line(error)}"
        ) from error
    return made


def _failure(error: Exception, topology: str | None) -> VerifyError:
    """An error of a compiler as one of ours."""
    target = f"for {topology}" if topology else "for the host"
    message = str(error)
    if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
        used = capacity = None
        said = next(filter(None, (pattern.search(message) for pattern in _SAID)), None)
        if said:
            used, capacity = _bytes(said[1], said[2]), _bytes(said[3], said[4])
        return OutOfMemoryError(
            f"compiling {target} runs out of memory: {_first_line(error)}", used, capacity
        )
    return VerifyError(f"compiling {target} fails: {_first_line(error)}")


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
