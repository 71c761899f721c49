"""The plan: everything that came out, and the ways to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np
from jax.sharding import NamedSharding

from partita.analysis.describe import Colors
from partita.core import Core
from partita.cost import Estimate, Hardware
from partita.cost.footprint import Footprint
from partita.errors import FileError, MeshError, TacticError
from partita.mesh import Mesh
from partita.program import Program, mlir
from partita.program.files import contents, format_of, write
from partita.program.ir import Constant
from partita.report import render
from partita.schedule import Scheduled, TacticReport
from partita.spmd import Collective, SpmdProgram
from partita.spmd.annotate import annotate
from partita.spmd.emit import emit
from partita.spmd.executable import Completed, export, layout_tree, partition_spec
from partita.tactics import Tactic
from partita.tiling import Assignment, LoopNests

Form = Literal["partitioned", "annotated"]


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """How a function is partitioned over a mesh: shardings, collectives, estimates, history.

    Made by `partita.plan`. `print(plan)` shows a report.
    """

    fn: Callable[..., Any]
    """The function that was planned."""
    done: Scheduled
    """Where the schedule has come to."""
    donate_argnums: tuple[int, ...] = ()
    lifted: tuple[np.ndarray, ...] = ()
    """Arrays that the function closes over and that the program takes as its last arguments."""

    def then(self, *tactics: Tactic) -> Plan:
        """The plan with further tactics applied, in order; this one stays as it is.

        Nothing is traced or analysed again. Earlier decisions win.

        Raises:
          PartitaError: a tactic does not fit the mesh or the program.
        """
        done = self.done
        for tactic in tactics:
            done = done.then(tactic)
        return dataclasses.replace(self, done=done)

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        return self.done.stage.context.mesh

    @property
    def hardware(self) -> Hardware:
        """The kind of device that it was priced for."""
        return self.done.stage.context.hardware

    @property
    def colors(self) -> Colors:
        """The analysis: colors and conflicts."""
        return self.done.stage.context.colors

    @property
    def arguments(self) -> Any:
        """`(args, kwargs)` as a pytree of `ShapeDtypeStruct`s."""
        return self.done.stage.context.arguments

    @property
    def results(self) -> Any:
        """The results as a pytree of `ShapeDtypeStruct`s."""
        return self.done.stage.context.results

    @property
    def spmd(self) -> SpmdProgram:
        """The device-local program with its collectives."""
        return self.done.spmd

    @property
    def estimate(self) -> Estimate:
        """Predicted time and memory of a step."""
        return self.done.estimate

    @property
    def history(self) -> tuple[TacticReport, ...]:
        """What each tactic did."""
        return self.done.history

    @property
    def assignment(self) -> Assignment:
        """The layout of every operation and value, as the tactics asked for it."""
        return self.done.stage.assignment

    @cached_property
    def core(self) -> Core:
        """The program as loop nests, which prints and runs on one device (PartIR:Core)."""
        nests = LoopNests(self.program, self.mesh, self.assignment)
        keywords = bool(self.arguments[1])
        return Core(nests, self._signature, self.results, keywords, self.lifted)

    @property
    def program(self) -> Program:
        """The program that was planned."""
        return self.spmd.program

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of a step, in program order."""
        return self.spmd.collectives

    def memory(self) -> Footprint:
        """What lies in memory when it is fullest, and over the whole step, per device."""
        return self.done.footprint

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Arrays that are part of the program, because the function closes over them."""
        return self.program.constants

    @cached_property
    def in_shardings(self) -> Any:
        """`PartitionSpec`s of the positional arguments, for plain `jax.jit` under a mesh."""
        args, _ = layout_tree(self._signature, self.spmd.argument_layouts, self._spec)
        return args[: len(self.arguments[0])]

    @cached_property
    def out_shardings(self) -> Any:
        """`PartitionSpec`s of the results, for plain `jax.jit` under a mesh."""
        return layout_tree(self.results, self.spmd.result_layouts, self._spec)

    @cached_property
    def exported(self) -> jax.export.Exported:
        """The partitioned program as an artifact of `jax.export`, called as the function is.

        If constants were lifted, it takes keyword arguments as one dict, and the constants last.
        """
        return export(self.spmd, self._signature, self.results)

    def jit(
        self,
        mesh: jax.sharding.Mesh | None = None,
        donate_argnums: int | Sequence[int] | None = None,
    ) -> Any:
        """The partitioned function, with its collectives as planned; behaves as `jax.jit`'s.

        Args:
          mesh: a concrete mesh of the planned axes; made from `jax.devices()` by default.
          donate_argnums: positions of arguments whose buffers may be taken over; by default those
            that were given to `partita.plan`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        concrete, exported = self.device_mesh(mesh), self.exported
        args, kwargs = layout_tree(self._signature, self.spmd.argument_layouts, self._spec)

        def call(*args: Any) -> Any:
            # Keyword arguments come last, in one dict: jax.jit takes no shardings for keywords.
            return exported.call(*args[:-1], **args[-1]) if kwargs else exported.call(*args)

        call.__name__ = call.__qualname__ = self.program.name
        in_shardings = self._named(concrete, (*args, kwargs) if kwargs else args)
        jitted = jax.jit(
            call,
            in_shardings=in_shardings,
            out_shardings=self._named(concrete, self.out_shardings),
            donate_argnums=self.donate_argnums if donate_argnums is None else donate_argnums,
        )
        if not (self.lifted or self.arguments[1]):
            return jitted
        constants = jax.device_put(self.lifted, in_shardings[-1]) if self.lifted else ()
        return Completed(jitted, bool(self.arguments[1]), constants)

    def export(self, path: str | Path, form: Form = "partitioned") -> None:
        """Writes the program to a StableHLO file, as text (`.mlir`) or bytecode (`.mlirbc`).

        A name that ends in `.bin` makes it a serialized `jax.export.Exported`.

        Args:
          path: of the file, which is written whole or not at all.
          form: `"partitioned"` is the program that the plan runs, one manual computation over the
            mesh with the collectives in it; `"annotated"` is the original program with shardings
            (Shardy's `sdy.sharding`) on all values, for a compiler that partitions by itself.

        Raises:
          FileError: the file cannot be written, or its name ends in something else.
        """
        forms = {"partitioned": emit, "annotated": annotate}
        if form not in forms:
            raise FileError(f"there is no form {form!r}; expected {' or '.join(forms)}")
        suffix = format_of(path)
        with mlir.context():
            data = contents(
                forms[form](self.spmd),
                suffix,
                lambda module: export(self.spmd, self._signature, self.results, module),
            )
        write(path, data)

    def init(
        self, init_fn: Callable[..., Any], *args: Any, mesh: jax.sharding.Mesh | None = None
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is made sharded, as the plan takes it.

        The result must be nested and shaped as one of the plan's arguments; of several that are
        alike, the first counts. It is never whole on one device.

        Raises:
          TacticError: the result is like none of the plan's arguments.
          MeshError: too few devices, or a mesh with other axes.
        """
        made = jax.eval_shape(init_fn, *args)
        concrete = self.device_mesh(mesh)
        for argument, specs in zip(self.arguments[0], self.in_shardings, strict=True):
            if _alike(made, argument):
                shardings = self._named(concrete, specs)
                return jax.jit(init_fn, out_shardings=shardings)(*args)
        wanted = " or ".join(_shapes(argument) for argument in self.arguments[0])
        raise TacticError(
            f"the result of {getattr(init_fn, '__name__', init_fn)} is nested or shaped like none "
            f"of the arguments of {self.program.name}: got {_shapes(made)}, expected {wanted}"
        )

    def shard(self, *args: Any, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """Puts arguments on the devices as the plan takes them; one for each position given."""
        concrete = self.device_mesh(mesh)
        specs = self.in_shardings[: len(args)]
        placed: tuple[Any, ...] = jax.device_put(args, self._named(concrete, specs))
        return placed

    def abstract(self, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """The positional arguments as `ShapeDtypeStruct`s with the shardings that the plan wants.

        What restores a checkpoint in pieces takes such a tree.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        concrete = self.device_mesh(mesh)
        args: tuple[Any, ...] = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=sharding
            ),
            self.arguments[0],
            self._named(concrete, self.in_shardings),
        )
        return args

    def device_mesh(self, mesh: jax.sharding.Mesh | None = None) -> jax.sharding.Mesh:
        """A concrete mesh for the plan: the one given, checked, or one of `jax.devices()`."""
        if mesh is not None:
            given = Mesh.of(mesh)
            if given != self.mesh:
                raise MeshError(f"the plan is for mesh {self.mesh}, the mesh given is {given}")
            return mesh
        devices = jax.devices()
        if len(devices) < self.mesh.devices:
            raise MeshError(
                f"mesh {self.mesh} needs {self.mesh.devices} devices, this process sees "
                f"{len(devices)} ({devices[0].platform}); plan for a smaller mesh, on many hosts "
                "call jax.distributed.initialize first, or for tests set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.mesh.devices}"
            )
        processes = {device.process_index for device in devices[: self.mesh.devices]}
        if len(processes) < jax.process_count():
            raise MeshError(
                f"mesh {self.mesh} takes the first {self.mesh.devices} of {len(devices)} devices, "
                f"and these belong to {len(processes)} of {jax.process_count()} processes; every "
                f"process must have a part: plan for {len(devices)} devices, or give a mesh= of "
                f"{self.mesh.devices} that all processes share"
            )
        if len(devices) == self.mesh.devices:
            return jax.make_mesh(
                self.mesh.sizes,
                self.mesh.names,
                axis_types=(jax.sharding.AxisType.Auto,) * len(self.mesh.names),
            )
        grid = np.array(devices[: self.mesh.devices]).reshape(self.mesh.sizes)
        return jax.sharding.Mesh(grid, self.mesh.names)

    @property
    def _signature(self) -> tuple[Any, Any]:
        """`(args, kwargs)` of the program: those of the function, and constants last."""
        args, kwargs = self.arguments
        if not self.lifted:
            return args, kwargs
        constants = tuple(jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.lifted)
        return (*args, *([kwargs] if kwargs else []), constants), {}

    def _spec(self, layout: Any, rank: int) -> jax.sharding.PartitionSpec:
        return partition_spec(layout, self.mesh, rank)

    def _named(self, mesh: jax.sharding.Mesh, specs: Any) -> Any:
        is_spec = lambda leaf: isinstance(leaf, jax.sharding.PartitionSpec)  # noqa: E731
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=is_spec)

    def __str__(self) -> str:
        return render(self)

    __repr__ = __str__


def _shapes(tree: Any) -> str:
    """A pytree with the type of each leaf, for messages."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


def _alike(a: Any, b: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (a, b)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
