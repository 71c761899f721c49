"""Numerical comparison of a plan with the original function, both run on host devices.

A wrong gradient hardly shows in weights that it has moved by a thousandth. So both programs run
once more with intermediate values as further results. If one differs by more than rounding
explains, the search continues among the values before it. It ends at the first in program order,
and reports the user's source line.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.emit.observe import Point, observed, on_one_device, points
from partita.errors import UnsupportedError
from partita.mesh import Mesh
from partita.program import Program
from partita.run.executable import Executable
from partita.spmd.instructions import Reshard, While
from partita.stablehlo import mlir
from partita.stablehlo.internals import platform_of
from partita.verify.backends.host import Host
from partita.verify.number_check import NumberCheck, NumberRow, Origin
from partita.verify.random_arguments import drawn
from partita.verify.rounding import SHAKEN, Rounding, as_numbers, distance, largest, shaken

AT_ONCE = 96
"""Intermediate values that become results in one run: each is held unsharded, twice. Of more, some
evenly spaced ones are compared first."""
SEEDS = 2
"""Evaluations of the original that say what rounding does."""


def check_numbers(
    executable: Executable, arguments: tuple[Any, Any] | None, seed: int, notes: Sequence[str] = ()
) -> NumberCheck:
    """Runs a plan and the original on host devices; `Plan.check_numbers` documents the rest.

    Args:
      executable: of the plan, as it runs on hosts.
      arguments: `(args, kwargs)` without static ones; drawn at random if None.
      seed: of the random arguments.
      notes: further lines of the report.

    Raises:
      MeshError: this process has too few host devices.
      UnsupportedError: several processes share the devices.
    """
    if jax.process_count() > 1:
        raise UnsupportedError(
            "numbers are checked in one process; run it alone, with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={executable.spmd.mesh.devices}"
        )
    on_hosts = platform_of() == "cpu"
    mesh = executable.device_mesh() if on_hosts else Host(None).device_mesh(executable.spmd.mesh)
    if arguments is not None:
        return _Check(executable, mesh, arguments, "With the arguments given.").run(notes)
    told = f"With random arguments of seed {seed}."
    check = _Check(executable, mesh, drawn(executable.arguments, seed), told)
    if not all(np.isfinite(_floats(leaf)).all() for leaf in check.theirs):
        told = f"With random arguments of seed {seed}, none of them negative."
        again = drawn(executable.arguments, seed, positive=True)
        check = _Check(executable, mesh, again, told)
    return check.run(notes)


def _floats(array: np.ndarray) -> np.ndarray:
    """Converts narrow floating-point arrays to float32, for numpy to test which elements are
    finite."""
    small = array.dtype.itemsize < 4 and array.dtype.kind not in "biu"
    return array.astype(np.float32) if small else array


class _Check:
    """The two programs on certain arguments."""

    def __init__(
        self,
        executable: Executable,
        mesh: jax.sharding.Mesh,
        arguments: tuple[Any, Any],
        told: str,
    ) -> None:
        self.executable, self.mesh, self.told = executable, mesh, told
        self.program = executable.spmd.program
        leaves, self.structure = jax.tree.flatten(arguments)
        self.leaves = [_anywhere(leaf) for leaf in leaves]
        self.notes: list[str] = []

    def run(self, notes: Sequence[str] = ()) -> NumberCheck:
        ours = self._numbers(self.executable, self.mesh)(self.leaves)
        measured = functools.partial(self._measured, self._original, self.theirs)
        rows = tuple(
            _row(self.program, self.rounding, number, mine, its, measured)
            for number, (mine, its) in enumerate(zip(ours, self.theirs, strict=True))
        )
        origin = self._origin()
        if origin is None and not all(row.ok for row in rows):
            self.notes.append(
                "Where it begins was not found: no intermediate value outside of loops differs "
                "when it is kept. It is in how the compiler fuses them, or in what devices add up "
                "only at the end."
            )
        told = (*notes, *self.notes)
        return NumberCheck(
            self.program.name, self.executable.spmd.mesh, self.told, rows, origin, told
        )

    @functools.cached_property
    def rounding(self) -> Rounding:
        """Effect of rounding on the program's values."""
        return Rounding(self.program)

    @functools.cached_property
    def theirs(self) -> list[np.ndarray]:
        """The results of the original function, unpartitioned."""
        original = jax.jit(self.executable.function.original)
        with jax.default_device(self.mesh.devices.flat[0]):
            try:
                return [as_numbers(leaf) for leaf in original(*self.leaves)]
            except Exception as error:
                self.notes.append(
                    "Compared with the program that was traced: the function itself does not run "
                    f"on one device ({type(error).__name__})."
                )
        return self._original(self.leaves)

    @functools.cached_property
    def _original(self) -> Callable[[Sequence[Any]], list[np.ndarray]]:
        """Runs the program as traced, on one device."""
        return self._numbers(*self._alone(self.executable))

    def _alone(self, executable: Executable) -> tuple[Executable, jax.sharding.Mesh]:
        spmd = on_one_device(executable.spmd)
        device = np.array(self.mesh.devices.flat[:1]).reshape(spmd.mesh.sizes)
        return dataclasses.replace(executable, spmd=spmd), jax.sharding.Mesh(
            device, spmd.mesh.names
        )

    def _numbers(
        self, executable: Executable, mesh: jax.sharding.Mesh
    ) -> Callable[[Sequence[Any]], list[np.ndarray]]:
        """Returns a function from flat arguments to an executable's results as numbers; donates
        none."""
        planned = executable.jit(mesh, donate_argnums=())

        def run(leaves: Sequence[Any]) -> list[np.ndarray]:
            args, kwargs = executable.static.among(*jax.tree.unflatten(self.structure, leaves))
            return [as_numbers(leaf) for leaf in jax.tree.leaves(planned(*args, **kwargs))]

        return run

    def _measured(
        self,
        original: Callable[[Sequence[Any]], list[np.ndarray]],
        theirs: Sequence[np.ndarray],
        number: int,
    ) -> float:
        """Measures how much rounding changes a result of the original."""
        found = 0.0
        for seed in range(SEEDS):
            moved = _shaken(self.leaves, self.rounding.coarsest, seed)
            found = max(found, distance(original(moved)[number], theirs[number]))
        return found

    # ---------------------------------------------------------------- where it begins

    def _origin(self) -> Origin | None:
        """The first point that differs: among some of all first, then among those before."""
        left = [p for p in points(self.executable.spmd) if _has_numbers(self.program, p.value)]
        while left:
            step = -(-len(left) // AT_ONCE)
            chosen = left[step - 1 :: step]
            chosen += left[-1:] if chosen[-1] is not left[-1] else []
            found = self._first(chosen)
            if found is None:
                break
            place, origin = found
            if step == 1:
                return origin
            end = left.index(chosen[place]) + 1
            left = left[left.index(chosen[place - 1]) + 1 if place else 0 : end]
        return None

    def _first(self, chosen: Sequence[Point]) -> tuple[int, Origin] | None:
        """The first of some points that differs, and its place among them."""
        spmd = observed(self.executable.spmd, chosen)
        values = self.program.values
        results = (self.executable.results, [mlir.shape_of(values[p.value].type) for p in chosen])
        seen = dataclasses.replace(self.executable, spmd=spmd, results=results)
        original = self._numbers(*self._alone(seen))
        count = len(chosen)
        ours = self._numbers(seen, self.mesh)(self.leaves)[-count:]
        theirs = original(self.leaves)[-count:]

        def last(leaves: Sequence[Any]) -> list[np.ndarray]:
            return original(leaves)[-count:]

        for place, (point, mine, its) in enumerate(zip(chosen, ours, theirs, strict=True)):
            apart, allowed = distance(mine, its), self.rounding.tolerance(point.value)
            if apart > allowed and apart > SHAKEN * self._measured(last, theirs, place):
                made = _made_by(self.program, spmd.mesh, point)
                return place, Origin(made, f"%{point.value}", apart, allowed)
        return None


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.dtype(float)), jax.dtypes.prng_key)


def _anywhere(leaf: Any) -> Any:
    """An argument that is on no device yet; Python's numbers and random keys as they are."""
    return np.asarray(leaf) if hasattr(leaf, "dtype") and not _is_key(leaf) else leaf


def _shaken(leaves: Sequence[Any], coarsest: float, seed: int) -> list[Any]:
    """Arrays moved in the last place; Python's numbers and random keys as they are."""
    numbers = [number for number, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]
    moved = shaken([leaves[number] for number in numbers], coarsest, seed)
    made = list(leaves)
    for number, leaf in zip(numbers, moved, strict=True):
        made[number] = leaf
    return made


def _row(
    program: Program,
    rounding: Rounding,
    number: int,
    ours: np.ndarray,
    theirs: np.ndarray,
    measured: Callable[[int], float],
) -> NumberRow:
    apart, allowed = distance(ours, theirs), rounding.tolerance(program.results[number])
    return NumberRow(
        program.result_names[number],
        str(theirs.dtype),
        theirs.shape,
        apart,
        largest(_floats(theirs)),
        allowed,
        measured(number) if apart > allowed else None,
        bool(np.isfinite(_floats(theirs)).all()),
    )


def _has_numbers(program: Program, value: int) -> bool:
    """Returns whether JAX makes arrays of a value's type: 64-bit types need `jax_enable_x64`."""
    dtype = mlir.element_types().get(program.values[value].type.dtype)
    return dtype is not None and jax.dtypes.canonicalize_dtype(dtype) == dtype


def _made_by(program: Program, mesh: Mesh, point: Point) -> str:
    """Describes the producer of a value in words."""
    item, producer = point.instruction, program.values[point.value].producer
    op = None if producer is None else program.operations[producer]
    where = f" at {op.source}" if op is not None and op.source else ""
    if isinstance(item, Reshard):
        axes = ",".join(mesh.axis_names(item.step.axes))
        return f"the {item.step.kind} over {axes} of what is made{where}"
    if isinstance(item, While):
        return f"the loop{where}"
    return f"{op.short}{where}" if op is not None else program.describe(point.value)
