"""A saved plan, loaded again for the program that it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita import cost
from partita.cost import Hardware
from partita.errors import HardwareError
from partita.frontend.calling import Marked
from partita.frontend.files import Module, read
from partita.frontend.specs import Axes
from partita.mesh import Mesh, MeshInput
from partita.options import boolean
from partita.planning.fixed_layouts import simulated
from partita.planning.prepare import Prepared, prepare
from partita.planning.schedule import Scheduled
from partita.saved.rebase import rebase as again
from partita.saved.restore import Saved, read_plan
from partita.saved.schema import SpecsTable
from partita.saved.translate import NotKept
from partita.text import parse_size


def take_up(
    path: str | Path,
    fn: Callable[..., Any] | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mesh: MeshInput | Mesh | None = None,
    hardware: str | Hardware | None = None,
    memory: float | str | None = None,
    rebase: bool = False,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> tuple[Prepared, Scheduled, tuple[NotKept, ...]]:
    """Applies a plan file to a program, lowers and estimates it, as `partita.load` does.

    With `rebase`, the program and the mesh may have changed since; then the last that is returned
    could not be kept.
    """
    rebases = boolean(rebase, "rebase")
    marked = Marked.of(static_argnums, static_argnames, donate_argnums, donate_argnames)
    donates = donate_argnums is not None or donate_argnames is not None
    saved = read_plan(path)
    over = saved.mesh if mesh is None else Mesh.of(mesh)
    if over == saved.mesh or not rebases:
        saved = saved if mesh is None else saved.over(over)
        over = saved.mesh
    device = cost.load(_device_type_of(saved) if hardware is None else hardware)
    capacity = saved.capacity if device.name == saved.hardware else device.usable_memory
    if memory is not None:
        capacity = parse_size(memory, "memory")
    fn = read(fn) if isinstance(fn, str | Path) else fn
    if not donates:
        given = fn.donate_argnums if isinstance(fn, Module) else ()
        said = saved.table.program
        marked = dataclasses.replace(
            marked,
            donate_argnums=() if given == said.donate_argnums else said.donate_argnums,
            donate_argnames=said.donate_argnames,
        )
    target = (device, capacity)
    # The program is the one that was planned, whatever it is estimated on now.
    planned = saved.hardware in cost.device_types()
    platform = (cost.load(saved.hardware) if planned else device).platform
    prepared = prepare(fn, args, kwargs, over, target, marked, saved.hoist_from, platform)
    if saved.table.program.specs is not None:
        prepared = _simulated(prepared, saved.table.program.specs, rebases)
    if rebases and not (over == saved.mesh and saved.is_for(prepared.program, prepared.traced)):
        return prepared, *again(saved, prepared)
    saved.check_program(prepared.program, prepared.traced)
    return prepared, saved.restore(prepared.context()), ()


def _simulated(prepared: Prepared, said: SpecsTable, rebases: bool) -> Prepared:
    """The program with the shardings that `simulate` was given; if it `rebases`, those that still
    fit."""
    program, mesh = prepared.traced.program, prepared.mesh

    def known(
        specs: Mapping[str, Axes], names: Sequence[str], values: Sequence[int]
    ) -> dict[int, Axes]:
        found = {}
        for name, axes in specs.items():
            if name in names:
                number = names.index(name)
                shape = program.values[values[number]].type.shape
                found[number] = _fitting(axes, shape, mesh) if rebases else axes
        return found

    arguments = known(said.arguments, program.argument_names, program.arguments)
    results = known(said.results, program.result_names, program.results)
    return dataclasses.replace(
        prepared, program=simulated(prepared.traced, arguments, results, mesh)
    )


def _fitting(axes: Axes, shape: Sequence[int], mesh: Mesh) -> Axes:
    """The same sharding for another shape or mesh: its axes up to the first that does not fit."""
    found = []
    for size, row in zip(shape, (*axes, *[()] * len(shape)), strict=False):
        kept: list[str] = []
        for axis in row:
            if axis not in mesh.names or size % mesh.size(tuple(map(mesh.axis, [*kept, axis]))):
                break
            kept.append(axis)
        found.append(tuple(kept))
    return tuple(found)


def _device_type_of(saved: Saved) -> str:
    """The device type of a plan file, if it is one that partita knows."""
    if saved.hardware not in cost.device_types():
        raise HardwareError(
            f"the plan in {str(saved.path)!r} is for hardware {saved.hardware!r}, which is no "
            "device type that partita knows; say hardware=..., the path of its .toml file"
        )
    return saved.hardware
