"""Predicted beside compiled: the collectives of a plan, and those that XLA makes of it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from partita.mesh import Mesh
from partita.program.ir import bits
from partita.spmd import Collective

Groups = tuple[tuple[int, ...], ...]

_LINE = re.compile(
    r"= (?P<result>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute)(?:-start)?\("
)
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True, order=True)
class Exchange:
    """What a collective is, whoever says so: kind, payload per device, and who takes part."""

    kind: str
    bytes: int
    groups: Groups


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How often each exchange was predicted and how often it was compiled."""

    mesh: Mesh
    predicted: Counter[Exchange]
    compiled: Counter[Exchange]

    @property
    def equal(self) -> bool:
        """Whether prediction and compiled program agree in kind, count, bytes and groups."""
        return self.predicted == self.compiled

    def rows(self) -> list[tuple[Exchange, int, int]]:
        """Every exchange with its predicted and its compiled count."""
        every = sorted(self.predicted.keys() | self.compiled.keys())
        return [(e, self.predicted[e], self.compiled[e]) for e in every]

    def __str__(self) -> str:
        lines = [f"{'kind':<16} {'bytes':>12} {'groups':>8} {'predicted':>10} {'compiled':>9}"]
        for exchange, predicted, compiled in self.rows():
            shape = f"{len(exchange.groups)}x{len(exchange.groups[0]) if exchange.groups else 0}"
            mark = "" if predicted == compiled else "  <- differs"
            lines.append(
                f"{exchange.kind:<16} {exchange.bytes:>12} {shape:>8} {predicted:>10} "
                f"{compiled:>9}{mark}"
            )
        return "\n".join(lines)


def compare(collectives: Iterable[Collective], mesh: Mesh, compiled_text: str) -> Comparison:
    """Compares a plan's collectives with the text of a compiled program.

    Args:
      collectives: as predicted, `plan.collectives`; one in a loop counts once, as it stands in
        the text once.
      mesh: the plan's mesh.
      compiled_text: `plan.jit().lower(...).compile().as_text()`.
    """
    predicted: Counter[Exchange] = Counter()
    for c in collectives:
        axes = tuple(mesh.axis(name) for name in c.axes)
        groups = mesh.groups(axes)
        found = _normal(groups)
        if c.kind == "collective_permute":
            found = _joined(c.pairs) if c.pairs else _normal(map(sorted, groups))
        predicted[Exchange(c.kind, c.bytes, found)] += 1
    return Comparison(mesh, predicted, Counter(compiled_exchanges(compiled_text)))


def compiled_exchanges(text: str) -> list[Exchange]:
    """The collectives in the text of a compiled program.

    XLA may combine several into one instruction with a tuple of operands; each operand counts.
    """
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match:
            found += _exchanges(line, match["kind"].replace("-", "_"), match["result"])
    return found


def _exchanges(line: str, kind: str, result: str) -> list[Exchange]:
    groups = _chains(line) if kind == "collective_permute" else _groups(line)
    sizes = [_shape_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(result)]
    if kind in ("all_gather", "collective_permute") and "-start(" in line:
        sizes = sizes[len(sizes) // 2 :]  # what goes in stands before what comes out
    if kind == "all_to_all":
        return [Exchange(kind, sum(sizes), groups)]  # a tuple holds the pieces of one exchange
    factor = len(groups[0]) if kind == "reduce_scatter" and groups else 1
    return [Exchange(kind, size * factor, groups) for size in sizes]


def _shape_bytes(dtype: str, dims: str) -> int:
    elements = math.prod(int(d) for d in dims.split(",") if d)
    name = {"pred": "i1"}.get(dtype, dtype)
    name = f"i{name[1:]}" if re.fullmatch(r"[su]\d+", name) else name
    if name.startswith("c") and name[1:].isdigit():
        name = f"complex<f{int(name[1:]) // 2}>"
    return math.ceil(elements * bits(name) / 8)


def _groups(line: str) -> Groups:
    explicit = re.search(r"replica_groups=\{(\{.*?\})\}", line)
    if explicit:
        rows = re.findall(r"\{([\d,]*)\}", explicit[1])
        return _normal([[int(d) for d in row.split(",") if d] for row in rows])
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        shape, source, order = (
            [int(d) for d in part.split(",")] if part else None for part in iota.groups()
        )
        grid = np.arange(math.prod(source or [])).reshape(source)
        if order:
            grid = grid.transpose(order)
        return _normal(grid.reshape(shape).tolist())
    return ()


def _chains(line: str) -> Groups:
    """The devices that a permutation in the text joins."""
    pairs = re.search(r"source_target_pairs=\{(.*?\})\}", line)
    found = re.findall(r"\{(\d+),(\d+)\}", pairs[1] if pairs else "")
    return _joined((int(source), int(target)) for source, target in found)


def _joined(pairs: Iterable[tuple[int, int]]) -> Groups:
    """The devices that are joined by handing on to each other."""
    joined: dict[int, set[int]] = {}
    for source, target in pairs:
        group = joined.get(source, {source}) | joined.get(target, {target})
        joined.update(dict.fromkeys(group, group))
    return _normal({tuple(sorted(group)) for group in joined.values()})


def _normal(groups: Iterable[Iterable[int]]) -> Groups:
    return tuple(sorted(tuple(group) for group in groups))
