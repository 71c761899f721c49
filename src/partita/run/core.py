"""PartIR:Core of a plan: its program as loop nests, which prints and runs."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import numpy as np

from partita.emit.sequential import sequential
from partita.errors import ArgumentError, FormerName
from partita.escape import printed
from partita.frontend.callbacks import result_of, with_modules
from partita.stablehlo import mlir
from partita.stablehlo.artifact import artifact
from partita.stablehlo.internals import platform_of
from partita.stablehlo.passes.adapt import adapt
from partita.tiling import LoopNests
from partita.tiling.show import show


@dataclasses.dataclass(frozen=True, repr=False)
class Core:
    """Computation of a plan before it becomes a program for many devices (PartIR:Core).

    Every operation is nested in loops over mesh axes: *tile* loops write shards into their places,
    *sum* loops combine them. The loops are those that the tactics asked for. `print(core)` shows
    them, repeated layers once.
    """

    nests: LoopNests
    """The loops of every operation."""
    arguments: tuple[Any, Any]
    """`(args, kwargs)` of the program; constants that have become arguments come last."""
    results: Any
    """The results as a pytree of `ShapeDtypeStruct`s."""
    keywords: bool
    """True if the function takes keyword arguments."""
    closed_over: tuple[np.ndarray, ...] = ()
    """The closed-over constants that have become arguments."""
    fn: Any = None
    """The function."""

    lifted = FormerName("closed_over")

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the program by its loops, one after the other, on one device.

        It is the reference that the partitioned program must equal: it has no collectives, and no
        two operations share a loop. Use it for tests and small programs: it is slow to compile and
        holds all values unsharded.

        Args:
          *args: arrays, as the function takes them.
          **kwargs: its keyword arguments.

        Returns:
          The function's results, on the first device of this process.

        Example:
          >>> import jax.numpy as jnp, partita as pt
          >>> rows = pt.ManualPartition({"x": 0}, axis="data")
          >>> total = lambda x: jnp.sum(x)
          >>> plan = pt.plan(total, jnp.ones(4), mesh="data=2", hardware="cpu", tactics=rows)
          >>> float(plan.core.run(jnp.arange(4.0)))
          6.0
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = jax.device_put((args, kwargs), jax.local_devices()[0])
            return result_of(self.jitted(*args, **kwargs))

        modules = with_modules(self.fn)
        return run(*args, **kwargs) if modules is None else modules.around(run, args, kwargs)

    @cached_property
    def jitted(self) -> Any:
        """Function that `run` calls: for one device, behaving like one of `jax.jit`."""
        with mlir.context():
            written = sequential(self.nests)
            adapt(written, self.nests.program, platform_of())
            module = mlir.serialize(written)
        exported = artifact(module, self.nests.program.name, self.arguments, self.results)

        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs and not self.keywords:
                raise ArgumentError(
                    f"{self.nests.program.name} was planned without keyword arguments, and got an "
                    f"unexpected keyword argument {next(iter(kwargs))!r}"
                )
            if not self.closed_over:
                return exported.call(*args, **kwargs)
            return exported.call(*args, *([kwargs] if self.keywords else []), self.closed_over)

        return jax.jit(call)

    @printed
    def __str__(self) -> str:
        return show(self.nests)

    @printed
    def __repr__(self) -> str:
        return f"<Core of {self.nests.program.name} on {self.nests.mesh}>"
