"""`plan` and `jit`: the front door."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cost import Hardware
from partita.decisions import Progress, silent
from partita.errors import MeshError, OptionError, PartitaWarning, TacticError, renamed, warn
from partita.frontend.calling import Marked
from partita.frontend.meant import apart, options_only
from partita.jitted import Jitted
from partita.mesh import Mesh, MeshInput
from partita.options import boolean, function, hoisting, integer, positions
from partita.plan import Plan, loaded
from partita.planning.batch import undivided
from partita.planning.fitting import fitted
from partita.planning.meshes import any_mesh, plan_meshes
from partita.planning.prepare import checked, prepare, targeted
from partita.planning.shapes import Used
from partita.planning.strict import Strict, check, kinds
from partita.search import BUDGET
from partita.tactics import Tactic
from partita.text import parse_size

if TYPE_CHECKING:
    from partita.saved.restore import Saved

_HOISTED = 1024
"""Bytes of the smallest closed-over constant that is worth to be sharded."""


@apart
def plan(
    fn: Callable[..., Any] | str | Path,
    *args: Any,
    mesh: MeshInput | Mesh | None = None,
    devices: int | None = None,
    hardware: str | Hardware | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    hoist_constants: bool | float | str = False,
    strict: Strict = False,
    broadcast: bool = False,
    progress: Progress = silent,
    lift_constants: bool | float | str | None = None,
    **kwargs: Any,
) -> Plan:
    """Decides how a function is partitioned over a mesh, and what that costs.

    Nothing is run and no device memory is touched.

    Args:
      fn: a JAX function, plain or under `jax.jit` (its donation and its static arguments are taken
        over); or a program in a file: its path, or what `read` returns.
      *args: arrays or `jax.ShapeDtypeStruct`s, nested as `fn` takes them, and modules of Flax NNX
        and Equinox, as their own `jit` takes them; none for a file, which says itself what it
        takes.
      mesh: a dict of axis sizes, a string such as `"data=4,model=2"`, a `jax.sharding.Mesh` or an
        `AbstractMesh`. A plan for a `jax.sharding.Mesh` runs on the devices of that mesh.
      devices: in place of a mesh, how many devices it should have: meshes of one to three axes,
        called `x`, `y` and `z`, are planned, and the plan is the best of theirs; `Plan.meshes` has
        all of them.
      hardware: a kind (`partita hardware` lists them), a path to a `.toml` file, or `Hardware`; by
        default the kind of the devices at hand.
      tactics: the schedule, in order, or a single tactic; one `AutomaticPartition` over all axes
        by default.
      memory: bytes per device that the plan may use, or a string such as `"12GiB"`; by default
        what the hardware has.
      seed: of the default tactic's search.
      budget: of the default tactic's search, in plans evaluated.
      donate_argnums: positions of arguments whose buffers the results may take over.
      donate_argnames: names of such arguments; as in `jax.jit`, either is found from the other.
      static_argnums: positions of arguments that are part of the program, as in `jax.jit`: plain
        Python values, which the plan is for.
      static_argnames: names of such arguments.
      hoist_constants: makes closed-over constants, arrays that the function reads from outside,
        arguments of the program, named `constants[0]`, `constants[1]`, ..., which tactics can
        shard; `Plan.jit` passes them by itself. True for those of at least 1 KiB, or a size, as
        for `memory`.
      strict: makes errors of what a report only mentions: True for all of it, or some of
        `"refused"` (requests of tactics), `"donation"` (buffers that no result takes over),
        `"constraints"` (shardings in the program that are not kept), `"replicated"` (arrays of
        1 GiB and more), `"idle"` (axes of the mesh) and `"memory"` (a plan that does not fit); a
        dict `{"replicated": "64MiB"}` says another size.
      broadcast: on many hosts, whether process 0 plans and sends its plan to the others, which
        check that they have the same program; all have to call `plan` then.
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
    return _plan(
        fn,
        args,
        kwargs,
        mesh=mesh,
        devices=devices,
        hardware=hardware,
        tactics=tactics,
        memory=memory,
        seed=seed,
        budget=budget,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        hoist_constants=hoist_constants,
        strict=strict,
        broadcast=broadcast,
        progress=progress,
    )


def _plan(
    fn: Callable[..., Any] | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mesh: MeshInput | Mesh | None,
    devices: int | None,
    hardware: str | Hardware | None,
    tactics: Sequence[Tactic] | Tactic | None,
    memory: float | str | None,
    seed: int,
    budget: int,
    donate_argnums: int | Sequence[int],
    donate_argnames: str | Sequence[str],
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
    hoist_constants: bool | float | str,
    strict: Strict,
    broadcast: bool = False,
    progress: Progress = silent,
) -> Plan:
    """`plan`, where keyword arguments of the function may be called as its options are."""
    known, schedule = mesh_and_schedule(mesh, devices, tactics, seed, budget)
    hoist_from = hoisting(hoist_constants, "hoist_constants", _HOISTED)
    donated = positions(donate_argnums, "donate_argnums")
    function(progress, "progress")
    asked = kinds(strict)
    marked = Marked.of(static_argnums, static_argnames, donated, donate_argnames)

    def make() -> Plan:
        target = targeted(hardware, memory)
        if known is None:
            some = any_mesh(devices, target[0])
            prepared = prepare(fn, args, kwargs, some, target, marked, hoist_from, open_mesh=True)
            run = functools.partial(plan_meshes, prepared)
            return Plan.of(prepared, *fitted(run, schedule, progress))
        prepared = prepare(fn, args, kwargs, known, target, marked, hoist_from)
        return Plan.of(
            prepared,
            *fitted(lambda each, told: (prepared.schedule(each, told), ()), schedule, progress),
        )

    def take_up(saved: Saved) -> Plan:
        over = saved.mesh if known is None else saved.over(known).mesh
        target = targeted(saved.hardware if hardware is None else hardware, memory)
        prepared = prepare(
            fn, args, kwargs, over, target, marked, hoist_from, open_mesh=known is None
        )
        return Plan.of(prepared, same_program(saved, prepared))

    if boolean(broadcast, "broadcast"):
        from partita.saved.broadcast import same_program, together

        made = together(make, Plan.contents, take_up)
    else:
        made = make()
    if asked:
        check(made.problems(strict), made.program.name)
    for said in undivided(made.done):
        warn(said, PartitaWarning)
    return made


def mesh_and_schedule(
    mesh: MeshInput | Mesh | None,
    devices: int | None,
    tactics: Sequence[Tactic] | Tactic | None,
    seed: int,
    budget: int,
) -> tuple[Mesh | None, list[Tactic]]:
    """The mesh and the schedule, once it is known that they fit each other; none for devices."""
    if devices is not None:
        integer(devices, "devices", 1)
    if (mesh is None) == (devices is None):
        both = "either, not both" if mesh is not None else "one of them"
        raise MeshError(
            f'give {both}: mesh=..., such as "data=8", or devices=..., how many devices the mesh '
            "should have that is chosen"
        )
    known = None if mesh is None else Mesh.of(mesh)
    schedule = checked(known, tactics, seed, budget)
    if known is None:
        Used.by(schedule)  # complains before any work
    return known, schedule


@options_only
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: MeshInput | Mesh | None = None,
    devices: int | None = None,
    saved: str | Path | None = None,
    tactics: Sequence[Tactic] | Tactic | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    hoist_constants: bool | float | str = False,
    strict: Strict = False,
    lift_constants: bool | float | str | None = None,
) -> Any:
    """A function that is planned at its first call and then runs partitioned, as `jax.jit` does.

    Plans are made once for each combination of argument shapes, types and static arguments;
    `.plans` holds them. Arguments that are sharded differently from a plan, over the axes
    of `mesh`, get a plan of their own. Takes the keyword arguments of `plan`, and can be used as a
    decorator. With `saved`, a file that `Plan.save` wrote, nothing is planned: `load` takes that
    plan up, for the arguments that it is for and no others.

    It is differentiated, batched, lowered and called inside of other functions as what `jax.jit`
    returns: called or inside, it is the partitioned program, and derivatives are those of the
    original function with its arguments and results sharded as planned.

    Example:
      >>> import jax.numpy as jnp
      >>> double = jit(lambda x: 2 * x, mesh="data=1", hardware="cpu")
      >>> double(jnp.ones(4)).tolist()
      [2.0, 2.0, 2.0, 2.0]
    """
    if lift_constants is not None:
        renamed("lift_constants=", "hoist_constants=")
        hoist_constants = lift_constants
    marks: dict[str, Any] = {
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    options: dict[str, Any] = {
        "mesh": mesh,
        "devices": devices,
        "tactics": tactics,
        "hardware": hardware,
        "memory": memory,
        "seed": seed,
        "budget": budget,
        "hoist_constants": hoist_constants,
        "strict": strict,
        **marks,
    }
    if fn is None:
        return functools.partial(jit, saved=saved, **options)
    function(fn, "fn")
    positions(donate_argnums, "donate_argnums")
    hoist_from = hoisting(hoist_constants, "hoist_constants", _HOISTED)
    if memory is not None:
        parse_size(memory, "memory")
    kinds(strict)
    if saved is not None:
        if tactics is not None:
            raise TacticError("jit(saved=...) takes a plan up as it is; leave tactics= out")
        if strict:
            raise OptionError("jit(saved=...) takes a plan up as it is; leave strict= out")
        if devices is not None:
            raise MeshError("jit(saved=...) has the mesh of the plan; leave devices= out")
        marks |= {name: None for name, marked in marks.items() if marked == ()}
        given: dict[str, Any] = {"mesh": mesh, "hardware": hardware, "memory": memory, **marks}
        make = functools.partial(loaded, saved, fn, **given)
    elif mesh is not None or devices is not None:
        mesh_and_schedule(mesh, devices, tactics, seed, budget)
        make = functools.partial(_plan, fn, **options)
    else:
        raise MeshError(
            'jit needs mesh=..., such as "data=8", devices=..., or saved=..., a plan file'
        )
    axes = None if mesh is None or saved is not None else Mesh.of(mesh)
    return Jitted(fn, make, axes, Marked.of(**marks), hoist_from)
