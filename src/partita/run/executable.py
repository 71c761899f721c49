"""SPMD program -> something JAX runs: an `Exported` that carries the emitted module."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from partita.emit.annotate import annotate
from partita.emit.spmd import emit
from partita.errors import FileError, MeshError, OptionError, TacticError
from partita.files import write
from partita.frontend.callbacks import result_of, with_modules
from partita.frontend.calling import NOTHING_STATIC, Marked, Static
from partita.frontend.files import contents, format_of, plain
from partita.frontend.modules.functional import joined, returning_arrays
from partita.frontend.modules.parts import Parts
from partita.mesh import Mesh
from partita.run.call import Function, Planned, check
from partita.spmd.program import SpmdProgram
from partita.stablehlo import mlir
from partita.stablehlo.artifact import artifact
from partita.stablehlo.internals import concrete_mesh, platform_of
from partita.stablehlo.passes.adapt import adapt, lacks
from partita.stablehlo.propagated import annotated, given_results
from partita.tiling import Layout, spec

Form = Literal["partitioned", "annotated", "given"]
"""Form of the program: partitioned with explicit collectives, the original annotated with the
plan's shardings, or the original with only the shardings given inside of it."""


def partition_spec(layout: Layout, mesh: Mesh, rank: int) -> PartitionSpec:
    """A layout as a `PartitionSpec` of an array of this rank.

    Typed random keys have a lower rank than the tensors that hold them.
    """
    return PartitionSpec(*spec(layout[:rank], mesh))


def layout_tree(tree: Any, layouts: Sequence[Layout], make: Callable[[Layout, int], Any]) -> Any:
    """A pytree like `tree`, its leaves made from the layout and the rank of each of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    made = [make(layout, len(leaf.shape)) for layout, leaf in zip(layouts, leaves, strict=True)]
    return jax.tree.unflatten(structure, made)


def shardings(
    tree: Any,
    layouts: Sequence[Layout],
    memories: Mapping[int, str],
    mesh: jax.sharding.Mesh | AbstractMesh,
) -> Any:
    """A pytree of shardings over a JAX mesh, in the memories that leaves have by their numbers."""
    numbers, axes = itertools.count(), Mesh.of(mesh)

    def sharding(layout: Layout, rank: int) -> NamedSharding:
        spec = partition_spec(layout, axes, rank)
        return NamedSharding(mesh, spec, memory_kind=memories.get(next(numbers)))

    return layout_tree(tree, layouts, sharding)


def export(
    spmd: SpmdProgram, arguments: Any, results: Any, module: Any = None, platform: str = ""
) -> jax.export.Exported:
    """Returns the SPMD program as an `Exported` over an abstract mesh; needs no device.

    Args:
      spmd: the program.
      arguments: `(args, kwargs)` of the original function, as `ShapeDtypeStruct`s.
      results: its results, as `ShapeDtypeStruct`s.
      module: another form of the program, within its MLIR context.
      platform: platform that runs it, if it is not the one it was lowered for.
    """
    mesh, program = AbstractMesh(spmd.mesh.sizes, spmd.mesh.names), spmd.program
    with mlir.context():
        module = emit(spmd, platform) if module is None else module
        adapt(module, program, platform)
        serialized = mlir.serialize(module)
    return artifact(
        serialized,
        program.name,
        arguments,
        results,
        shardings(arguments, spmd.argument_layouts, program.argument_memory, mesh),
        shardings(results, spmd.result_layouts, program.result_memory, mesh),
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Executable:
    """An SPMD program that is called, lowered and exported as the function that was planned."""

    spmd: SpmdProgram
    arguments: tuple[Any, Any]
    """`(args, kwargs)` of the function as pytrees of `ShapeDtypeStruct`s."""
    results: Any
    """Its results as a pytree of `ShapeDtypeStruct`s."""
    donate_argnums: tuple[int, ...] = ()
    closed_over: tuple[np.ndarray, ...] = ()
    """Arrays that the function closes over and that the program takes as its last arguments."""

    donate_argnames: tuple[str, ...] = ()
    """Names of donated keyword arguments."""
    fn: Callable[..., Any] | None = None
    """The function that was planned."""
    static: Static = NOTHING_STATIC
    """Its static arguments."""

    @cached_property
    def in_shardings(self) -> Any:
        """`PartitionSpec`s of the positional arguments, for plain `jax.jit` under a mesh."""
        args, _ = layout_tree(self.signature, self.spmd.argument_layouts, self._spec)
        return joined(args[: len(self.arguments[0])])

    @cached_property
    def out_shardings(self) -> Any:
        """`PartitionSpec`s of the results, for plain `jax.jit` under a mesh."""
        specs = layout_tree(self.results, self.spmd.result_layouts, self._spec)
        specs, modules = result_of(specs), with_modules(self.fn)
        if modules is None:
            return specs
        args = layout_tree(self.arguments, self.spmd.argument_layouts, self._spec)
        return modules.around(lambda *_, **__: specs, *joined(args))

    @cached_property
    def exported(self) -> jax.export.Exported:
        """The partitioned program as an artifact of `jax.export`, called as the function is.

        With hoisted constants, it takes keyword arguments as one dict, and the constants last.
        """
        return export(self.spmd, self.signature, self.results)

    @cached_property
    def function(self) -> Function:
        """The function that was planned, and how it is called."""
        fn: Any = self.spmd.program if self.fn is None else self.fn
        program, count = self.spmd.program, len(jax.tree.leaves(self.arguments))
        names = program.argument_names[:count]
        return Function(fn, program.name, self.static, self.arguments, self.results, names)

    def jit(
        self,
        mesh: jax.sharding.Mesh | None = None,
        donate_argnums: int | Sequence[int] | None = None,
        donate_argnames: str | Sequence[str] | None = None,
    ) -> Planned:
        """The partitioned function, with its collectives as planned; behaves as `jax.jit`'s.

        Args:
          mesh: a concrete mesh of the planned axes; by default the one that was planned for, or
            one that `device_mesh` makes.
          donate_argnums: positions of arguments whose buffers may be taken over; by default those
            that were given to `partita.plan`.
          donate_argnames: the same of keyword arguments.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        concrete = self.device_mesh(mesh)
        exported = self._exported_on(concrete)
        return self._planned(concrete, exported, donate_argnums, donate_argnames)

    def lower(self, mesh: jax.sharding.Mesh | None = None, form: Form = "partitioned") -> Any:
        """Returns the program lowered for the plan's own arguments, as by `jax.jit(...).lower`.

        It can be compiled ahead of time, also for devices that this machine does not have.

        Args:
          mesh: a mesh of the planned axes; made from `jax.devices()` by default.
          form: which program, as for `export`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
          FileError: there is no such form.
        """
        concrete = self.device_mesh(mesh)
        if form == "given":
            return self._lower_given(concrete)
        args, kwargs = self.static.among(*self.arguments)
        with mlir.context():
            module = None if form == "partitioned" else _emitter(form)(self.spmd)
            exported = self._exported_on(concrete, module)
        return self._planned(concrete, exported).lower(*args, **kwargs)

    def _lower_given(self, mesh: jax.sharding.Mesh) -> Any:
        """The original program as `jax.jit` lowers it with the shardings that were given: results
        without one are left to the compiler."""
        program = self.spmd.program
        with mlir.context():
            module = annotated(program, self.spmd.mesh)
            adapt(module, program, platform_of(mesh.devices.flat[0]))
            exported = artifact(mlir.serialize(module), program.name, self.signature, self.results)
        leaves, structure = jax.tree.flatten(self.signature)

        def given(*leaves: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return jax.tree.leaves(exported.call(*args, **kwargs))

        ranks = [len(leaf.shape) for leaf in jax.tree.leaves(self.results)]
        made: list[Any] = [None] * len(ranks)
        for number, axes in given_results(program).items():
            made[number] = NamedSharding(mesh, PartitionSpec(*axes[: ranks[number]]))
        jitted = jax.jit(
            given,
            in_shardings=tuple(jax.tree.leaves(self._placed(mesh))),
            out_shardings=made,
            donate_argnums=tuple(program.aliases),
            keep_unused=True,
        )
        return jitted.lower(*leaves)

    def _exported_on(self, mesh: jax.sharding.Mesh, module: Any = None) -> jax.export.Exported:
        """A form of the program for the devices of a mesh."""
        platform = platform_of(mesh.devices.flat[0])
        if module is None and not lacks(self.spmd.program, platform):
            return self.exported
        return export(self.spmd, self.signature, self.results, module, platform)

    def _planned(
        self,
        mesh: jax.sharding.Mesh,
        exported: jax.export.Exported,
        donate_argnums: int | Sequence[int] | None = None,
        donate_argnames: str | Sequence[str] | None = None,
    ) -> Planned:
        """An exported form of the program, on a mesh."""
        structure = jax.tree.structure(self.signature)

        def partitioned(*leaves: Any) -> list[Any]:
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return jax.tree.leaves(exported.call(*args, **kwargs))

        placed, names = self._placed(mesh)
        keywords = self.arguments[1]
        positional = len(self.arguments[0])
        if self.closed_over and keywords:
            names = placed[positional]
        constants: tuple[Any, ...] = ()
        arguments = [*placed[:positional], *(names[name] for name in sorted(keywords))]
        if self.closed_over:
            constants = jax.device_put(self.closed_over, placed[-1])
            arguments.append(placed[-1])
        given = Marked.of(donate_argnums=donate_argnums, donate_argnames=donate_argnames)
        if donate_argnums is None and donate_argnames is None:
            given = Marked.of(
                donate_argnums=self.donate_argnums, donate_argnames=self.donate_argnames
            )
        if (modules := with_modules(self.fn)) is not None:
            new = {*given.donate_argnums, *given.donate_argnames}
            for where, name in modules.keeping(result_of(self.results)).items():
                if where in new:
                    raise OptionError(
                        f"{name} of {self.function.name} cannot be donated to this plan: it has "
                        "arrays that the function does not change, which are no results of it; say "
                        "donate_argnums= to partita.plan"
                    )
        donated = given.donated(*self.static.among(*self.arguments))
        numbers = [self.static.number(n) for n in donated.donate_argnums]
        numbers += [positional + sorted(keywords).index(name) for name in donated.donate_argnames]
        return Planned(
            self.function,
            partitioned,
            tuple(arguments),
            shardings(
                self.results, self.spmd.result_layouts, self.spmd.program.result_memory, mesh
            ),
            tuple(numbers),
            constants,
        )

    def export(self, path: str | Path, form: Form = "partitioned") -> None:
        """Writes the program to a StableHLO file, as text (`.mlir`) or bytecode (`.mlirbc`).

        A name that ends in `.bin` makes it a serialized `jax.export.Exported`, and one in
        `.jaxexport` one whose arguments and results are nested in dicts, lists and tuples alone.

        Args:
          path: of the file, which is written whole or not at all.
          form: `"partitioned"` is the program that the plan runs, one manual computation over the
            mesh with the collectives in it; `"annotated"` is the original program with shardings
            (Shardy's `sdy.sharding`) on all values, for a compiler that partitions by itself;
            `"given"` has only the shardings that are given inside of the program.

        Raises:
          FileError: the file cannot be written, or its name ends in something else.
        """
        emitter = _emitter(form)
        suffix = format_of(path)
        sides = self.signature, self.results
        if suffix == ".jaxexport":
            sides = plain(sides[0]), plain(sides[1])
        with mlir.context():
            written = emitter(self.spmd)
            adapt(written, self.spmd.program)
            data = contents(
                written,
                suffix,
                lambda module: export(self.spmd, *sides, module),
            )
        write(path, data)

    def init(
        self, init_fn: Callable[..., Any], *args: Any, mesh: jax.sharding.Mesh | None = None
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is created with the plan's sharding.

        The result must have the structure and shapes of one of the plan's arguments, or be a tuple
        of the first ones. If several arguments match, the first one's sharding is used. The result
        is never materialised unsharded on one device.

        Raises:
          TacticError: the result matches none of the plan's arguments.
          MeshError: too few devices, or a mesh with other axes.
        """
        init = returning_arrays(init_fn)
        made = jax.eval_shape(init, *args)
        concrete = self.device_mesh(mesh)
        placed, _ = self._placed(concrete)
        wanted = [*zip(self.arguments[0], placed, strict=False)]
        if isinstance(made, tuple) and len(made) <= len(wanted):
            first = wanted[: len(made)]
            wanted.append((tuple(a for a, _ in first), tuple(where for _, where in first)))
        for argument, where in wanted:
            if _alike(made, argument):
                where = jax.tree.unflatten(jax.tree.structure(made), jax.tree.leaves(where))
                return joined(jax.jit(init, out_shardings=where)(*args))
        shapes = " or ".join(_shapes(argument) for argument in self.arguments[0])
        raise TacticError(
            f"the result of {getattr(init_fn, '__name__', init_fn)} is nested or shaped like none "
            f"of the arguments of {self.spmd.program.name}: got {_shapes(made)}, expected {shapes}"
        )

    def shard(self, *args: Any, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """Places arguments on the devices with the plan's shardings; one for each position given.

        Static arguments are returned unchanged.

        Raises:
          ArgumentError: the plan is not for such an argument, or there are too many.
          MeshError: too few devices, or a mesh with other axes.
        """
        wanted, _ = self._placed(self.device_mesh(mesh))
        given = self.static.positional
        static = dataclasses.replace(
            self.static, positional={n: v for n, v in given.items() if n < len(args)}, named={}
        )
        static.check(self.function.name, args, {})
        others, _ = static.without(args, {})
        if (modules := with_modules(self.fn)) is not None:
            others = modules.split(others)
        check(self.function, others, fewer=True)
        placed: tuple[Any, ...] = joined(jax.device_put(others, wanted[: len(others)]))
        return static.among(placed, {})[0]

    def abstract(self, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """The positional arguments as `ShapeDtypeStruct`s with the shardings that the plan wants.

        What restores a checkpoint in shards takes such a tree.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        placed, _ = self._placed(self.device_mesh(mesh))
        args: tuple[Any, ...] = jax.tree.map(
            lambda leaf, sharding: leaf.update(sharding=sharding),
            self.arguments[0],
            placed[: len(self.arguments[0])],
        )
        made: tuple[Any, ...] = joined(args)
        return made

    def device_mesh(self, mesh: jax.sharding.Mesh | None = None) -> jax.sharding.Mesh:
        """The concrete mesh that the plan runs on, the types of its axes included.

        The one given, checked; else the one that was planned for; else the one that `jax.set_mesh`
        has set, if it has the plan's axes; else one of `jax.devices()`.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        ours = self.spmd.mesh
        found: Any = mesh
        if mesh is not None:
            if (given := Mesh.of(mesh)) != ours:
                raise MeshError(f"the plan is for mesh {ours}, the mesh given is {given}")
        elif ours.given is not None:
            found = ours.given
        elif (set_ := concrete_mesh()) is not None and Mesh.of(set_) == ours:
            found = set_
        if isinstance(found, jax.sharding.Mesh):
            return found
        types = getattr(found, "axis_types", (jax.sharding.AxisType.Auto,) * len(ours.names))
        devices = jax.devices()
        if len(devices) < ours.devices:
            raise MeshError(
                f"mesh {ours} needs {ours.devices} devices, this process sees "
                f"{len(devices)} ({devices[0].platform}); plan for a smaller mesh, on many hosts "
                "call jax.distributed.initialize first, or for tests set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={ours.devices}"
            )
        processes = {device.process_index for device in devices[: ours.devices]}
        if len(processes) < jax.process_count():
            raise MeshError(
                f"mesh {ours} takes the first {ours.devices} of "
                f"{len(devices)} devices, and these belong to {len(processes)} of "
                f"{jax.process_count()} processes; every process must have a part: "
                f"plan for {len(devices)} devices, or give a mesh= of {ours.devices} "
                "that all processes share"
            )
        if len(devices) == ours.devices:
            return jax.make_mesh(ours.sizes, ours.names, axis_types=types)
        grid = np.array(devices[: ours.devices]).reshape(ours.sizes)
        return jax.sharding.Mesh(grid, ours.names, axis_types=types)

    @property
    def signature(self) -> tuple[Any, Any]:
        """`(args, kwargs)` of the program: those of the function, and constants last."""
        args, kwargs = self.arguments
        if not self.closed_over:
            return args, kwargs
        constants = tuple(jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.closed_over)
        return (*args, *([kwargs] if kwargs else []), constants), {}

    def _spec(self, layout: Any, rank: int) -> PartitionSpec:
        return partition_spec(layout, self.spmd.mesh, rank)

    def _placed(self, mesh: jax.sharding.Mesh) -> tuple[Any, Any]:
        """The shardings of `(args, kwargs)` of the program on a mesh, memories included."""
        memories = self.spmd.program.argument_memory
        made: tuple[Any, Any] = shardings(
            self.signature, self.spmd.argument_layouts, memories, mesh
        )
        return made


def _emitter(form: Form) -> Callable[[SpmdProgram], Any]:
    forms: dict[str, Callable[[SpmdProgram], Any]] = {
        "partitioned": emit,
        "annotated": annotate,
        "given": lambda spmd: annotated(spmd.program, spmd.mesh),
    }
    if form not in forms:
        raise FileError(f"there is no form {form!r}; expected {' or '.join(forms)}")
    return forms[form]


def _shapes(tree: Any) -> str:
    """A pytree with the type of each leaf, for messages."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


def _alike(a: Any, b: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (a, b)]
    # A module by itself is numbered otherwise than one that comes after others.
    modules = isinstance(a, Parts) and isinstance(b, Parts) and a.keys == b.keys
    if structures[0] != structures[1] and not modules:
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
