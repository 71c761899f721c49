"""`PartitionSpec`s as users write them: read, and checked against a tensor."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from partita.errors import SpecError

Axes = tuple[tuple[str, ...], ...]


def axes_of(spec: Any, rank: int, name: str) -> tuple[Axes, tuple[bool, ...]]:
    """Returns the axes that a spec gives to each of `rank` dimensions, and whether each is open.

    Args:
      spec: a `PartitionSpec`, or a sequence of its entries: an axis, several, None for unsharded,
        or `PartitionSpec.UNCONSTRAINED` for open; dimensions that it does not reach are unsharded.
      rank: of the tensor.
      name: of the tensor, in the user's words.

    Raises:
      SpecError: it is not a spec, has more entries than dimensions, or names an axis twice.
    """
    if isinstance(spec, str) or not isinstance(spec, PartitionSpec | tuple | list):
        raise SpecError(f"{name}: expected a PartitionSpec, got {spec!r}")
    if len(spec) > rank:
        dims = "1 dimension" if rank == 1 else f"{rank} dimensions"
        raise SpecError(
            f"{name} has {dims}, but its sharding {_show(spec)} has {len(spec)} entries; give at "
            "most one for each dimension"
        )
    entries = [*spec, *[None] * (rank - len(spec))]
    axes = tuple(_axes(entry, name, spec) for entry in entries)
    named = [axis for row in axes for axis in row]
    for axis in named:
        if named.count(axis) > 1:
            raise SpecError(
                f"{name}: its sharding {_show(spec)} names the axis {axis!r} twice; an axis can "
                "split one dimension only"
            )
    return axes, tuple(entry is PartitionSpec.UNCONSTRAINED for entry in entries)


def _axes(entry: Any, name: str, spec: Any) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry):
        return tuple(entry)
    raise SpecError(
        f"{name}: its sharding {_show(spec)} has the entry {entry!r}; expected the name of an "
        "axis, a tuple of names, None or PartitionSpec.UNCONSTRAINED"
    )


def _show(spec: Any) -> str:
    return str(spec if isinstance(spec, PartitionSpec) else PartitionSpec(*spec))
