"""What a backend of verification is: a compiler, and the devices that it compiles for.

A backend is one module of this package. Its class, a frozen dataclass derived from `Backend`, is
what the module calls `BACKEND`. It must have a `spelling`, `of` and `device_mesh`; everything else
has a default, that of a compiler of which nothing is known.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Self

import jax
from jax.stages import Lowered

from partita.cost.estimate import StepTime
from partita.errors import VerifyError
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
    """How its topologies are spelled, with an example, as messages and help list it."""
    extra: ClassVar[str | None] = None
    """The extra of partita that its compiler comes with; None if partita needs it anyway."""
    compiler: ClassVar[str | None] = None
    """The package that its compiler is in, beside jaxlib."""

    counts_executions: ClassVar[bool] = True
    """Whether collectives are compared by how often they run. That can be told of a compiler that
    unrolls loops, too; otherwise one in a loop counts once, as it stands in the program."""
    keeps_collectives: ClassVar[bool] = False
    """Whether it compiles the collectives that a plan makes explicit as they are, so that others
    are a failure of the prediction."""
    refuses: ClassVar[bool] = True
    """Whether it refuses what does not fit; else what it needs is held against the capacity."""
    widening_note: ClassVar[str] = ""
    """What a report says where `widening` counts more bytes."""
    rewrites: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What it is known to make of collectives, by name: what it does, and when."""

    @classmethod
    @abc.abstractmethod
    def of(cls, topology: str | None) -> Self | None:
        """This backend for a topology; None if the topology is spelled as another backend's.

        Whether there is such a topology only `device_mesh` says: the compiler may be missing.
        """

    @classmethod
    def described(cls) -> str:
        """How its topologies are spelled, and which there are, as messages and help say it."""
        return cls.spelling

    @property
    def target(self) -> str:
        """What is compiled for, as messages and reports say it."""
        return self.topology or "devices"

    @property
    def device_type(self) -> str | None:
        """The device type that plans must be for, by name; None if these devices stand for any."""
        return None

    def prepare(self, devices: int) -> None:
        """Makes this process ready for meshes of so many devices, before JAX looks for any."""
        return

    @abc.abstractmethod
    def device_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """The devices as a mesh that programs are lowered for.

        Raises:
          MeshError: there is another number of devices, or they cannot be laid out so.
          VerifyError: the compiler is not installed, or knows no such topology.
        """

    def options(self, *, windowed_einsum: bool = False, combine: bool = True) -> Options:
        """What the compiler is told; `Plan.verify` says what the arguments are."""
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
        """The compiler's own estimate of what computing takes, collectives apart; 0 if none.

        Args:
          module: the compiled program.
          runs: how often its computations run.
        """
        return 0

    def time(
        self, module: HloModule, runs: Executions, found: list[Found], plan: Predicted
    ) -> StepTime | None:
        """The time of a step as it was compiled; None if neither compiler nor schedule tell it.

        Args:
          module: the compiled program.
          runs: how often its computations run.
          found: its collectives.
          plan: what was compiled.
        """
        return compiled_time(self.cycles(module, runs), found, plan.mesh, plan.hardware)

    def widening(self, dtype: str) -> int:
        """How many times wider than the program the devices move an element type."""
        return 1

    def known_rewrites(self, spmd: SpmdProgram) -> Sequence[Sequence[Becomes]]:
        """What the compiler may make of each of `spmd.collectives`; each is in `rewrites`."""
        return ()
