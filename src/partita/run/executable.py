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
from partita.errors import FileError, MeshError, TacticError
from partita.files import write
from partita.frontend.files import contents, format_of
from partita.mesh import Mesh
from partita.spmd.program import SpmdProgram
from partita.stablehlo import mlir
from partita.stablehlo.adapt import adapt, lacks
from partita.stablehlo.artifact import artifact
from partita.stablehlo.internals import platform_of
from partita.tiling import Layout, spec

Form = Literal["partitioned", "annotated"]
"""Which program: with its collectives explicit, or the original with shardings on its values."""


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
    """The SPMD program as an `Exported` over an abstract mesh; needs no device.

    Args:
      spmd: the program.
      arguments: `(args, kwargs)` of the original function, as `ShapeDtypeStruct`s.
      results: its results, as `ShapeDtypeStruct`s.
      module: another form of the program, within its MLIR context.
      platform: what runs it, if that is not what it is lowered for.
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

    @cached_property
    def in_shardings(self) -> Any:
        """`PartitionSpec`s of the positional arguments, for plain `jax.jit` under a mesh."""
        args, _ = layout_tree(self.signature, self.spmd.argument_layouts, self._spec)
        return args[: len(self.arguments[0])]

    @cached_property
    def out_shardings(self) -> Any:
        """`PartitionSpec`s of the results, for plain `jax.jit` under a mesh."""
        return layout_tree(self.results, self.spmd.result_layouts, self._spec)

    @cached_property
    def exported(self) -> jax.export.Exported:
        """The partitioned program as an artifact of `jax.export`, called as the function is.

        With hoisted constants, it takes keyword arguments as one dict, and the constants last.
        """
        return export(self.spmd, self.signature, self.results)

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
        jitted = self._jitted(concrete, self._exported_on(concrete), donate_argnums)
        if not (self.closed_over or self.arguments[1]):
            return jitted
        constants: tuple[Any, ...] = ()
        if self.closed_over:
            args, _ = self._placed(concrete)
            constants = jax.device_put(self.closed_over, args[-1])
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
        args, kwargs = self.signature
        concrete = self.device_mesh(mesh)
        with mlir.context():
            module = None if form == "partitioned" else _emitter(form)(self.spmd)
            exported = self._exported_on(concrete, module)
        jitted = self._jitted(concrete, exported)
        return jitted.lower(*args, *([kwargs] if kwargs else []))

    def _exported_on(self, mesh: jax.sharding.Mesh, module: Any = None) -> jax.export.Exported:
        """A form of the program for the devices of a mesh."""
        platform = platform_of(mesh.devices.flat[0])
        if module is None and not lacks(self.spmd.program, platform):
            return self.exported
        return export(self.spmd, self.signature, self.results, module, platform)

    def _jitted(
        self,
        mesh: jax.sharding.Mesh,
        exported: jax.export.Exported,
        donate_argnums: int | Sequence[int] | None = None,
    ) -> Any:
        """An exported form under `jax.jit`; keyword arguments and constants come last."""
        args, kwargs = self._placed(mesh)

        def call(*args: Any) -> Any:
            # Keyword arguments come last, in one dict: jax.jit takes no shardings for keywords.
            return exported.call(*args[:-1], **args[-1]) if kwargs else exported.call(*args)

        program = self.spmd.program
        call.__name__ = call.__qualname__ = program.name
        return jax.jit(
            call,
            in_shardings=(*args, kwargs) if kwargs else args,
            out_shardings=shardings(
                self.results, self.spmd.result_layouts, program.result_memory, mesh
            ),
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
            written = emitter(self.spmd)
            adapt(written, self.spmd.program)
            data = contents(
                written,
                suffix,
                lambda module: export(self.spmd, self.signature, self.results, module),
            )
        write(path, data)

    def init(
        self, init_fn: Callable[..., Any], *args: Any, mesh: jax.sharding.Mesh | None = None
    ) -> Any:
        """Runs `init_fn(*args)` so that its result is made sharded, as the plan takes it.

        The result must be nested and shaped as one of the plan's arguments; of several that are
        alike, the first counts. It is never unsharded on one device.

        Raises:
          TacticError: the result is like none of the plan's arguments.
          MeshError: too few devices, or a mesh with other axes.
        """
        made = jax.eval_shape(init_fn, *args)
        concrete = self.device_mesh(mesh)
        placed, _ = self._placed(concrete)
        for argument, where in zip(self.arguments[0], placed, strict=False):
            if _alike(made, argument):
                return jax.jit(init_fn, out_shardings=where)(*args)
        wanted = " or ".join(_shapes(argument) for argument in self.arguments[0])
        raise TacticError(
            f"the result of {getattr(init_fn, '__name__', init_fn)} is nested or shaped like none "
            f"of the arguments of {self.spmd.program.name}: got {_shapes(made)}, expected {wanted}"
        )

    def shard(self, *args: Any, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """Puts arguments on the devices as the plan takes them; one for each position given."""
        wanted, _ = self._placed(self.device_mesh(mesh))
        count = min(len(args), len(self.arguments[0]))
        placed: tuple[Any, ...] = jax.device_put(args, wanted[:count])
        return placed

    def abstract(self, mesh: jax.sharding.Mesh | None = None) -> tuple[Any, ...]:
        """The positional arguments as `ShapeDtypeStruct`s with the shardings that the plan wants.

        What restores a checkpoint in shards takes such a tree.

        Raises:
          MeshError: too few devices, or a mesh with other axes.
        """
        placed, _ = self._placed(self.device_mesh(mesh))
        args: tuple[Any, ...] = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=sharding
            ),
            self.arguments[0],
            placed[: len(self.arguments[0])],
        )
        return args

    def device_mesh(self, mesh: jax.sharding.Mesh | None = None) -> jax.sharding.Mesh:
        """A concrete mesh for the plan: the one given, checked, or one of `jax.devices()`."""
        if mesh is not None:
            given = Mesh.of(mesh)
            if given != self.spmd.mesh:
                raise MeshError(f"the plan is for mesh {self.spmd.mesh}, the mesh given is {given}")
            return mesh
        devices = jax.devices()
        if len(devices) < self.spmd.mesh.devices:
            raise MeshError(
                f"mesh {self.spmd.mesh} needs {self.spmd.mesh.devices} devices, this process sees "
                f"{len(devices)} ({devices[0].platform}); plan for a smaller mesh, on many hosts "
                "call jax.distributed.initialize first, or for tests set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.spmd.mesh.devices}"
            )
        processes = {device.process_index for device in devices[: self.spmd.mesh.devices]}
        if len(processes) < jax.process_count():
            raise MeshError(
                f"mesh {self.spmd.mesh} takes the first {self.spmd.mesh.devices} of "
                f"{len(devices)} devices, and these belong to {len(processes)} of "
                f"{jax.process_count()} processes; every process must have a part: "
                f"plan for {len(devices)} devices, or give a mesh= of {self.spmd.mesh.devices} "
                "that all processes share"
            )
        if len(devices) == self.spmd.mesh.devices:
            return jax.make_mesh(
                self.spmd.mesh.sizes,
                self.spmd.mesh.names,
                axis_types=(jax.sharding.AxisType.Auto,) * len(self.spmd.mesh.names),
            )
        grid = np.array(devices[: self.spmd.mesh.devices]).reshape(self.spmd.mesh.sizes)
        return jax.sharding.Mesh(grid, self.spmd.mesh.names)

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


class Completed:
    """A jitted function that takes keyword arguments as a dict, and then constants, at the end."""

    def __init__(self, jitted: Any, keywords: bool, constants: tuple[Any, ...]) -> None:
        self._jitted = jitted
        self._keywords = keywords
        self._constants = constants

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it as the function that was planned."""
        return self._jitted(*args, *self._rest(kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers for these arguments, as `jax.jit`'s `lower` does."""
        return self._jitted.lower(*args, *self._rest(kwargs))

    def _rest(self, kwargs: dict[str, Any]) -> list[Any]:
        if kwargs and not self._keywords:
            raise TypeError(f"unexpected keyword arguments {', '.join(kwargs)}")
        rest: list[Any] = [kwargs] if self._keywords else []
        return [*rest, self._constants] if self._constants else rest


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
