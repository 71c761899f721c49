"""The plan: everything that came out, and the ways to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.export
import numpy as np
from jax.sharding import NamedSharding

from partita.analysis.describe import Colors
from partita.core import Core
from partita.cost import Estimate, Hardware, Together, after_combining
from partita.cost.footprint import Footprint
from partita.diff import PlanDiff, diff
from partita.errors import FileError, MeshError, TacticError
from partita.explain import ALTERNATIVES, Explanation, explain
from partita.mesh import Mesh
from partita.program import Program, mlir
from partita.program.files import contents, format_of, write
from partita.program.ir import Constant
from partita.report import render
from partita.saved import contents as plan_file
from partita.schedule import Scheduled, TacticReport
from partita.spmd import Collective, SpmdProgram
from partita.spmd.annotate import annotate
from partita.spmd.emit import emit
from partita.spmd.executable import Completed, export, layout_tree, partition_spec
from partita.tactics import Tactic, WayOut
from partita.tiling import Assignment, LoopNests

if TYPE_CHECKING:
    from partita.verify import Verification

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

    def alternatives(self, number: int = -1) -> tuple[WayOut, ...]:
        """The ways out of what a tactic was refused because of sizes, with their prices.

        Reports have the prices already, but for large programs.

        Args:
          number: place of the tactic in the history; the last by default.

        Raises:
          TacticError: the history has no such entry.
        """
        if not -len(self.history) <= number < len(self.history):
            raise TacticError(f"there is no tactic {number}; the history has {len(self.history)}")
        return self.done.alternatives(number)

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

    @cached_property
    def combined(self) -> Mapping[tuple[str, tuple[str, ...]], Together]:
        """What a compiler makes of the all_reduces, by kind and axes as in `estimate.traffic`.

        XLA makes one of several that do not depend on each other. Neither the estimate nor the
        search counts on it.
        """
        return after_combining(self.spmd, self.hardware)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Arrays that are part of the program, because the function closes over them."""
        return self.program.constants

    def explain(
        self, what: str | int | Collective, alternatives: int = ALTERNATIVES
    ) -> Explanation:
        """Why values are split as they are, or what a collective is for and what else would cost.

        Args:
          what: the name of an argument, result or tagged value, or a pattern with `*` and `?`;
            `%12`, a value as `print(plan.program)` shows it; `file.py:12`, what is made at a line;
            an element of `collectives` or its number; or `"collectives"` for all of them.
          alternatives: how many changes may be tried and priced, for all collectives together;
            each takes about as long as `then`.

        Raises:
          UnknownNameError: there is no such value or collective.
        """
        return explain(self.done, what, alternatives)

    def diff(self, other: Plan) -> PlanDiff:
        """What is otherwise in another plan of the same program; meshes and hardware may differ.

        Raises:
          TacticError: the programs have other arguments or results.
        """
        return diff(self.done, other.done)

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
        concrete = self.device_mesh(mesh)
        jitted = self._jitted(concrete, self.exported, donate_argnums)
        if not (self.lifted or self.arguments[1]):
            return jitted
        constants: tuple[Any, ...] = ()
        if self.lifted:
            specs, _ = layout_tree(self._signature, self.spmd.argument_layouts, self._spec)
            constants = jax.device_put(self.lifted, self._named(concrete, specs[-1]))
        return Completed(jitted, bool(self.arguments[1]), constants)

    def lower(self, mesh: jax.sharding.Mesh | None = None, form: Form = "partitioned") -> Any:
        """The program lowered for the plan's own arguments, as `jax.jit(...).lower` gives it.

        It can be compiled ahead of time, also for devices that are not there.

        Args:
          mesh: a mesh of the planned axes; made from `jax.devices()` by default.
          form: which program, as for `export`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
          FileError: there is no such form.
        """
        args, kwargs = self._signature
        with mlir.context():
            exported = self.exported
            if form != "partitioned":
                module = _emitter(form)(self.spmd)
                exported = export(self.spmd, self._signature, self.results, module)
        jitted = self._jitted(self.device_mesh(mesh), exported)
        return jitted.lower(*args, *([kwargs] if kwargs else []))

    def _jitted(
        self,
        mesh: jax.sharding.Mesh,
        exported: jax.export.Exported,
        donate_argnums: int | Sequence[int] | None = None,
    ) -> Any:
        """An exported form under `jax.jit`; keyword arguments and constants come last."""
        args, kwargs = layout_tree(self._signature, self.spmd.argument_layouts, self._spec)

        def call(*args: Any) -> Any:
            # Keyword arguments come last, in one dict: jax.jit takes no shardings for keywords.
            return exported.call(*args[:-1], **args[-1]) if kwargs else exported.call(*args)

        call.__name__ = call.__qualname__ = self.program.name
        return jax.jit(
            call,
            in_shardings=self._named(mesh, (*args, kwargs) if kwargs else args),
            out_shardings=self._named(mesh, self.out_shardings),
            donate_argnums=self.donate_argnums if donate_argnums is None else donate_argnums,
        )

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
        emitter = _emitter(form)
        suffix = format_of(path)
        with mlir.context():
            data = contents(
                emitter(self.spmd),
                suffix,
                lambda module: export(self.spmd, self._signature, self.results, module),
            )
        write(path, data)

    def save(self, path: str | Path) -> None:
        """Writes the plan to a JSON file, from which `partita.load` takes it up without a search.

        Args:
          path: of the file, which is written whole or not at all.

        Raises:
          FileError: the file cannot be written.
        """
        write(path, plan_file(self.done, self.donate_argnums, self.lifted))

    def verify(
        self,
        topology: str | None = None,
        form: Form = "partitioned",
        *,
        windowed_einsum: bool = False,
        combine: bool = True,
    ) -> Verification:
        """Compiles the plan with a real XLA, and puts what that makes beside what was predicted.

        Nothing is run. `print` it for a report; `.passed` says whether the prediction holds.

        Args:
          topology: TPUs to compile for, such as `"v5e:4x8"`, which need not be there; that takes
            the extra `partita[tpu]`. By default, host devices, of which the process must have
            enough.
          form: which program, as for `export`.
          windowed_einsum: whether a TPU compiler that partitions by itself may cut gathers and
            matrix products into loops; other collectives come of it.
          combine: whether a TPU compiler may combine sums into one collective.

        Raises:
          HardwareError: the plan was priced for another kind of device than the topology has.
          MeshError: too few host devices, or a topology of another size.
          VerifyError: there is no compiler for it, or the compiler fails.
        """
        from partita.verify import verify  # which compares plans, and stands above them

        return verify(self, topology, form, windowed_einsum=windowed_einsum, combine=combine)

    @staticmethod
    def load(
        path: str | Path, fn: Callable[..., Any] | str | Path, *args: Any, **kwargs: Any
    ) -> Plan:
        """Takes up a plan that `save` wrote; `partita.load` says what it takes and raises."""
        from partita.api import load  # which makes plans, and stands above them

        return load(path, fn, *args, **kwargs)

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


def _emitter(form: Form) -> Callable[[SpmdProgram], Any]:
    forms: dict[str, Callable[[SpmdProgram], Any]] = {"partitioned": emit, "annotated": annotate}
    if form not in forms:
        raise FileError(f"there is no form {form!r}; expected {' or '.join(forms)}")
    return forms[form]


def _shapes(tree: Any) -> str:
    """A pytree with the type of each leaf, for messages."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


def _alike(a: Any, b: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (a, b)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
