"""Time of a compiled step, from the cycles that its compiler estimates.

A compiler estimates no cycles for collectives; the ring model of the cost model times those. So
compiled and predicted time differ in compute and in the set of collectives, not in how a collective
is timed.
"""

from __future__ import annotations

from dataclasses import replace

from partita.cost import Hardware
from partita.cost.estimate import StepTime
from partita.cost.network.collectives import Interconnect, interconnect
from partita.cost.network.transfer_time import Part
from partita.mesh import Mesh
from partita.tiling import Axes
from partita.verify.collectives import Found, HloCollective
from partita.verify.device_groups import DeviceGroups


def compiled_time(
    cycles: int, found: list[Found], mesh: Mesh, hardware: Hardware
) -> StepTime | None:
    """The time of a compiled step; None if the compiler or the hardware file does not tell it.

    Args:
      cycles: the compiler's estimate, collectives apart; 0 if it gives none.
      found: the collectives of the compiled program.
      mesh: the mesh of the plan.
      hardware: must have a `clock`.
    """
    if hardware.clock is None or not cycles:
        return None
    networks = interconnect(mesh, hardware)
    exposed, links = 0.0, [0.0] * networks.links
    for each in _as_instructions(found):
        for link, seconds in collective_seconds(each.collective, networks, hardware):
            if each.asynchronous:
                links[link] += each.times * seconds
            else:
                exposed += each.times * seconds
    return StepTime(cycles / hardware.clock.value, exposed, tuple(links))


def _as_instructions(found: list[Found]) -> list[Found]:
    """Collectives that the compiler combined as the one that moves the bytes of all."""
    together: dict[object, Found] = {}
    for number, each in enumerate(found):
        key = (each.instruction or number, each.collective.kind, each.times)
        before = together.get(key)
        if before is not None:
            size = before.collective.bytes + each.collective.bytes
            each = replace(before, collective=replace(before.collective, bytes=size))
        together[key] = each
    return list(together.values())


def collective_seconds(
    collective: HloCollective, networks: Interconnect, hardware: Hardware
) -> list[tuple[int, float]]:
    """Returns the links that a collective uses, each with the seconds it takes.

    Groups that follow no axes of the mesh count as rings on the fastest network.
    """
    axes = axes_of(collective.groups, networks.mesh)
    if axes is None:
        size = max(map(len, collective.groups))
        ring = Part(hardware.networks[0], size, 0)
        axes, networks = (0,), Interconnect(Mesh(("group",), (size,)), ((ring,),))
    return list(networks.by_link(collective.kind, axes, collective.bytes))


def axes_of(groups: DeviceGroups, mesh: Mesh) -> Axes | None:
    """Returns the axes, as positions, that have these device groups; None if no axes have them."""
    if not groups:
        return tuple(range(len(mesh.names)))
    wanted = {frozenset(group) for group in groups}
    for chosen in range(1, 2 ** len(mesh.names)):
        axes = tuple(a for a in range(len(mesh.names)) if chosen >> a & 1)
        if {frozenset(group) for group in mesh.groups(axes)} == wanted:
            return axes
    return None
