"""Peak memory by liveness in kernel order: arguments, constants, stored values, gathered copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from partita.analysis import Between, ClassGraph
from partita.cost.devices.hardware import ALONE, UNPADDED, Kernels, TileShape
from partita.cost.kernels.products import made_feature, read_feature
from partita.cost.kernels.stacked_layers import LayerOf, laid_anew, layers_read
from partita.cost.kernels.timing import Timing
from partita.mesh import Mesh
from partita.program.ir import TensorType
from partita.sparse import Rows
from partita.spmd import ValuePlan
from partita.spmd.steps import Step
from partita.tiling import Layout, local_type


@dataclasses.dataclass(frozen=True, eq=False)
class Copies:
    """Buffers besides the kept ones: positions from `start` to `end` inclusive, `bytes` each."""

    start: np.ndarray
    end: np.ndarray
    bytes: float


def changes(start: np.ndarray, end: np.ndarray, bytes_: np.ndarray, size: int) -> np.ndarray:
    """Returns the difference array of live bytes by position.

    Args:
      start: the first position of every buffer.
      end: its last one.
      bytes_: its bytes.
      size: the number of positions.
    """
    more: np.ndarray = np.bincount(start, bytes_, size + 1)
    return (more - np.bincount(end + 1, bytes_, size + 1))[:size]


def joined(copies: Sequence[Copies]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first position, the last position and the bytes of every buffer."""
    start, end = (
        np.concatenate(side) for side in ([c.start for c in copies], [c.end for c in copies])
    )
    return start, end, np.repeat([c.bytes for c in copies], [len(c.start) for c in copies])


def padded(type_: TensorType, tile: TileShape, columns_along: tuple[int, ...] = ()) -> float:
    """Returns the bytes of an array that is stored in tiles.

    Two of its dimensions are rounded up. The compiler chooses which two. Assumed are those that
    need least, with the columns along one of `columns_along`, if that names any.
    """
    rows, columns = int(tile.rows.value), int(tile.columns.value)
    elements = type_.elements
    if columns == 1 or not elements:
        return float(type_.bytes)
    shape = type_.shape if len(type_.shape) > 1 else (1, elements)
    counts = []
    for column in columns_along or range(len(shape)):
        for row in range(len(shape)):
            if row != column:
                high = min(rows, 1 << (shape[row] - 1).bit_length())
                others = elements // (shape[row] * shape[column])
                counts.append(others * _round(shape[row], high) * _round(shape[column], columns))
    return float(TensorType((min(counts),), type_.dtype).bytes)


def _round(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _along_columns(graph: ClassGraph) -> dict[int, tuple[int, ...]]:
    """Returns the dimensions of which convolutions need one along the columns of tiles, by value
    class: the images of a batch, or their features."""
    found: dict[int, tuple[int, ...]] = {}
    for op in graph.program.operations:
        if op.traits.convolution:
            found[graph.value_class[op.operands[0]]] = (0, read_feature(op))
            found[graph.value_class[op.results[0]]] = (0, made_feature(op))
    return found


class MemoryModel:
    """Liveness of one program; only sizes change from tiling to tiling."""

    def __init__(
        self,
        graph: ClassGraph,
        mesh: Mesh,
        timing: Timing,
        tile: TileShape = UNPADDED,
        overlapped: Collection[str] = (),
        kernels: Kernels = ALONE,
    ) -> None:
        self._tile = tile
        self._overlapped = frozenset(overlapped)
        self._late = frozenset(kernels.late_in_loops)
        self._layers: dict[int, LayerOf] = (
            layers_read(graph.program) if kernels.gathers_outermost else {}
        )
        self._sizes: dict[tuple[TensorType, tuple[int, ...]], float] = {}
        self.graph = graph
        self.mesh = mesh
        self.windows = timing.analysis.windows
        self.uses = timing.analysis.uses
        self._order = timing.order
        self.size = timing.steps + 1
        """Number of positions; at the last one, no kernel needs any buffer."""
        constants = [c for c in graph.program.constants if not c.hoisted]
        self.constants = sum(c.bytes for c in constants)
        """Bytes of the constants, which are replicated on every device during the whole step."""
        self._constants = frozenset(graph.value_class[v] for c in constants for v in c.values)
        values, births, deaths = timing.lifetimes.T
        of_value = np.array(graph.value_class, dtype=np.int64)
        classes = of_value[values]
        # Row p of this matrix says how many values of each class begin, less those that end, at p.
        from scipy.sparse import csr_array  # here, since importing partita should not wait for it

        self._changes = csr_array(
            (
                np.repeat([1.0, -1.0], len(values)),
                (np.concatenate([births, deaths + 1]), np.concatenate([classes, classes])),
            ),
            shape=(self.size, len(graph.values)),
        )
        by_class = self._changes.tocsc()
        self.kept = Rows(by_class.indptr, by_class.indices, by_class.data)
        """Difference array of the number of live buffers by position, by value class."""
        self._kept: dict[tuple[int, Layout], float] = {}
        self._columns = _along_columns(graph)
        self._narrowed: dict[int, list[tuple[tuple[np.ndarray, np.ndarray], str]]] = {}
        for value, start, end, dtype in [*timing.narrowed, *timing.widened]:
            span = np.array([start]), np.array([end])
            self._narrowed.setdefault(graph.value_class[value], []).append((span, dtype))
        self._waited_for: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
        for value, start, end, dims in timing.waited_for:
            self._waited_for.setdefault(graph.value_class[value], []).append((start, end, dims))
        self._arguments = of_value[list(graph.program.arguments)]
        self._hosted = frozenset(graph.value_class[v] for v in graph.program.hosted)
        """Classes of values in host memory, which take no memory of a device."""
        self._spans: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}

    def bytes(self, index: int, layout: Layout) -> float:
        """Returns the bytes of one device's shard of a value of this class, without constants.

        Values in host memory take none.
        """
        known = self._kept.get((index, layout))
        if known is None:
            type_ = local_type(self.graph.values[index].value.type, layout, self.mesh)
            known = self._padded(index, type_)
            if index in self._hosted or (index in self._constants and not any(layout)):
                known = 0.0
            self._kept[index, layout] = known
        return known

    def copies(self, index: int, plan: ValuePlan, between: Between) -> list[Copies]:
        """Returns the buffers that a plan needs for a value class besides the kept ones, if it is
        gathered again between these uses."""
        found = []
        if index in self._hosted:
            return []
        if plan.steps:
            late = not self._late.isdisjoint(step.kind for step in plan.steps)
            start, end = self._unreduced(index, late)
            found.append(Copies(start, end, self._padded(index, plan.steps[0].before)))
        for spans, dtype in self._narrowed.get(index, ()):
            stack = local_type(self.graph.values[index].value.type, plan.layout, self.mesh)
            narrow = TensorType(stack.shape, dtype)
            found.append(Copies(*spans, self._padded(index, narrow)))
        for first, last, dims in self._waited_for.get(index, ()):
            if not any(plan.layout[dim] for dim in dims):
                bytes_ = self.bytes(index, plan.layout)
                found.append(Copies(np.array([first]), np.array([last]), bytes_))
        for need, steps in plan.reshards:
            if not steps:  # only axes of one device differ
                continue
            users = tuple(i for i, n in enumerate(plan.needs) if n == need)
            prefetched = not self._overlapped.isdisjoint(step.kind for step in steps)
            start, end = self._span(index, users, between, prefetched)
            found.append(Copies(start, end, self._padded(index, steps[-1].after)))
            found += self._laid_anew(index, steps)
        return found

    def _laid_anew(self, index: int, steps: Sequence[Step]) -> list[Copies]:
        """Returns the stacks that are copied into another layout to gather their layers, if members
        are such layers."""
        found = []
        for member in self.graph.values[index].members:
            layer = self._layers.get(member)
            bytes_ = laid_anew(layer, steps) if layer else 0.0
            if layer and bytes_:
                start, end = self._order.since_last_loop(layer.region, self.uses[layer.stack])
                found.append(Copies(np.array([start]), np.array([end]), bytes_))
        return found

    def _padded(self, index: int, type_: TensorType) -> float:
        """Returns the bytes in memory of an array that belongs to a value of this class."""
        columns = self._columns.get(index, ())
        known = self._sizes.get((type_, columns))
        if known is None:
            known = self._sizes[type_, columns] = padded(type_, self._tile, columns)
        return known

    def arguments(self, kept: np.ndarray) -> float:
        """Returns the bytes of all arguments, given the bytes of a shard of each value class."""
        return float(kept[self._arguments].sum())

    def changes(self, copies: Sequence[Copies]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions at which the bytes of some buffers change, and by how many."""
        if not copies:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        start, end, bytes_ = joined(copies)
        gone = end + 1 < self.size
        return (
            np.concatenate([start, end[gone] + 1]),
            np.concatenate([bytes_, -bytes_[gone]]),
        )

    def live(self, kept: np.ndarray, copied: np.ndarray) -> np.ndarray:
        """Returns the bytes alive at every position, without arguments.

        Args:
          kept: bytes of a shard of each value class.
          copied: difference array of the bytes of copies, by position.
        """
        delta: np.ndarray = self._changes @ kept
        delta += copied
        return delta.cumsum()

    def with_host(self, layouts: Sequence[Layout]) -> float:
        """Returns the peak bytes in the memory of the host, given the layout of each class."""
        if not self._hosted:
            return 0.0
        kept = np.zeros(len(layouts))
        for index in self._hosted:
            type_ = self.graph.values[index].value.type
            kept[index] = local_type(type_, layouts[index], self.mesh).bytes
        return self.arguments(kept) + float(self.live(kept, np.zeros(self.size)).max(initial=0.0))

    def _unreduced(self, index: int, late: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns where each member is unreduced: the positions at which it is made and reduced.

        A late reduction, in the next iteration of the loop around it, extends that to the whole
        loop.
        """
        key: tuple[object, ...] = (index, late)
        if key not in self._spans:
            members = self.graph.values[index].members
            values, order = self.graph.program.values, self._order
            start = [order.birth(values[m]) or 0 for m in members]
            end = [order.reduced(values[m], self.uses[m]) for m in members]
            for number, member in enumerate(members) if late else ():
                around = order.loop_around(values[member], self.uses)
                if around is not None:
                    start[number], end[number] = around
            self._spans[key] = np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)
        return self._spans[key]

    def _span(
        self, index: int, users: tuple[int, ...], between: Between, prefetched: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and last position of some uses, for every member (and use window).

        A value that is prefetched during other work has its buffer from then on.
        """
        key = (index, users, between, prefetched)
        known = self._spans.get(key)
        order = self._order
        if known is None:
            value = self.graph.values[index]
            starts, ends = [], []
            wanted = {(value.uses[i].op, value.uses[i].number) for i in users}
            for member in self.graph.values[index].members:
                uses = self.uses[member]
                numbers = self.windows[between][member]
                chosen = [
                    (window, use)
                    for window, use in zip(numbers, uses, strict=True)
                    if (self.graph.op_class[use[0]], use[1]) in wanted
                ]
                for window in sorted({n for n, _ in chosen}):
                    now = [use for n, use in chosen if n == window]
                    if prefetched:
                        starts.append(min(order.prefetched_at(member, op) for op, _ in now))
                    else:
                        starts.append(min(order.first(op) for op, _ in now))
                    ends.append(max(order.read(member, *use, window.body) for use in now))
            known = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
            self._spans[key] = known
        return known
