"""`plan`, `load` and `jit`: the front door."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from partita.cost import Hardware
from partita.errors import MeshError, TacticError, renamed
from partita.frontend.specs import axes_of
from partita.frontend.trace import abstract, memory_of, sharding_of
from partita.mesh import Mesh, MeshInput
from partita.options import function, hoisting, integer, positions
from partita.plan import Plan
from partita.planning.prepare import prepare, targeted
from partita.tactics import AutomaticPartition, Tactic
from partita.tactics.options import as_tactics
from partita.tactics.protocol import Progress
from partita.text import parse_size

_HOISTED = 1024
"""Bytes of the smallest closed-over constant that is worth to be sharded."""


def plan(
    fn: Callable[..., Any] | str | Path,
    *args: Any,
    mesh: MeshInput | Mesh,
    hardware: str | Hardware | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = 1500,
    donate_argnums: int | Sequence[int] = (),
    hoist_constants: bool | float | str = False,
    progress: Progress = lambda done, total, text: None,
    lift_constants: bool | float | str | None = None,
    **kwargs: Any,
) -> Plan:
    """Decides how a function is partitioned over a mesh, and what that costs.

    Nothing is run and no device memory is touched.

    Args:
      fn: a JAX function, plain or under `jax.jit` (its donation is taken over); or a program in a
        file: its path, or what `read` returns.
      *args: arrays or `jax.ShapeDtypeStruct`s, nested as `fn` takes them; none for a file, which
        says itself what it takes.
      mesh: a dict of axis sizes, a string such as `"data=4,model=2"`, a `jax.sharding.Mesh` or an
        `AbstractMesh`.
      hardware: a kind (`partita hardware` lists them), a path to a `.toml` file, or `Hardware`; by
        default the kind of the devices at hand.
      tactics: the schedule, in order, or a single tactic; one `AutomaticPartition` over all axes
        by default.
      memory: bytes per device that the plan may use, or a string such as `"12GiB"`; by default
        what the hardware has.
      seed: of the default tactic's search.
      budget: of the default tactic's search, in plans evaluated.
      donate_argnums: positions of arguments whose buffers the results may take over.
      hoist_constants: makes closed-over constants, arrays that the function reads from outside,
        arguments of the program, named `constants[0]`, `constants[1]`, ..., which tactics can
        shard; `Plan.jit` passes them by itself. True for those of at least 1 KiB, or a size, as
        for `memory`.
      progress: called with (done, total, text) while a search runs.
      lift_constants: the former name of `hoist_constants`.
      **kwargs: keyword arguments of `fn`.

    Raises:
      PartitaError: of the kind that fits (`TraceError`, `FileError`, `MeshError`, `AxisError`,
        `HardwareError`, `UnknownNameError`, `UnsupportedError`, ...).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
      >>> w = jax.ShapeDtypeStruct((32, 16), jnp.float32)
      >>> p = plan(lambda x, w: x @ w, x, w, mesh="data=8", hardware="tpu_v5e")
      >>> p.in_shardings[0]
      P('data',)
    """
    if lift_constants is not None:
        renamed("lift_constants=", "hoist_constants=")
        hoist_constants = lift_constants
    mesh, schedule = _checked(mesh, tactics, seed, budget)
    hoist_from = hoisting(hoist_constants, "hoist_constants", _HOISTED)
    donated = positions(donate_argnums, "donate_argnums")
    function(progress, "progress")
    target = targeted(hardware, memory)
    prepared = prepare(fn, args, kwargs, mesh, target, donated, hoist_from)
    return Plan.of(prepared, prepared.schedule(schedule, progress))


def _checked(
    mesh: MeshInput | Mesh, tactics: Sequence[Tactic] | Tactic | None, seed: int, budget: int
) -> tuple[Mesh, list[Tactic]]:
    """The mesh and the schedule, once it is known that they fit each other."""
    mesh = Mesh.of(mesh)
    integer(seed, "seed")
    integer(budget, "budget", 1)
    default = AutomaticPartition(budget=budget, seed=seed)
    schedule = as_tactics(default if tactics is None else tactics)
    for tactic in schedule:
        for name in _axes_of(tactic):
            mesh.axis(name)
    return mesh, schedule


def load(
    path: str | Path,
    fn: Callable[..., Any] | str | Path,
    *args: Any,
    mesh: MeshInput | Mesh | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> Plan:
    """Takes up a plan that `Plan.save` wrote: no search, and no tactic runs.

    The function is traced, and has to be the program that the plan is for; then the plan is
    lowered and estimated anew.

    Args:
      path: of the plan file.
      fn: the function or file, as `plan` takes it.
      *args: its arguments, as `plan` takes them.
      mesh: to check that the plan is for this mesh, or to lay its axes on other networks.
      hardware: to estimate it on another device type, or on one from a file of your own; by
        default that of the plan.
      memory: as `plan` takes it; by default that of the plan, or what other hardware has.
      donate_argnums: by default those of the plan.
      **kwargs: keyword arguments of `fn`.

    Raises:
      FileError: the file is missing, damaged or of another format; or it is for another program,
        with what differs.
      MeshError: it is for another mesh than the one given.
      PartitaError: as `plan` does for functions and hardware.

    Example:
      >>> import jax, jax.numpy as jnp, tempfile
      >>> x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
      >>> file = tempfile.mkdtemp() + "/plan.json"
      >>> plan(jnp.sin, x, mesh="data=8", hardware="tpu_v5e").save(file)
      >>> load(file, jnp.sin, x).in_shardings
      (P(None, 'data'),)
    """
    return Plan.load(
        path,
        fn,
        *args,
        mesh=mesh,
        hardware=hardware,
        memory=memory,
        donate_argnums=donate_argnums,
        **kwargs,
    )


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: MeshInput | Mesh | None = None,
    saved: str | Path | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = 1500,
    donate_argnums: int | Sequence[int] = (),
    hoist_constants: bool | float | str = False,
    lift_constants: bool | float | str | None = None,
) -> Any:
    """A function that is planned at its first call and then runs partitioned, as `jax.jit` does.

    Plans are made once for each combination of argument shapes and types; `.plans` holds them.
    Arguments that are sharded otherwise than a plan takes them, over the axes of `mesh`, get a
    plan of their own. Takes the keyword arguments of `plan`, and can be used as a decorator. With
    `saved`, a file that `Plan.save` wrote, nothing is planned: `load` takes that plan up, for the
    arguments that it is for and no others.

    Example:
      >>> import jax.numpy as jnp
      >>> double = jit(lambda x: 2 * x, mesh="data=1", hardware="cpu")
      >>> double(jnp.ones(4)).tolist()
      [2.0, 2.0, 2.0, 2.0]
    """
    if lift_constants is not None:
        renamed("lift_constants=", "hoist_constants=")
        hoist_constants = lift_constants
    options: dict[str, Any] = {
        "mesh": mesh,
        "tactics": tactics,
        "hardware": hardware,
        "memory": memory,
        "seed": seed,
        "budget": budget,
        "donate_argnums": donate_argnums,
        "hoist_constants": hoist_constants,
    }
    if fn is None:
        return functools.partial(jit, saved=saved, **options)
    function(fn, "fn")
    positions(donate_argnums, "donate_argnums")
    hoisting(hoist_constants, "hoist_constants", _HOISTED)
    if memory is not None:
        parse_size(memory, "memory")
    make: Callable[..., Plan]
    if saved is not None:
        if tactics is not None:
            raise TacticError("jit(saved=...) takes a plan up as it is; leave tactics= out")
        donated = None if donate_argnums == () else donate_argnums
        make = functools.partial(
            load, saved, fn, mesh=mesh, hardware=hardware, memory=memory, donate_argnums=donated
        )
    elif mesh is not None:
        _checked(mesh, tactics, seed, budget)
        make = functools.partial(plan, fn, **options)
    else:
        raise MeshError('jit needs mesh=..., such as "data=8", or saved=..., a plan file')
    concrete = mesh if isinstance(mesh, jax.sharding.Mesh) else None
    axes = None if mesh is None or saved is not None else Mesh.of(mesh)
    plans: dict[Any, Plan] = {}
    compiled: dict[Any, Any] = {}

    @functools.wraps(fn)
    def partitioned(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        try:
            types = (structure, tuple(map(_key, leaves)))
        except TypeError:
            abstract(fn, args, kwargs)  # says which leaf is no array
            raise
        given = tuple(sharding_of(leaf, axes) for leaf in leaves) if axes else ()
        key = (types, given)
        if key not in compiled:
            alike = (
                compiled[k] for k, made in plans.items() if k[0] == types and _takes(made, given)
            )
            if (known := next(alike, None)) is not None:
                compiled[key] = known
        if key not in compiled:
            plans[key] = make(*args, **kwargs)
            compiled[key] = plans[key].jit(concrete)
        return compiled[key](*args, **kwargs)

    partitioned.plans = plans  # type: ignore[attr-defined]
    return partitioned


def _key(leaf: Any) -> tuple[tuple[int, ...], str, bool, str]:
    aval, memory = jax.typeof(leaf), memory_of(getattr(leaf, "sharding", None))
    return aval.shape, str(aval.dtype), bool(getattr(aval, "weak_type", False)), memory


def _takes(made: Plan, given: Sequence[Any]) -> bool:
    """Whether arguments with these shardings, None for any, are as a plan takes them."""
    return all(
        sharding is None
        or axes_of(sharding.spec, len(layout), "")[0] == tuple(map(made.mesh.axis_names, layout))
        for sharding, layout in zip(given, made.spmd.argument_layouts, strict=False)
    )


def _axes_of(tactic: Tactic) -> list[str]:
    """Axes that a tactic names, so that a wrong one is found before anything is traced."""
    named = getattr(tactic, "axes", None) or getattr(tactic, "axis", None) or ()
    return [named] if isinstance(named, str) else list(named)
