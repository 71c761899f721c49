"""Predicted beside compiled: the collectives of a plan, and those that XLA makes of it.

What XLA makes is read from the text of the compiled program. Collectives in loops count once, or as
often as the loops run. An accelerator's collective may be started and ended by two instructions,
with other work between; there it is written out in the computations of both, and counts where it
starts. One that is combined of several counts once for each of its operands.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from partita.errors import VerifyError
from partita.mesh import Mesh
from partita.program.ir import bits
from partita.spmd import Collective
from partita.verify.hlo import Computation, Instruction, Module, parse
from partita.verify.loops import Executions, executions

Groups = tuple[tuple[int, ...], ...]

_KINDS = {
    f"{kind}{suffix}": kind.replace("-", "_")
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    for suffix in ("", "-start")
}
_KINDS["ragged-all-to-all"] = "all_to_all"
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_STARTS = "AsyncCollectiveStart"


@dataclasses.dataclass(frozen=True, order=True)
class Exchange:
    """What a collective is, whoever says so: kind, payload per device, and who takes part."""

    kind: str
    bytes: int
    groups: Groups


AGREEMENTS = {
    "equal": "the same kinds, groups, sizes and counts",
    "bytes": "the same kinds and groups, and the same bytes in all for each",
    "sums": "that, where an all_gather may be a sum of pieces padded with zeros, and a "
    "reduce_scatter a sum of which a piece is kept",
    "different": "anything else",
}
"""How near compiled collectives are to those predicted."""

_AS_SUMS = dict.fromkeys(("all_gather", "reduce_scatter"), "all_reduce")


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

    @property
    def agreement(self) -> str:
        """How near the two are, the first of `AGREEMENTS` that holds."""
        if self.equal:
            return "equal"
        if _totals(self.predicted) == _totals(self.compiled):
            return "bytes"
        if _totals(self.predicted, _AS_SUMS) == _totals(self.compiled, _AS_SUMS):
            return "sums"
        return "different"

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


def _totals(
    exchanges: Counter[Exchange], renamed: Mapping[str, str] = MappingProxyType({})
) -> Counter[tuple[str, Groups]]:
    """Bytes moved per step, by kind and groups."""
    total: Counter[tuple[str, Groups]] = Counter()
    for exchange, times in exchanges.items():
        kind = renamed.get(exchange.kind, exchange.kind)
        total[kind, exchange.groups] += exchange.bytes * times
    return total


def compare(collectives: Iterable[Collective], mesh: Mesh, compiled_text: str) -> Comparison:
    """Compares a plan's collectives with the text of a compiled program.

    Args:
      collectives: as predicted, `plan.collectives`; one in a loop counts once, as it stands in the
        text once.
      mesh: the plan's mesh.
      compiled_text: `plan.jit().lower(...).compile().as_text()`.

    Raises:
      VerifyError: the text has device groups in a form that is not known.
    """
    return side_by_side(collectives, mesh, found_exchanges(parse(compiled_text)))


def as_on_host(collectives: Iterable[Collective]) -> list[Collective]:
    """Collectives as a host moves them: it widens types that its processor does not compute in."""
    return [dataclasses.replace(c, bytes=c.bytes * widening(c.dtype)) for c in collectives]


def widening(dtype: str) -> int:
    """How many times wider an element type is on a host: bfloat16 in float32, float8 in float16."""
    return 2 if dtype == "bf16" or dtype.startswith("f8") else 1


def side_by_side(
    collectives: Iterable[Collective],
    mesh: Mesh,
    found: Iterable[Found],
    executions: bool = False,
) -> Comparison:
    """Compares a plan's collectives with those found in a compiled program.

    Args:
      collectives: as predicted.
      mesh: the plan's mesh.
      found: as compiled.
      executions: one in a loop counts as often as it runs, not once. Then they can be compared
        where a compiler unrolls loops; where it does not, what runs how often is its own business.
    """
    compiled: Counter[Exchange] = Counter()
    for each in found:
        compiled[each.exchange] += each.times if executions else 1
    predicted: Counter[Exchange] = Counter()
    for c in collectives:
        axes = tuple(mesh.axis(name) for name in c.axes)
        groups = _normal(mesh.groups(axes))
        if c.kind == "collective_permute":
            groups = _joined(c.pairs) if c.pairs else _normal(map(sorted, groups))
        predicted[Exchange(c.kind, c.bytes, groups)] += c.count if executions else 1
    return Comparison(mesh, predicted, compiled)


@dataclasses.dataclass(frozen=True)
class Found:
    """An exchange of a compiled program."""

    exchange: Exchange
    times: int
    """How often it runs per step."""
    asynchronous: bool
    """Whether other work can run between its start and its end."""


def compiled_exchanges(text: str) -> list[Exchange]:
    """The collectives in the text of a compiled program, as they stand there: loops count once.

    XLA may combine several into one instruction with a tuple of operands; each operand counts.
    """
    return [found.exchange for found in found_exchanges(parse(text))]


def found_exchanges(module: Module, runs: Executions | None = None) -> list[Found]:
    """The collectives of a compiled program, in the order of its text.

    Args:
      module: the program.
      runs: how often its computations run, if that has been found before.
    """
    runs = runs or executions(module)
    found = []
    started = {
        channel
        for name in runs.fused
        for i, channel in _of_computation(module.computations[name])
        if _has_call(module.computations[name], _STARTS)
    }
    for name, computation in module.computations.items():
        times, inside = runs.times.get(name, 0), runs.fused.get(name, 0)
        if not times and not inside:
            continue
        starts = _has_call(computation, _STARTS)
        for instruction, channel in _of_computation(computation):
            if inside and not starts and channel in started:
                continue  # the same one, in progress
            asynchronous = starts or instruction.opcode.endswith("-start")
            for exchange in _exchanges(computation, instruction, bool(inside)):
                found.append(Found(exchange, times or inside, asynchronous))
    return found


def _of_computation(computation: Computation) -> Iterator[tuple[Instruction, str]]:
    """The collectives in a computation, each with its channel."""
    for instruction in computation:
        if instruction.opcode in _KINDS:
            channel = re.search(r"channel_id=(\d+)", instruction.attributes)
            yield instruction, channel[1] if channel else instruction.name


def _has_call(computation: Computation, target: str) -> bool:
    wanted = f'custom_call_target="{target}"'
    return any(i.opcode == "custom-call" and wanted in i.attributes for i in computation)


def _exchanges(computation: Computation, instruction: Instruction, fused: bool) -> list[Exchange]:
    kind, line = _KINDS[instruction.opcode], instruction.attributes
    groups = _chains(line) if kind == "collective_permute" else _groups(line)
    sizes = [_shape_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(instruction.type)]
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        sizes = sizes[: 2 * len(instruction.operands)]  # context of the transfer comes last
        sizes = sizes[len(sizes) // 2 :]  # what goes in stands before what comes out
    if kind == "all_to_all":
        return [Exchange(kind, sum(sizes), groups)]  # a tuple holds the pieces of one exchange
    if kind == "all_reduce" and fused and _is_scattered(computation, instruction):
        kind = "reduce_scatter"
    elif kind == "reduce_scatter" and groups:
        sizes = [size * len(groups[0]) for size in sizes]
    return [Exchange(kind, size, groups) for size in sizes]


def _is_scattered(computation: Computation, reduced: Instruction) -> bool:
    """Whether a fusion keeps only its device's piece of a sum: a reduce_scatter, for a TPU."""
    readers = [i for i in computation if reduced.name in i.operands]
    return bool(readers) and all(i.opcode == "dynamic-slice" for i in readers)


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
        shape = [int(size) for size in iota[1].split(",")]
        return _normal(_iota(iota[2], iota[3]).reshape(shape).tolist())
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


def _along_axes(axes: str, chosen: str, devices: np.ndarray | None) -> Groups:
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
    return _normal(grid.reshape(-1, math.prod(width for _, _, width in parts)).tolist())


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
