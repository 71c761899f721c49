"""Protocol of the parts of a plan that verification reads."""

from __future__ import annotations

from typing import Any, Protocol

from partita.cost import Estimate, Hardware
from partita.cost.timeline.intervals import Timeline
from partita.mesh import Mesh
from partita.program import Program
from partita.run.executable import Form
from partita.spmd import Collective, SpmdProgram


class Predicted(Protocol):
    """Interface of a plan for comparison with a compiled program."""

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        ...

    @property
    def hardware(self) -> Hardware:
        """The device type that it is for."""
        ...

    @property
    def program(self) -> Program:
        """The program that was planned."""
        ...

    @property
    def spmd(self) -> SpmdProgram:
        """The device-local program with its collectives."""
        ...

    @property
    def estimate(self) -> Estimate:
        """Predicted time and memory of a step."""
        ...

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of a step, in program order."""
        ...

    @property
    def timeline(self) -> Timeline:
        """One step in time, as priced."""
        ...

    def lower(self, mesh: Any = None, form: Form = "partitioned") -> Any:
        """The program lowered for a mesh, as `jax.jit(...).lower` gives it."""
        ...
