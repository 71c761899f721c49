"""Prepares a schedule: the target, the traced program, and what is known of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from partita import cost
from partita.analysis import analyse
from partita.cost import Hardware
from partita.decisions import Context, Progress, silent
from partita.errors import HardwareError, TraceError
from partita.frontend.calling import UNMARKED, Marked
from partita.frontend.files import Module, read
from partita.frontend.trace import Traced, asks_for_mesh, of_arrays, trace
from partita.mesh import Mesh
from partita.options import integer
from partita.planning.schedule import Scheduled, run_schedule
from partita.program import Program
from partita.stablehlo.rewritten import for_devices
from partita.tactics import AutomaticPartition, Tactic
from partita.tactics.given import with_facts
from partita.tactics.options import as_tactics, changing_first, named_axes
from partita.text import parse_size


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A function or file that is traced and ready to be partitioned over a mesh."""

    fn: Any
    """Function that is planned, or the module of a file."""
    traced: Traced
    program: Program
    """Program to partition, with the arguments and results of the trace."""
    mesh: Mesh
    hardware: Hardware
    capacity: int
    """Bytes per device that the plan may use."""

    def context(self, progress: Progress = silent) -> Context:
        """The program analysed, on its mesh and hardware."""
        return self._analysed.telling(progress)

    @functools.cached_property
    def _analysed(self) -> Context:
        return Context(
            analyse(self.program, int(self.hardware.regather_window.value)),
            self.mesh,
            self.hardware,
            self.capacity,
            arguments=self.traced.arguments,
            results=self.traced.results,
        )

    def schedule(
        self,
        tactics: Sequence[Tactic],
        progress: Progress = silent,
        decides: bool = False,
    ) -> Scheduled:
        """Applies what the program says itself, then tactics in order.

        Args:
          tactics: the schedule.
          progress: called while a search runs.
          decides: whether what the program says is all there is, so that nothing stays open.
        """
        changing, others = changing_first(tactics)
        if not changing:
            facts = with_facts(self.program, self.mesh, tactics, decides=decides)
            return run_schedule(self.context(progress), facts)
        done = run_schedule(self.context(progress), changing)
        for tactic in with_facts(done.program, self.mesh, others, decides=decides):
            done = done.then(tactic)
        return done


def prepare(
    fn: Callable[..., Any] | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: Mesh,
    target: tuple[Hardware, int],
    marked: Marked = UNMARKED,
    hoist_from: int | None = None,
    platform: str | None = None,
    open_mesh: bool = False,
) -> Prepared:
    """Traces a function, or reads a file, for a mesh and a target as `targeted` gives it.

    A function is lowered for the platform of the target, if no other is given. Of an open mesh only
    the number of devices is known: the function is not for its axes, nor do arrays lie over them.
    """
    platform = target[0].platform if platform is None else platform
    known = None if open_mesh else mesh
    try:
        fn, traced = traced_or_read(fn, args, kwargs, known, marked, hoist_from, platform)
    except TraceError as error:
        if open_mesh and asks_for_mesh(error):
            hint = "which mesh it is, is not known while it is traced: use partita.constrain"
            raise TraceError(f"{error} With devices=, {hint}, or give mesh=") from error.__cause__
        raise
    return Prepared(fn, traced, rewritten(traced.program, mesh), mesh, *target)


def checked(
    mesh: Mesh | None, tactics: Sequence[Tactic] | Tactic | None, seed: int, budget: int
) -> list[Tactic]:
    """The tactics of a call, once it is known that the mesh has the axes that they name.

    By default a search over all axes, with this seed and budget.
    """
    integer(seed, "seed")
    integer(budget, "budget", 1)
    default = AutomaticPartition(budget=budget, seed=seed)
    schedule = as_tactics(default if tactics is None else tactics)
    if mesh is not None:
        for tactic in schedule:
            for name in named_axes(tactic):
                mesh.axis(name)
    return schedule


def rewritten(program: Program, mesh: Mesh) -> Program:
    """The same program with what can be done in parts on a mesh written so."""
    return for_devices(program, mesh.devices)


def targeted(hardware: str | Hardware | None, memory: float | str | None) -> tuple[Hardware, int]:
    """The device that a plan is for, and the bytes of it that may be used."""
    device = cost.load(hardware if hardware is not None else _hardware_at_hand())
    return device, device.usable_memory if memory is None else parse_size(memory, "memory")


def traced_or_read(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: Mesh | None,
    marked: Marked,
    hoist_from: int | None = None,
    platform: str = "",
) -> tuple[Any, Traced]:
    """A function, lowered for a platform, or the program of a file, with its trace."""
    if isinstance(fn, str | Path):
        fn = read(fn)
    if isinstance(fn, Module):
        return fn, _from_file(fn, args, kwargs, marked, hoist_from)
    fn = of_arrays(fn, args, kwargs, marked)
    traced = trace(fn, args, kwargs, marked, hoist_from, mesh, platform)
    return traced.fn or fn, traced


def _from_file(
    module: Module, args: Any, kwargs: Any, marked: Marked, hoist_from: int | None
) -> Module:
    if args or kwargs:
        raise TraceError(
            f"{module.__name__} is read from a file, which says itself what arguments it takes; "
            "plan it without arguments"
        )
    if marked.static_argnums or marked.static_argnames or marked.donate_argnames:
        raise TraceError(
            f"{module.__name__} is read from a file: none of its arguments are static, and they "
            "are donated by number; leave static_argnums, static_argnames, donate_argnames out"
        )
    if marked.donate_argnums:
        module = module.donating(marked.donate_argnums)
    return module if hoist_from is None else module.hoisting(hoist_from)


def _hardware_at_hand() -> str:
    kind = jax.devices()[0].device_kind
    name = cost.device_type_of(kind)
    if name is not None:
        return name
    raise HardwareError(
        f"no hardware file for the devices at hand ({kind!r}); say hardware=..., one of "
        f"{', '.join(cost.device_types())}, or a path to a .toml file"
    )
