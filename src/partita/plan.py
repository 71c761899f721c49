"""The plan: everything that came out, and the ways to run it; and plans from files."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import numpy as np

from partita.analysis.describe import Colors
from partita.cost import Estimate, Hardware, Together
from partita.cost.compute.idle_axes import IdleAxis
from partita.cost.memory.footprint import Footprint
from partita.errors import FormerName, TacticError
from partita.escape import printed
from partita.files import write
from partita.frontend.calling import NOTHING_STATIC, Marked, Static
from partita.frontend.meant import apart
from partita.mesh import Mesh, MeshInput
from partita.options import integer
from partita.planning.candidates import Searched
from partita.planning.meshes import MeshCandidate
from partita.planning.one_thread import alone
from partita.planning.prepare import Prepared
from partita.planning.schedule import Scheduled, TacticReport
from partita.program import Program
from partita.program.ir import Constant
from partita.report.shown import Shown
from partita.run.call import Planned
from partita.run.executable import Executable, Form
from partita.spmd import Collective, SpmdProgram
from partita.stablehlo.internals import platform_of
from partita.tactics import Suggestion, Tactic
from partita.tactics.options import as_tactics
from partita.tiling import Assignment, LoopNests

if TYPE_CHECKING:
    from partita.planning.strict import Problem, Strict
    from partita.run.core import Core
    from partita.saved import NotKept
    from partita.verify import Verification
    from partita.verify.compiled_shardings import AsCompiled
    from partita.verify.number_check import NumberCheck

# What only some plans ever need (explanations, files, reports, verification) is loaded when it is
# used: it takes longer to import than all the rest.


@apart
def load(
    path: str | Path,
    fn: Callable[..., Any] | str | Path,
    *args: Any,
    mesh: MeshInput | Mesh | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    rebase: bool = False,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Plan:
    """Loads a plan that `Plan.save` wrote: no search, and no tactic runs.

    The function is traced, and has to be the program that the plan is for; then the plan is
    lowered and estimated anew. With `rebase`, it may have changed.

    Args:
      path: of the plan file.
      fn: the function or file, as `plan` takes it.
      *args: its arguments, as `plan` takes them.
      mesh: to check that the plan is for this mesh, to run it on the devices of a
        `jax.sharding.Mesh`, or to lay its axes on other networks.
      hardware: to estimate it on another device type, or on one from a file of your own; by
        default that of the plan.
      memory: as `plan` takes it; by default that of the plan, or what other hardware has.
      rebase: whether the program may be another one, and the mesh, with axes of the same names:
        then what the tactics of the plan decided is decided again, as far as it still fits.
        `Plan.not_kept` and the history of the plan say what could not be kept, and why.
      donate_argnums: by default those of the plan.
      donate_argnames: likewise.
      static_argnums: as `plan` takes them.
      static_argnames: as `plan` takes them.
      **kwargs: keyword arguments of `fn`.

    Raises:
      FileError: the file is missing, damaged or of another format; or it is for another program,
        with what differs.
      MeshError: it is for another mesh than the one given.
      PartitaError: as `plan` does for functions and hardware.

    Example:
      >>> import jax, jax.numpy as jnp, partita as pt, tempfile
      >>> x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
      >>> file = tempfile.mkdtemp() + "/plan.json"
      >>> pt.plan(jnp.sin, x, mesh="data=8", hardware="tpu_v5e").save(file)
      >>> pt.load(file, jnp.sin, x).in_shardings
      (P(None, 'data'),)
    """
    return loaded(
        path,
        fn,
        args,
        kwargs,
        mesh=mesh,
        hardware=hardware,
        memory=memory,
        rebase=rebase,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )


def loaded(path: str | Path, *call: Any, **options: Any) -> Plan:
    """`load`, of a function, its arguments, and its keyword arguments."""
    from partita.saved import take_up

    prepared, done, not_kept = take_up(path, *call, **options)
    return dataclasses.replace(Plan.of(prepared, done), not_kept=not_kept)


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Shown, Searched):
    """Partitioning of a function over a mesh: shardings, collectives, estimates, history.

    Made by `partita.plan`. `print(plan)` shows a report.
    """

    fn: Callable[..., Any]
    """The function that was planned."""
    done: Scheduled
    """State at the end of the schedule."""
    donate_argnums: tuple[int, ...] = ()
    closed_over: tuple[np.ndarray, ...] = ()
    """Arrays that the function closes over and that the program takes as its last arguments."""
    donate_argnames: tuple[str, ...] = ()
    """Names of the donated keyword arguments."""
    static: Static = NOTHING_STATIC
    """The static arguments of the call that was planned, by position and by name."""
    meshes: tuple[MeshCandidate, ...] = ()
    """The meshes that were planned to choose this one, best first, if the schedule chose it."""
    not_kept: tuple[NotKept, ...] = ()
    """Decisions of the file that a rebased plan does not keep."""
    compiled: AsCompiled | None = None
    """Result of compiling the shardings given to `simulate` with XLA, if that was asked."""

    lifted = FormerName("closed_over")

    @alone
    def then(self, *tactics: Tactic) -> Plan:
        """The plan with further tactics applied, in order; this one stays as it is.

        Nothing is traced or analysed again. Earlier decisions win.

        Raises:
          PartitaError: a tactic does not fit the mesh or the program.
        """
        done = self.done
        for tactic in as_tactics(tactics):
            done = done.then(tactic)
        return dataclasses.replace(self, done=done, meshes=(), not_kept=(), compiled=None)

    @alone
    def suggestions(self, number: int = -1) -> tuple[Suggestion, ...]:
        """What to do instead of what a tactic was refused because of sizes, with its cost.

        Reports have the costs already, except for large programs.

        Args:
          number: place of the tactic in the history; the last by default.

        Raises:
          TacticError: the history has no such entry.
        """
        integer(number, "number", kind=TacticError)
        if not -len(self.history) <= number < len(self.history):
            raise TacticError(f"there is no tactic {number}; the history has {len(self.history)}")
        return self.done.suggestions(number)

    alternatives = FormerName("suggestions")

    @property
    def mesh(self) -> Mesh:
        """The mesh that it is for."""
        return self.done.mesh

    @property
    def hardware(self) -> Hardware:
        """The device type that it is for."""
        return self.done.hardware

    @property
    def colors(self) -> Colors:
        """The analysis: colors and conflicts."""
        return self.done.colors

    @property
    def arguments(self) -> Any:
        """`(args, kwargs)` without static arguments, as a pytree of `ShapeDtypeStruct`s."""
        return self.done.stage.context.arguments

    @property
    def results(self) -> Any:
        """The results as a pytree of `ShapeDtypeStruct`s."""
        return self.done.stage.context.results

    @property
    @alone
    def spmd(self) -> SpmdProgram:
        """The device-local program with its collectives."""
        return self.done.spmd

    @property
    def estimate(self) -> Estimate:
        """Predicted time and memory of a step."""
        return self.done.estimate

    @property
    @alone
    def idle_axes(self) -> tuple[IdleAxis, ...]:
        """The axes of the mesh that do nothing: along them all devices do the same work."""
        return self.done.idle_axes

    @property
    def history(self) -> tuple[TacticReport, ...]:
        """Reports of the tactics, in the order in which they ran."""
        return self.done.history

    @property
    def assignment(self) -> Assignment:
        """The layout of every operation and value, as the tactics asked for it."""
        return self.done.stage.assignment

    @property
    @alone
    def core(self) -> Core:
        """The program as loop nests, which prints and runs on one device (PartIR:Core)."""
        return self._core

    @cached_property
    def _core(self) -> Core:
        from partita.run.core import Core

        nests = LoopNests(self.program, self.mesh, self.assignment)
        keywords = bool(self.arguments[1])
        return Core(
            nests, self.executable.signature, self.results, keywords, self.closed_over, self.fn
        )

    @property
    def program(self) -> Program:
        """The program that was planned."""
        return self.spmd.program

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of a step, in program order."""
        return self.spmd.collectives

    @alone
    def memory(self) -> Footprint:
        """Memory in use at its peak, and over the whole step, per device."""
        return self.done.footprint

    @property
    @alone
    def combined(self) -> Mapping[tuple[str, tuple[str, ...]], Together]:
        """Collectives after the compiler combines them, by kind and axes as in `estimate.traffic`.

        Compilers make one of several that do not depend on each other.
        """
        return self.done.combined

    @property
    def most_memory(self) -> int:
        """Bytes per device at the fullest moment, if the compiler's scheduler keeps alive what it
        may: `estimate.peak_memory`, where the hardware file says nothing of that."""
        return self.done.most_memory

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Arrays that are part of the program, because the function closes over them."""
        return self.program.constants

    @alone
    def problems(self, strict: Strict = True) -> tuple[Problem, ...]:
        """Returns the problems, of the kinds named, for which `plan(strict=)` raises an error."""
        from partita.planning.strict import kinds, problems

        donated = self.static.donated_leaves(self._marked, *self.arguments)
        return tuple(problems(self.done, donated, kinds(strict)))

    @property
    @alone
    def executable(self) -> Executable:
        """The SPMD program as something that is called as the function is."""
        return self._executable

    # A cached property holds a lock of its own up to Python 3.11: taken last, never first.
    @cached_property
    def _executable(self) -> Executable:
        return Executable(
            self.spmd,
            self.arguments,
            self.results,
            self.donate_argnums,
            self.closed_over,
            self.donate_argnames,
            self.fn,
            self.static,
        )

    @property
    def _marked(self) -> Marked:
        """Positions and names of the static and donated arguments."""
        positional, named = self.static.positional, self.static.named
        return Marked(tuple(positional), tuple(named), self.donate_argnums, self.donate_argnames)

    @alone
    def _on(self, mesh: jax.sharding.Mesh | None) -> Executable:
        """Returns the executable for a mesh, adapted if its devices lack what the program calls."""
        return self._for(platform_of(self.device_mesh(mesh).devices.flat[0]))

    def _for(self, platform: str) -> Executable:
        """Returns the executable for devices of a platform."""
        from partita.planning.other_platforms import elsewhere

        spmd = elsewhere(self.done, self.fn, self._marked, self.static, self.closed_over, platform)
        same = spmd is self.spmd
        return self.executable if same else dataclasses.replace(self.executable, spmd=spmd)

    @property
    def in_shardings(self) -> Any:
        """`PartitionSpec`s of the positional arguments, for plain `jax.jit` under a mesh."""
        return self.executable.in_shardings

    @property
    def out_shardings(self) -> Any:
        """`PartitionSpec`s of the results, for plain `jax.jit` under a mesh."""
        return self.executable.out_shardings

    @property
    @alone
    def exported(self) -> jax.export.Exported:
        """The partitioned program as an artifact of `jax.export`, called as the function is.

        With hoisted constants, it takes keyword arguments as one dict, and the constants last.
        """
        return self.executable.exported

    @alone
    def jit(
        self,
        mesh: jax.sharding.Mesh | None = None,
        donate_argnums: int | Sequence[int] | None = None,
        donate_argnames: str | Sequence[str] | None = None,
    ) -> Planned:
        """The partitioned function, with its collectives as planned; behaves as `jax.jit`'s.

        It is called as the function is, static arguments included. Arrays with other shardings than
        planned are moved, with a `ReshardWarning` at the first call; `shard` places them once.
        Its derivatives and what `jax.vmap` makes of it are those of the original function, with
        the arguments and results sharded as planned.

        Args:
          mesh: a concrete mesh of the planned axes; by default what `device_mesh` gives.
          donate_argnums: positions of arguments whose buffers may be taken over; by default those
            that were given to `partita.plan`.
          donate_argnames: the same of keyword arguments.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
          ArgumentError: when called with other arguments than the plan is for.
        """
        return self._on(mesh).jit(mesh, donate_argnums, donate_argnames)

    @alone
    def lower(self, mesh: jax.sharding.Mesh | None = None, form: Form = "partitioned") -> Any:
        """The program lowered for the plan's own arguments, as `jax.jit(...).lower` gives it.

        It can be compiled ahead of time, also for devices that are not there.

        Args:
          mesh: a mesh of the planned axes; by default what `device_mesh` gives.
          form: which program, as for `export`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
          FileError: there is no such form.
        """
        return self._on(mesh).lower(mesh, form)

    @alone
    def export(self, path: str | Path, form: Form = "partitioned") -> None:
        """Writes the program to a StableHLO file, as text (`.mlir`) or bytecode (`.mlirbc`).

        A name that ends in `.bin` makes it a serialized `jax.export.Exported`; in `.jaxexport`,
        one that needs no class of the model.

        Args:
          path: of the file, which is written whole or not at all.
          form: `"partitioned"` is the program that the plan runs, one manual computation over the
            mesh with the collectives in it; `"annotated"` is the original program with shardings
            (Shardy's `sdy.sharding`) on all values, for a compiler that partitions by itself;
            `"given"` has only the shardings that are given inside of the program.

        Raises:
          FileError: the file cannot be written, or its name ends in something else.
        """
        self.executable.export(path, form)

    def save(self, path: str | Path) -> None:
        """Writes the plan to a JSON file, from which `partita.load` takes it up without a search.

        It is written whole or not at all; `FileError` if it cannot be."""
        write(path, self.contents())

    @alone
    def contents(self) -> bytes:
        """Returns the bytes that `save` writes."""
        from partita.saved import contents

        return contents(self.done, self._marked, self.closed_over)

    @alone
    def verify(
        self,
        topology: str | None = None,
        form: Form = "partitioned",
        *,
        windowed_einsum: bool = False,
        combine: bool = True,
        verbose: bool = False,
        compiler_options: Mapping[str, str | bool] | None = None,
    ) -> Verification:
        """Compiles the plan with a real XLA, and compares the result with the prediction.

        Nothing is run. `print` it for a report; `.passed` says whether the prediction holds.

        Args:
          topology: the devices to compile for, which need not be there: TPUs such as `"v5e:4x8"`,
            which takes the extra `partita[tpu]`; GPUs such as `"h100:8"`, or `"h100:2x8"` for two
            hosts, which takes `partita[gpu]`. By default, or as `"host"`, host devices, of which
            the process must have enough.
          form: which program, as for `export`.
          windowed_einsum: whether a TPU compiler that partitions by itself may cut gathers and
            matrix products into loops; other collectives come of it.
          combine: whether a compiler for accelerators may combine collectives into one.
          verbose: whether what the compiler logs comes to standard error.
          compiler_options: further options of the compiler, as `jax.jit(...).lower(...).compile`
            takes them.

        Raises:
          HardwareError: the plan is for another device type than the topology has.
          MeshError: too few host devices, or a topology of another size.
          VerifyError: there is no such topology, no compiler for it, or the compiler fails.
        """
        from partita.verify import verify

        return verify(
            self,
            topology,
            form,
            windowed_einsum=windowed_einsum,
            combine=combine,
            verbose=verbose,
            compiler_options=compiler_options,
        )

    def check_numbers(self, *args: Any, seed: int = 0, **kwargs: Any) -> NumberCheck:
        """Runs the plan and the original function on host devices, and compares their results.

        `print` it for a report; `.ok` says whether rounding explains all differences. If it does
        not, `.origin` says where the difference begins: at which operation, loop or collective.

        Without arguments, some are drawn at random. If the plan is too large to run here, a plan
        with the same decisions of the same function on smaller arguments is checked instead; the
        report says which sizes have changed.

        Args:
          *args: what to run both with, as the function takes it.
          seed: of random arguments.
          **kwargs: keyword arguments of the function.

        Raises:
          ArgumentError: the arguments are not what the plan is for.
          MeshError: the process has too few host devices; set
            `XLA_FLAGS=--xla_force_host_platform_device_count=8` before it starts.
          UnsupportedError: the program cannot run on host devices, or is too large and its
            function takes no smaller arguments.

        Example:
          >>> import jax.numpy as jnp, partita as pt
          >>> rows = pt.ManualPartition({"x": 0}, axis="data")
          >>> total = lambda x: jnp.sum(jnp.sin(x))
          >>> plan = pt.plan(total, jnp.ones(8), mesh="data=2", hardware="cpu", tactics=rows)
          >>> plan.check_numbers().ok
          True
        """
        from partita.planning.smaller import changes, smaller
        from partita.verify.numbers import check_numbers

        integer(seed, "seed", 0)
        if args or kwargs:
            given = self.static.without(args, kwargs)
            return check_numbers(self._for("cpu"), given, seed)
        fewer = smaller(self.done, self.fn, self._marked, self.static)
        if fewer is None:
            return check_numbers(self._for("cpu"), None, seed)
        args, kwargs = self.static.among(*fewer)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            self.save(path)
            less = loaded(
                path,
                self.fn,
                args,
                kwargs,
                hardware=self.hardware,
                rebase=True,
                static_argnums=tuple(self.static.positional),
                static_argnames=tuple(self.static.named),
            )
        told = [f"Too large to run here: smaller, with {changes(self.arguments, fewer)}."]
        told += [f"Not as in the plan: {each}" for each in less.not_kept]
        return check_numbers(less._for("cpu"), None, seed, told)

    load = staticmethod(load)
    """What `partita.load` does, by the name of what it makes."""

    @classmethod
    def of(
        cls, prepared: Prepared, done: Scheduled, meshes: tuple[MeshCandidate, ...] = ()
    ) -> Plan:
        """The plan of what a schedule came to, over a mesh that may be chosen of several."""
        traced = prepared.traced
        return cls(
            prepared.fn,
            done,
            traced.donate_argnums,
            traced.closed_over,
            traced.donate_argnames,
            traced.static,
            meshes,
        )

    def init(
        self, init_fn: Callable[..., Any], *args: Any, mesh: jax.sharding.Mesh | None = None
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is made sharded, as the plan takes it.

        The result must be nested and shaped as one of the plan's arguments, of several that are
        alike as the first; or a tuple as the first ones. It is never unsharded on one device.

        Raises:
          TacticError: the result is like none of the plan's arguments.
          MeshError: too few devices, or a mesh with other axes.
        """
        return self.executable.init(init_fn, *args, mesh=mesh)

    def shard(self, *args: Any, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """Puts arguments on the devices as the plan takes them; one for each position given.

        Static arguments come back as they are.

        Raises:
          ArgumentError: an argument is not what the plan is for, or there are too many.
          MeshError: too few devices, or a mesh with other axes.
        """
        return self.executable.shard(*args, mesh=mesh)

    def abstract(self, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """The positional arguments as `ShapeDtypeStruct`s with the shardings that the plan wants.

        What restores a checkpoint in shards takes such a tree.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        return self.executable.abstract(mesh)

    def device_mesh(self, mesh: jax.sharding.Mesh | None = None) -> jax.sharding.Mesh:
        """The concrete mesh that the plan runs on, the types of its axes included.

        The one given, checked; else the one that was planned for; else the one that `jax.set_mesh`
        has set, if it has the plan's axes; else one of `jax.devices()`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        return self.executable.device_mesh(mesh)

    @printed
    def __repr__(self) -> str:
        return f"<Plan of {self.done}>"
