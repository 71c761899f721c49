"""Protocol of a verification backend: a compiler, and the devices that it compiles for.

A backend is one module of this package. Its class, a frozen dataclass derived from `Backend`, is
the module's `BACKEND`. It must define `spelling`, `of` and `device_mesh`. Everything else has a
default, which suits a compiler of which nothing is known.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
from jax.experimental import topologies
from jax.stages import Lowered

from partita.cost.estimate import StepTime
from partita.errors import MeshError, VerifyError
from partita.mesh import Mesh
from partita.spmd import SpmdProgram
from partita.verify.collectives import Found
from partita.verify.comparison import Becomes
from partita.verify.compile import Compiled, Options, failure, first_line
from partita.verify.cycles import compiled_time
from partita.verify.hlo import HloModule
from partita.verify.loops import Executions
from partita.verify.memory import Memory, memory_of
from partita.verify.predicted import Predicted


@dataclasses.dataclass(frozen=True)
class Backend(abc.ABC):
    """A compiler, and the devices that it compiles for.

    Attributes:
      topology: the devices, as a user names them; None for those that need no name.
    """

    topology: str | None

    spelling: ClassVar[str]
    """Spelling of its topologies, with an example, for messages and help."""
    extra: ClassVar[str | None] = None
    """The extra of partita that its compiler comes with; None if partita needs it anyway."""
    compiler: ClassVar[str | None] = None
    """Package that holds its compiler, in addition to jaxlib."""

    counts_executions: ClassVar[bool] = True
    """True if collectives are compared by executions per step, which works even if the compiler
    unrolls loops. Otherwise a collective in a loop counts once, as in the program's text."""
    keeps_collectives: ClassVar[bool] = False
    """True if it compiles a plan's explicit collectives unchanged, so that any other collective is
    a failure of the prediction."""
    refuses: ClassVar[bool] = True
    """True if compiling fails for programs that do not fit. Otherwise the compiled memory is
    compared with the capacity."""
    widening_note: ClassVar[str] = ""
    """Note in the report where `widening` counts more bytes."""
    rewrites: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Known rewrites of collectives, by name: what the compiler does, and when."""

    @classmethod
    @abc.abstractmethod
    def of(cls, topology: str | None) -> Self | None:
        """This backend for a topology; None if the topology is spelled as another backend's.

        Whether there is such a topology only `device_mesh` says: the compiler may be missing.
        """

    @classmethod
    def described(cls) -> str:
        """Spelling of its topologies, and the available ones, for messages and help."""
        return cls.spelling

    @property
    def target(self) -> str:
        """Name of the compilation target, for messages and reports."""
        return self.topology or "devices"

    @property
    def device_type(self) -> str | None:
        """Device type that plans must be for, by name; None if these devices can stand for any
        type."""
        return None

    def prepare(self, devices: int) -> None:
        """Prepares this process for meshes of `devices` devices, before JAX looks for any."""
        return

    @abc.abstractmethod
    def device_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """Returns the devices as a mesh that programs are lowered for.

        Raises:
          MeshError: the number of devices differs, or they cannot be arranged as the mesh.
          VerifyError: the compiler is not installed, or knows no such topology.
        """

    def arranged(self, found: Callable[[], Any], count: int, mesh: Mesh) -> jax.sharding.Mesh:
        """Returns the devices of a topology as a mesh.

        Args:
          found: makes the description of the topology that JAX has.
          count: how many devices it has.
          mesh: of the plan.

        Raises:
          MeshError: the number of devices differs, or they cannot be arranged as the mesh.
        """
        if count != mesh.devices:
            raise MeshError(
                f"mesh {mesh} has {mesh.devices} devices, topology {self.topology} has {count}; "
                "they must be equal"
            )
        try:
            made: jax.sharding.Mesh = topologies.make_mesh(found(), mesh.sizes, mesh.names)
        except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
            raise MeshError(
                f"JAX cannot lay mesh {mesh} on topology {self.topology}: {first_line(error)}"
            ) from error
        return made

    def options(self, *, windowed_einsum: bool = False, combine: bool = True) -> Options:
        """Returns the compiler's options; `Plan.verify` documents the arguments."""
        return {}

    def compile(self, lowered: Lowered, options: Options) -> Compiled:
        """Compiles a program that is lowered for `device_mesh`.

        Raises:
          OutOfMemoryError: the program does not fit into a device.
          VerifyError: the compiler fails.
        """
        start = time.perf_counter()
        try:
            compiled = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            raise failure(error, self.target, *self.out_of_memory(str(error))) from error
        seconds = time.perf_counter() - start
        return Compiled(self.text(compiled, options), self.memory(compiled), seconds)

    def text(self, compiled: jax.stages.Compiled, options: Options) -> str:
        """The compiled program, as HLO.

        Raises:
          VerifyError: it cannot be read.
        """
        try:
            return compiled.as_text() or ""
        except jax.errors.JaxRuntimeError as error:
            raise VerifyError(
                f"the compiled program cannot be read: {first_line(error)}"
            ) from error

    def memory(self, compiled: jax.stages.Compiled) -> Memory:
        """The memory that the compiler gives a program."""
        return memory_of(compiled.memory_analysis())

    def out_of_memory(self, message: str) -> tuple[int | None, int | None]:
        """Bytes that a program needs and that a device has, if an error says so."""
        return None, None

    def cycles(self, module: HloModule, runs: Executions) -> int:
        """Returns the compiler's own estimate of compute cycles without collectives; 0 if it has
        none.

        Args:
          module: the compiled program.
          runs: how often its computations run.
        """
        return 0

    def time(
        self, module: HloModule, runs: Executions, found: list[Found], plan: Predicted
    ) -> StepTime | None:
        """Returns the time of a step as compiled; None if neither compiler nor schedule gives it.

        Args:
          module: the compiled program.
          runs: how often its computations run.
          found: its collectives.
          plan: what was compiled.
        """
        return compiled_time(self.cycles(module, runs), found, plan.mesh, plan.hardware)

    def widening(self, dtype: str) -> int:
        """Returns how many times wider the devices move an element type than the program declares
        it."""
        return 1

    def known_rewrites(self, spmd: SpmdProgram) -> Sequence[Sequence[Becomes]]:
        """Returns the possible rewrites of each of `spmd.collectives`, all of them named in
        `rewrites`."""
        return ()
