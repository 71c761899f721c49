"""Groups of devices as the text of a compiled program writes them, in any of XLA's forms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from partita.errors import VerifyError

DeviceGroups = tuple[tuple[int, ...], ...]


def groups_of(line: str) -> DeviceGroups:
    """The groups of devices that a collective in the text has; none if it says nothing.

    Raises:
      VerifyError: they are in a form that is not known.
    """
    explicit = re.search(r"replica_groups=\{(\{.*?\})\}", line)
    if explicit:
        rows = re.findall(r"\{([\d,]*)\}", explicit[1])
        return normal([[int(d) for d in row.split(",") if d] for row in rows])
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        shape = [int(size) for size in iota[1].split(",")]
        return normal(_iota(iota[2], iota[3]).reshape(shape).tolist())
    named = _NAMED.search(line)
    if named:
        return _along_axes(named["axes"], named["chosen"], _numbering(named))
    if "replica_groups=" in line and "replica_groups={}" not in line:
        written = line[line.index("replica_groups=") :][:80]
        raise VerifyError(
            f"the compiled program writes device groups in an unknown form: {written}"
        )
    return ()


_NAMED = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:,\s*device_ids=\((?:\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<ids>[\d,]+))\))?"
    r"\s*\{(?P<chosen>[^}]*)\}"
)
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_CHOSEN = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def _numbering(named: re.Match[str]) -> np.ndarray | None:
    """The devices of a named mesh in its order, if they are not simply counted."""
    if named["ids"]:
        return np.array([int(d) for d in named["ids"].split(",")])
    return _iota(named["iota"], named["order"]).reshape(-1) if named["iota"] else None


def _iota(shape: str, order: str | None) -> np.ndarray:
    """`[4,2]T(1,0)`: devices counted over a shape, then transposed."""
    sizes = [int(size) for size in shape.split(",")]
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose([int(place) for place in order.split(",")]) if order else grid


def _along_axes(axes: str, chosen: str, devices: np.ndarray | None) -> DeviceGroups:
    """Groups in the form `mesh['a'=2,'b'=4] {'b'}`; `'b':(2)2` is a part of an axis."""
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    parts: list[tuple[str, int, int]] = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in _CHOSEN.findall(chosen)
    ]
    shape: list[int] = []
    places: dict[tuple[str, int, int], int] = {}
    for name, size in sizes.items():
        left = size
        for part in sorted(part for part in parts if part[0] == name):
            _, before, width = part
            between = before * left // size  # what lies before this part and behind the last
            shape += [between, width]
            places[part] = len(shape) - 1
            left //= between * width
        shape.append(left)
    order = [places[part] for part in parts]
    rest = [place for place in range(len(shape)) if place not in order]
    devices = np.arange(math.prod(shape)) if devices is None else devices
    grid = devices.reshape(shape).transpose(*rest, *order)
    return normal(grid.reshape(-1, math.prod(width for _, _, width in parts)).tolist())


def chains_of(line: str) -> DeviceGroups:
    """The devices that a permutation in the text joins."""
    pairs = re.search(r"source_target_pairs=\{(.*?\})\}", line)
    found = re.findall(r"\{(\d+),(\d+)\}", pairs[1] if pairs else "")
    return joined((int(source), int(target)) for source, target in found)


def joined(pairs: Iterable[tuple[int, int]]) -> DeviceGroups:
    """The devices that are joined by sending to each other."""
    reached: dict[int, set[int]] = {}
    for source, target in pairs:
        group = reached.get(source, {source}) | reached.get(target, {target})
        reached.update(dict.fromkeys(group, group))
    return normal({tuple(sorted(group)) for group in reached.values()})


def normal(groups: Iterable[Iterable[int]]) -> DeviceGroups:
    """Groups in the order in which they are compared."""
    return tuple(sorted(tuple(group) for group in groups))
