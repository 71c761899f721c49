"""The meshes that a number of devices can be: their shapes, and how these lie on the networks.

A shape is a number of devices on each of one to three axes. On one network the order of axes says
nothing: an axis of a torus has a side of its own, and through a switch all places are alike. Where
there are several networks it says which axis lies on the fast one, and where a torus has fewer
sides than there are axes, which of them share one; so the orders of a shape are as many placements.
Of meshes that lie alike on all networks, one is enough.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

from partita.cost import Hardware, interconnect
from partita.errors import AxisError, MeshError
from partita.mesh import MOST_DEVICES, Mesh
from partita.options import integer
from partita.tactics import Tactic
from partita.tactics.options import named_axes

AXES = ("x", "y", "z")
"""Names of the axes of such meshes, the outermost first; no mesh has more."""

MOST_MESHES = 60
"""Meshes that are planned at most."""


def check_devices(devices: object, hardware: Hardware) -> int:
    """Returns the number of devices that a mesh should have.

    Raises:
      OptionError: it is no integer of at least 1.
      MeshError: no mesh has so many, or no network of the hardware joins them.
    """
    number = integer(devices, "devices", 1)
    if number > MOST_DEVICES:
        raise MeshError(f"devices={number}: a mesh has at most {MOST_DEVICES:,}; give fewer")
    widest = max(hardware.networks, key=lambda network: network.size)
    if number > widest.size:
        raise MeshError(
            f"devices={number}: {widest.name!r}, the widest network of {hardware.name}, joins up "
            f"to {widest.size}; give fewer, or a hardware file with a wider network"
        )
    return number


@dataclasses.dataclass(frozen=True)
class Used:
    """Axes that a schedule uses."""

    named: tuple[str, ...] = ()
    """Axes that tactics name."""
    others: bool = True
    """True if there are tactics that take any axes."""

    @classmethod
    def by(cls, tactics: Sequence[Tactic]) -> Used:
        """Returns the axes that tactics use.

        Raises:
          AxisError: one names an axis that these meshes never have.
        """
        found: dict[str, None] = {}
        for tactic in tactics:
            for name in named_axes(tactic):
                if name not in AXES:
                    raise AxisError(
                        f"{tactic.name} is for the axis {name!r}, but the meshes that devices= "
                        f"tries have the axes {', '.join(AXES)}; name these, or give mesh="
                    )
                found[name] = None
        return cls(tuple(found), not all(map(named_axes, tactics)) or not tactics)

    @property
    def least(self) -> int:
        """The fewest axes that have all that are named."""
        return max((AXES.index(name) + 1 for name in self.named), default=1)

    @property
    def most(self) -> int:
        """The most axes that can be of use."""
        return len(AXES) if self.others else self.least


def candidates(
    devices: int, hardware: Hardware, sizes: Collection[int], used: Used, told: bool = False
) -> list[Mesh]:
    """The meshes of so many devices that are worth a plan.

    Axes that tactics or the program name are told apart. Those that tactics name may have one
    device, which leaves out what the tactic does.

    Args:
      devices: how many.
      hardware: whose networks they lie on.
      sizes: of the dimensions of the program, once for each that counts. Of meshes with axes that
        divide none of them, those are left out that leave more devices idle than others do.
      used: what the schedule says of the axes.
      told: whether the program itself names axes.
    """
    shapes = [
        shape
        for axes in range(used.least, used.most + 1)
        for shape in _factorisations(devices, axes, used.least if used.named else 0)
    ] or [(1,)]
    meshes = [Mesh(AXES[: len(shape)], shape) for shape in shapes]
    usable = [_usable(mesh, sizes) for mesh in meshes]
    meshes = [mesh for mesh, each in zip(meshes, usable, strict=True) if each == max(usable)]
    named = AXES if told else used.named
    places: dict[object, Mesh] = {}
    for mesh in meshes:
        places.setdefault(_placement(mesh, hardware, named), mesh)
    meshes = list(places.values())
    if len(meshes) > MOST_MESHES:
        easiest = sorted(meshes, key=lambda mesh: -_divided(mesh, sizes))[:MOST_MESHES]
        meshes = [mesh for mesh in meshes if mesh in easiest]
    return meshes


def _factorisations(number: int, axes: int, ones: int) -> Iterator[tuple[int, ...]]:
    """A number as a product of so many factors, larger ones first; only the first may be ones."""
    if axes == 1:
        if number > 1 or ones:
            yield (number,)
        return
    for size in _divisors(number):
        if size > 1 or ones:
            for rest in _factorisations(number // size, axes - 1, max(ones - 1, 0)):
                yield (size, *rest)


def _divisors(number: int) -> list[int]:
    """All, the largest first."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({each for size in small for each in (size, number // size)}, reverse=True)


def _usable(mesh: Mesh, sizes: Collection[int]) -> int:
    """Returns how many devices can do different work: those along axes that divide a dimension."""
    return math.prod(
        size for size in mesh.sizes if size == 1 or any(each % size == 0 for each in sizes)
    )


def _divided(mesh: Mesh, sizes: Collection[int]) -> int:
    """Returns the number of dimensions that the axis divides that divides the fewest."""
    return min(sum(each % size == 0 for each in sizes) for size in mesh.sizes)


def _placement(mesh: Mesh, hardware: Hardware, named: Collection[str]) -> object:
    """Equal for meshes that lie alike on the networks, whatever order axes without names have."""
    parts = interconnect(mesh, hardware).parts
    lies = [tuple((p.network.name, p.size, p.stride, p.side) for p in axis) for axis in parts]
    axes = list(zip(mesh.names, lies, strict=True))
    others = sorted(each for name, each in axes if name not in named)
    return (*(each for each in axes if each[0] in named), *others)
