"""`plan` and `jit`: the front door."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import source_info_util

from partita import cost
from partita.analysis import analyse
from partita.cost import Hardware
from partita.errors import HardwareError, TraceError
from partita.mesh import Mesh, MeshInput
from partita.plan import Plan
from partita.program.files import Module, read
from partita.program.stages import in_stages
from partita.program.trace import Traced, abstract, trace
from partita.schedule import run_schedule
from partita.tactics import AutomaticPartition, Context, Tactic
from partita.tactics.base import Progress
from partita.tactics.given import GivenShardings

# Source lines are the user's: keep this file out of the locations that JAX records.
source_info_util.register_exclusion(__file__)

_LIFTED = 1024
"""Bytes of the smallest constant that is worth to be split."""


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
    lift_constants: bool | float | str = False,
    progress: Progress = lambda done, total, text: None,
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
      budget: of the default tactic's search, in plans priced.
      donate_argnums: positions of arguments whose buffers the results may take over.
      lift_constants: makes arrays that the function closes over arguments of the program, named
        `constants[0]`, `constants[1]`, ..., which tactics can split; `Plan.jit` passes them by
        itself. True for those of at least 1 KiB, or a size, as for `memory`.
      progress: called with (done, total, text) while a search runs.
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
    mesh = Mesh.of(mesh)
    lift_from = None if lift_constants is False else _LIFTED
    if not isinstance(lift_constants, bool):
        lift_from = _bytes(lift_constants, "lift_constants")
    device = cost.load(hardware if hardware is not None else _hardware_at_hand())
    capacity = int(device.memory.value) if memory is None else _bytes(memory, "memory")
    if tactics is None:
        tactics = [AutomaticPartition(budget=budget, seed=seed)]
    elif not isinstance(tactics, Sequence):
        tactics = [tactics]
    for tactic in tactics:
        for name in _axes_of(tactic):
            mesh.axis(name)
    if isinstance(fn, str | Path):
        fn = read(fn)
    if isinstance(fn, Module):
        traced: Traced = _from_file(fn, args, kwargs, donate_argnums, lift_from)
    else:
        traced = trace(fn, args, kwargs, donate_argnums, lift_from)
    program = in_stages(traced.program, mesh.devices)
    if program.given:
        tactics = [GivenShardings(program.given), *tactics]
    context = Context(
        analyse(program),
        mesh,
        device,
        capacity,
        progress,
        traced.arguments,
        traced.results,
    )
    done = run_schedule(context, tactics)
    return Plan(fn, done, traced.donate_argnums, traced.lifted)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: MeshInput | Mesh,
    tactics: Sequence[Tactic] | Tactic | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    seed: int = 0,
    budget: int = 1500,
    donate_argnums: int | Sequence[int] = (),
    lift_constants: bool | float | str = False,
) -> Any:
    """A function that is planned at its first call and then runs partitioned, as `jax.jit` does.

    Plans are made once for each combination of argument shapes and types; `.plans` holds them.
    Takes the keyword arguments of `plan`, and can be used as a decorator.

    Example:
      >>> import jax.numpy as jnp
      >>> double = jit(lambda x: 2 * x, mesh="data=1", hardware="cpu")
      >>> double(jnp.ones(4)).tolist()
      [2.0, 2.0, 2.0, 2.0]
    """
    if fn is None:
        return functools.partial(
            jit,
            mesh=mesh,
            tactics=tactics,
            hardware=hardware,
            memory=memory,
            seed=seed,
            budget=budget,
            donate_argnums=donate_argnums,
            lift_constants=lift_constants,
        )
    concrete = mesh if isinstance(mesh, jax.sharding.Mesh) else None
    plans: dict[Any, Plan] = {}
    compiled: dict[Any, Any] = {}

    @functools.wraps(fn)
    def partitioned(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        try:
            key = (structure, tuple(map(_key, leaves)))
        except TypeError:
            abstract(fn, args, kwargs)  # says which leaf is no array
            raise
        if key not in compiled:
            plans[key] = plan(
                fn,
                *args,
                mesh=mesh,
                tactics=tactics,
                hardware=hardware,
                memory=memory,
                seed=seed,
                budget=budget,
                donate_argnums=donate_argnums,
                lift_constants=lift_constants,
                **kwargs,
            )
            compiled[key] = plans[key].jit(concrete)
        return compiled[key](*args, **kwargs)

    partitioned.plans = plans  # type: ignore[attr-defined]
    return partitioned


def _from_file(
    module: Module, args: Any, kwargs: Any, donate_argnums: Any, lift_from: int | None
) -> Module:
    if args or kwargs:
        raise TraceError(
            f"{module.__name__} is read from a file, which says itself what arguments it takes; "
            "plan it without arguments"
        )
    module = module if donate_argnums == () else module.donating(donate_argnums)
    return module if lift_from is None else module.lifting(lift_from)


def _key(leaf: Any) -> tuple[tuple[int, ...], str, bool]:
    aval = jax.typeof(leaf)
    return aval.shape, str(aval.dtype), bool(getattr(aval, "weak_type", False))


def _axes_of(tactic: Tactic) -> list[str]:
    """Axes that a tactic names, so that a wrong one is found before anything is traced."""
    named = getattr(tactic, "axes", None) or getattr(tactic, "axis", None) or ()
    return [named] if isinstance(named, str) else list(named)


def _hardware_at_hand() -> str:
    kind = jax.devices()[0].device_kind
    name = cost.kind_of(kind)
    if name is not None:
        return name
    raise HardwareError(
        f"no hardware file for the devices at hand ({kind!r}); say hardware=..., one of "
        f"{', '.join(cost.kinds())}, or a path to a .toml file"
    )


def _bytes(memory: float | str, what: str) -> int:
    if not isinstance(memory, str):
        return int(memory)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?\s*", memory)
    if not match:
        raise HardwareError(f'cannot read {what}="{memory}"; expected bytes or e.g. "12GiB"')
    power = " KMGT".index((match[2] or " ")[0].upper())
    base = 1024 if (match[2] or "").endswith("i") else 1000
    return int(float(match[1]) * base**power)
