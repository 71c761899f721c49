"""Plans compiled for TPUs that need not be there.

A topology such as `v5e:4x8` is compiled for with libtpu, which comes with the extra `partita[tpu]`;
no TPU is needed, and none is touched.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import jax
from jax.experimental import topologies
from jax.stages import Lowered

from partita import cost
from partita.errors import VerifyError
from partita.mesh import Mesh
from partita.spmd import SpmdProgram
from partita.verify.backends.protocol import Backend
from partita.verify.comparison import Becomes
from partita.verify.compile import Compiled, Options, first_line, without_cache
from partita.verify.hlo import HloModule
from partita.verify.loops import Executions
from partita.verify.rewrites import REWRITES, on_tpu

_TPU = re.compile(r"tpu|v\d(?!\d)", re.IGNORECASE)
"""Prefix of a TPU's topology. A `v100` is a GPU."""

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

_FILES = "tpu_"
"""Prefix of the names of TPU hardware files."""

_WINDOWED_EINSUM_OFF: Options = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
_COMBINER_OFF: Options = {
    "xla_jf_crs_combiner_threshold_count": "1",
    "xla_jf_crs_combiner_threshold_in_bytes": "0",
}

_SAID = (
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
)
"""Error messages in which the compiler gives the memory needed and the memory available."""

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN = 2**63 - 1
"""Placeholder for the cycles of fusions that run on another unit of the chip."""


@dataclasses.dataclass(frozen=True)
class Tpu(Backend):
    """XLA for TPUs. It unrolls loops in part, and rewrites some collectives by known rules."""

    topology: str

    spelling: ClassVar[str] = "a TPU and its sides in chips, such as v5e:4x8, v5p:2x2x4 or v6e:4x4"
    extra: ClassVar[str | None] = "tpu"
    compiler: ClassVar[str | None] = "libtpu"
    rewrites: ClassVar[Mapping[str, str]] = REWRITES

    @classmethod
    def of(cls, topology: str | None) -> Self | None:
        """Returns this backend if the topology begins like a TPU's; only the compiler knows which
        exist."""
        return cls(topology) if topology and _TPU.match(topology) else None

    @classmethod
    def described(cls) -> str:
        """Spelling of its topologies, with the TPUs that have hardware files."""
        known = cost.device_types()
        kinds = [name.removeprefix(_FILES) for name in known if name.startswith(_FILES)]
        return f"{cls.spelling} (TPUs: {', '.join(kinds)})"

    @property
    def device_type(self) -> str | None:
        """Device type of the chip; None if it has no hardware file."""
        return cost.device_type_of(f"TPU {self.topology.partition(':')[0]}")

    def device_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """Returns a mesh of the topology's devices, which this machine need not have.

        Raises:
          VerifyError: libtpu is not installed, or it knows no such topology.
          MeshError: the topology has another number of devices, or cannot be arranged as the mesh.
        """
        if importlib.util.find_spec("libtpu") is None:
            raise VerifyError(
                f"compiling for {self.topology} needs the TPU compiler, libtpu, which is not "
                "installed; pip install 'partita[tpu]' (no TPU is needed)"
            )
        for name, value in _WITHOUT_TPU.items():
            os.environ.setdefault(name, value)
        try:
            found = topologies.get_topology_desc(platform="tpu", topology_name=self.topology)
        except (jax.errors.JaxRuntimeError, RuntimeError) as error:
            raise VerifyError(
                f"the TPU compiler knows no topology {self.topology!r}: {first_line(error)}; "
                f"expected {self.described()}"
            ) from error
        return self.arranged(lambda: found, len(found.devices), mesh)

    def options(self, *, windowed_einsum: bool = False, combine: bool = True) -> Options:
        """Returns options that enable or disable windowed einsums and combining of sums."""
        options: Options = {} if windowed_einsum else dict(_WINDOWED_EINSUM_OFF)
        return options if combine else options | _COMBINER_OFF

    def compile(self, lowered: Lowered, options: Options) -> Compiled:
        """Compiles, and has the compiler write the program to files, for `text`."""
        with tempfile.TemporaryDirectory(prefix="partita-") as folder, without_cache():
            dump: Options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
            return super().compile(lowered, options | dump)

    def text(self, compiled: jax.stages.Compiled, options: Options) -> str:
        """The compiled program, as HLO.

        Some programs have instructions that this jaxlib cannot print. Their text is then the file
        that the compiler itself has written.
        """
        try:
            return super().text(compiled, options)
        except VerifyError:
            written = sorted(Path(str(options["xla_dump_to"])).glob("*.after_codegen.txt"))
            if not written:
                raise
            return written[-1].read_text("utf-8")

    def out_of_memory(self, message: str) -> tuple[int | None, int | None]:
        """Bytes that a program needs and that a device has, if an error says so."""
        said = next(filter(None, (pattern.search(message) for pattern in _SAID)), None)
        return (_bytes(said[1], said[2]), _bytes(said[3], said[4])) if said else (None, None)

    def cycles(self, module: HloModule, runs: Executions) -> int:
        """Returns the sum of the compiler's estimates; those in loops count as often as the loop
        runs.

        The compiler annotates every fusion, copy and call with its cycles, but no collectives.
        """
        total = 0
        for name, times in runs.times.items():
            for instruction in module.computations[name]:
                for cycles in _CYCLES.findall(instruction.attributes):
                    if int(cycles) < _UNKNOWN:
                        total += times * int(cycles)
        return total

    def known_rewrites(self, spmd: SpmdProgram) -> list[tuple[Becomes, ...]]:
        """Returns the rewrites that `partita.verify.rewrites` documents."""
        return on_tpu(spmd, self.topology)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


BACKEND = Tpu
