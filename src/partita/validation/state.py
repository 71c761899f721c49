"""State of one value on the devices of a mesh: shards, partial sums, windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.tiling import Axes, Layout

Content = np.ndarray
"""Indices of a dimension that a device holds, in order, by shard; -1 stands for a zero."""


class Mismatch(Exception):  # noqa: N818  (it becomes a `LoweringError` with the place)
    """A rule that does not hold; the message says which."""


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """State of a value on the devices; along an axis in none of the fields it is replicated."""

    layout: Layout
    """The axes that shard each dimension, major first."""
    unreduced: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Axes along which devices hold partial results, and the operation that combines them."""
    varying: frozenset[int] = frozenset()
    """Axes along which devices hold unrelated values."""
    windows: Mapping[int, Content] = dataclasses.field(default_factory=dict)
    """Dimensions of which devices hold other indices than those of their shard."""
    zero: bool = False
    """True if all of it is zero, which can be a partial result of any sum."""

    def same(self, other: State) -> bool:
        """Returns whether two values have the same state."""
        return (
            (self.layout, self.unreduced, self.varying, self.zero)
            == (other.layout, other.unreduced, other.varying, other.zero)
            and self.windows.keys() == other.windows.keys()
            and all(np.array_equal(held, other.windows[d]) for d, held in self.windows.items())
        )

    @property
    def axes(self) -> frozenset[int]:
        """The axes that shard it."""
        return frozenset(axis for axes in self.layout for axis in axes)

    def replace(self, **changes: object) -> State:
        """Returns a copy with other values of some fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def describe(self, mesh: Mesh) -> str:
        """Returns the state in words, for messages."""

        def names(axes: Iterable[int]) -> str:
            return "+".join(mesh.axis_names(tuple(axes)))

        parts = [f"({', '.join(names(axes) or '-' for axes in self.layout)})"]
        parts += [f"unreduced ({how}) over {names([a])}" for a, how in self.unreduced.items()]
        parts += [f"different along {names(sorted(self.varying))}"] if self.varying else []
        parts += [f"with other indices along dimension {dim}" for dim in self.windows]
        return ", ".join(parts)


def real(axes: Axes, mesh: Mesh) -> Axes:
    """Drops axes of one device, along which nothing can differ."""
    return axes and tuple(axis for axis in axes if mesh.sizes[axis] > 1)


def laid_out(layout: Layout, mesh: Mesh) -> Layout:
    """Returns a layout without axes of one device."""
    return tuple(real(axes, mesh) for axes in layout)


def local_shape(type_: TensorType, state: State, mesh: Mesh) -> tuple[int, ...]:
    """Returns the shape of what each device holds.

    Raises:
      Mismatch: a dimension does not divide, or an axis shards two dimensions.
    """
    used = [axis for axes in state.layout for axis in axes]
    expect(len(used) == len(set(used)), "an axis shards two dimensions of it")
    shape = []
    for dim, (size, axes) in enumerate(zip(type_.shape, state.layout, strict=True)):
        shards = mesh.size(axes)
        if size % shards:
            raise Mismatch(f"dimension {dim} of size {size} has {shards} shards")
        window = state.windows.get(dim)
        shape.append(size // shards if window is None else window.shape[1])
    return tuple(shape)


def expect(condition: bool, message: str | Callable[[], str]) -> None:
    """Raises `Mismatch` unless a condition holds; a message that takes time is made only then."""
    if not condition:
        raise Mismatch(message if isinstance(message, str) else message())
