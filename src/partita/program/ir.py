"""The program being partitioned: values, operations, and the factors of each operation.

A `Program` knows nothing of meshes. It is plain data, read from StableHLO by `importer`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partita.errors import FormerName
from partita.escape import printed
from partita.program.blocks import Barrier, Block, Branch, Item, Loop, Region, loops_in
from partita.program.op_traits import OPERATIONS, UNKNOWN, Traits
from partita.program.rule import Rule

_WIDTH = re.compile(r"(?:bf|f|ui|si|i)(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; `dtype` is spelt as in StableHLO (`f32`, `bf16`, `i1`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, sub-byte types packed."""
        return math.ceil(self.elements * bits(self.dtype) / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@functools.cache
def bits(dtype: str) -> int:
    """Bits of storage per element of a StableHLO element type; booleans take a byte."""
    if dtype in ("i1", "pred"):
        return 8
    if dtype.startswith("complex<"):
        return 2 * bits(dtype[len("complex<") : -1])
    width = _WIDTH.match(dtype)  # f8E4M3FN has 8 bits, f4E2M1FN has 4
    return int(width[1]) if width else 8


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """Sharding that the program itself prescribes for an operation."""

    axes: tuple[tuple[str, ...], ...]
    """Names of the axes that shard each factor, major first."""
    mesh: tuple[tuple[str, int], ...]
    """The axes of the mesh that it is for, with their sizes; empty for that of the plan."""

    @printed
    def __str__(self) -> str:
        return show_axes(self.axes)


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One definition: an argument or a result of an operation."""

    index: int
    type: TensorType
    producer: int | None
    """Index of the defining operation; None for an argument."""
    position: int
    """Argument number, or result number of the producer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel that a custom call runs."""

    name: str
    flops: float = 0.0
    """FLOPs that it states for all of its operands; 0 if it states none."""
    bytes: float = 0.0
    """Bytes that it states to read and write; 0 if it states none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `operands` and `results` are indices of values."""

    index: int
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule
    combine: str = "add"
    """Combiner of unreduced results along a reduction factor: add, max, min, mul, and, or."""
    zero_init: bool = False
    """A scatter into zeros, or a reduction or carried value that starts from zeros."""
    source: str = ""
    """`file:line` of the user's code, relative to the working directory where it is below that."""
    scope: str = ""
    """JAX name scope."""
    times: int = 1
    """Number of runs per step: the trip counts of the loops around it, multiplied."""
    region: int = 0
    """Number of the innermost region it is in, of a loop or branch; 0 outside of all."""
    target: str = ""
    """Function that a custom call names."""
    tags: tuple[str, ...] = ()
    """Names that the user has given to its result."""
    takes_apart: bool = False
    """True for a reshape of a weight, or of its gradient, between a dimension of several parts and
    the parts, which are used one by one."""
    given: Given | None = None
    """Sharding that the program prescribes; its `given` factors are then sharded exactly so."""
    work: Work | None = None
    """Per-device work of a manual computation; for a collective in one, the collective itself."""
    manual: tuple[str, ...] = ()
    """Axes over which the computation around it is manual, so that it cannot be split along them:
    those of its last factors."""
    kernel: Kernel | None = None
    """Kernel that a custom call runs, if it is known."""
    memory: str = ""
    """The kind of memory that it moves its operand to: `device`, `pinned_host`, ..."""
    template: int = -1
    """Number of the module's operation that it is a copy of, see `stablehlo.templates`; several may
    be copies of one. -1 for a barrier that a pass has added."""

    @property
    def traits(self) -> Traits:
        """Traits that all operations of its kind share."""
        return OPERATIONS.get(self.kind, UNKNOWN)

    @property
    def short(self) -> str:
        """Name without the dialect."""
        return self.kind.rpartition(".")[2]

    @property
    def title(self) -> str:
        """Name in reports: a custom call with its target, a kernel with its name."""
        if self.kernel is not None:
            return f"kernel {self.kernel.name}"
        return f"{self.short} {self.target}" if self.target else self.short


@dataclasses.dataclass(frozen=True, slots=True)
class ManualCollective:
    """A collective that a manual computation has inside, the body of a `shard_map`."""

    kind: str
    """Name in `partita.program.collectives`."""
    axes: tuple[str, ...]
    bytes: int
    """Payload per device: the larger of operand and result."""
    times: int
    """Number of runs each time that the manual computation runs."""
    dtype: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Per-device work of a manual computation, on local types."""

    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    """`times` counts the loops inside."""
    collectives: tuple[ManualCollective, ...]


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that is part of the program: closed over, or computed while it was traced.

    Those of one element throughout (`jnp.zeros`) do not count.
    """

    name: str
    """`constants[0]` and so on: hoisted ones first, then the largest."""
    type: TensorType = dataclasses.field(repr=False)
    used: tuple[str, ...]
    """The operations that read it, with their source lines."""
    source: str
    """`file:line` of the first of them."""
    hoisted: bool
    """True if it has become an argument, which can be sharded."""
    values: tuple[int, ...] = dataclasses.field(repr=False)
    """The values that hold it: the argument, or a copy for every use."""

    lifted = FormerName("hoisted")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Element type, as StableHLO names it."""
        return self.type.dtype

    @property
    def bytes(self) -> int:
        """Size of all of it."""
        return self.type.bytes

    @printed
    def __str__(self) -> str:
        return f"{self.name}: {self.type}, {self.bytes} B, used by {', '.join(self.used)}"


@dataclasses.dataclass(frozen=True)
class GivenSharding:
    """A sharding that an argument or result of the program comes with."""

    name: str
    """Name of the argument or result."""
    value: int
    axes: tuple[tuple[str, ...], ...]
    """Names of the axes that shard each dimension, major first."""
    open: bool
    """True if dimensions may be sharded further."""
    mesh: tuple[tuple[str, int], ...]
    """The axes of the mesh that it is for, with their sizes; empty for that of the plan."""

    @printed
    def __str__(self) -> str:
        return show_axes(self.axes)


@dataclasses.dataclass(frozen=True)
class Specs:
    """Shardings that a user gives arguments and results separately from the function, by number."""

    arguments: Mapping[int, tuple[tuple[str, ...], ...]]
    """Names of the axes that shard each dimension, major first."""
    results: Mapping[int, tuple[tuple[str, ...], ...]]
    own: frozenset[int] = frozenset()
    """Results to which the function's own `jax.jit` gives a sharding."""


@dataclasses.dataclass(frozen=True)
class Roles:
    """Roles of arguments and results, if a front end knows them better than their names say."""

    parameters: frozenset[int]
    """Values that are parameters."""
    optimizer: frozenset[int]
    """Values that are optimizer state."""
    examples: frozenset[int]

    def renumbered(self, place: Mapping[int, int]) -> Roles:
        """Returns the same roles for a program whose values have other numbers."""
        each = (self.parameters, self.optimizer, self.examples)
        return Roles(*(frozenset(place[value] for value in values) for values in each))


def show_axes(axes: Iterable[Sequence[str]]) -> str:
    """Formats the axes of every dimension for people: `(data, -, replica+model)`."""
    return f"({', '.join('+'.join(names) or '-' for names in axes)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """A tensor program, in SSA form and in execution order. `print(program)` shows it.

    Loops and branches are flattened: their operations stand in line with all others, and `body`
    says where each belongs.
    """

    name: str
    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]
    aliases: Mapping[int, int]
    """Donated argument number -> number of the result that takes its buffer over."""
    body: Block = dataclasses.field(repr=False)
    """Nesting of the operations in loops and branches."""
    regions: tuple[Region, ...]
    """Regions by number; region 0 is outside of all loops and branches, and its own parent."""
    module: str = dataclasses.field(repr=False, compare=False)
    """The program as it was read, as StableHLO text: its operations are the templates."""
    changed: bool = False
    """True if passes have changed the program since, so that only its operations say what it is."""
    keys: frozenset[int] = frozenset()
    """Arguments and results that are random keys to the user; their last dimension, the words of
    each key, cannot be sharded."""
    given: tuple[GivenSharding, ...] = ()
    """Shardings that arguments and results come with."""
    constants: tuple[Constant, ...] = ()
    """Constants that differ from element to element."""
    argument_memory: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Kinds of memory of the arguments that are in host memory, by number."""
    result_memory: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Kinds of memory of the results that are in host memory, by number."""
    hosted: frozenset[int] = frozenset()
    """All values in the memory of the host."""
    partitioned: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    """Functions that define their own partitioning, by the name in their calls."""
    platform: str = ""
    """Platform that JAX lowered it for (`tpu`, `cuda`, `rocm`, `cpu`); empty if read."""
    roles: Roles | None = None
    """Roles of arguments and results; None if only their names tell."""
    specs: Specs | None = None
    """The shardings that a user gave it to be partitioned as XLA does, if it is to be: they
    propagate by Shardy, operations run as XLA's partitioner has them, and sums are completed where
    they are made."""

    @property
    def by_xla(self) -> bool:
        """True if it is partitioned as XLA does, from the shardings that it comes with."""
        return self.specs is not None

    @functools.cached_property
    def tagged(self) -> tuple[tuple[str, int], ...]:
        """The names that users gave to intermediate values, each with its value."""
        return tuple((tag, op.results[0]) for op in self.operations for tag in op.tags)

    @functools.cached_property
    def closed(self) -> frozenset[tuple[int, int]]:
        """Values and dimensions that keep exactly the sharding that the program prescribes."""
        return frozenset(
            (value, dim)
            for op in self.operations
            if op.given
            for value, dims in zip(op.results, op.rule.results, strict=True)
            for dim, made_of in enumerate(dims)
            if op.rule.is_given(made_of)
        )

    @functools.cached_property
    def donated(self) -> dict[int, set[int]]:
        """Maps each donated argument to the results that take its buffer, and these back to it."""
        found: dict[int, set[int]] = {}
        for position, number in self.aliases.items():
            argument, result = self.arguments[position], self.results[number]
            found.setdefault(argument, set()).add(result)
            found.setdefault(result, set()).add(argument)
        return found

    @functools.cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outer ones before those inside."""
        return tuple(loops_in(self.body))

    @functools.cached_property
    def bodies(self) -> dict[int, Loop]:
        """Maps the region of every loop's body to the loop."""
        return {self.region_of(loop.body.items[0]): loop for loop in self.loops if loop.body.items}

    def region_of(self, item: Item) -> int:
        """Returns the region that an item of a block belongs to."""
        if isinstance(item, Loop):
            return self.regions[self.operations[item.choose].region].parent
        if isinstance(item, Branch):
            item = item.choose
        return self.operations[item.parts[0] if isinstance(item, Barrier) else item].region

    @functools.cached_property
    def ends(self) -> dict[int, int]:
        """Maps every `CARRY` operation to the last operation of its loop."""
        return {
            carry: max(loop.operations())
            for loop in self.loops
            for carry in loop.carries
            if carry is not None
        }

    def around(self, region: int) -> list[int]:
        """Returns a region and all regions around it, innermost first."""
        found = [region]
        while found[-1]:
            found.append(self.regions[found[-1]].parent)
        return found

    def read_at(self, op: int, number: int) -> int:
        """Returns the operation at which an operand is read; a body's result is read at its end."""
        return self.ends.get(op, op) if number == 1 else op

    def defined_times(self, value: int) -> int:
        """Returns how many times per step a value is defined, and so moved: loops multiply.

        A value that a loop returns at its end is defined once per run of the loop, not of its body.
        """
        v = self.values[value]
        if v.producer is None:
            return 1
        op = self.operations[v.producer]
        if op.index in self.ends and v.position < 2:
            return self.operations[self.ends[op.index]].times
        return op.times

    def home(self, value: int) -> int:
        """Returns the region that defines a value; for a carried one, the body of its loop."""
        v = self.values[value]
        if v.producer is None:
            return 0
        if v.producer in self.ends and v.position < 2:
            return self.operations[self.ends[v.producer]].region
        return self.operations[v.producer].region

    def uses(self) -> list[list[tuple[int, int]]]:
        """Returns the (operation, operand number) pairs that read each value."""
        uses: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for op in self.operations:
            for number, operand in enumerate(op.operands):
                uses[operand].append((op.index, number))
        if self.ends:
            for row in uses:
                row.sort(key=lambda use: self.read_at(*use))
        return uses

    def describe(self, value: int) -> str:
        """Names a value for the user: by argument path, or by operation and source line."""
        v = self.values[value]
        if v.producer is None:
            return self.argument_names[v.position]
        op = self.operations[v.producer]
        text = f"{op.short} at {op.source}" if op.source else f"{op.short} %{value}"
        return f"{', '.join(op.tags)} ({text})" if op.tags else text

    @printed
    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.operations)} operations>"

    @printed
    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        for name, value in zip(self.argument_names, self.arguments, strict=True):
            lines.append(f"  %{value} = {name} : {self.values[value].type}")
        lines += self._show(self.body, "  ")
        for name, value in zip(self.result_names, self.results, strict=True):
            lines.append(f"  {name} = %{value}")
        return "\n".join(lines)

    def _show(self, block: Block, indent: str) -> list[str]:
        lines = []
        for item in block.items:
            if isinstance(item, int):
                lines.append(indent + self._show_operation(item))
            elif isinstance(item, Barrier):
                lines += [indent + self._show_operation(part) for part in item.parts]
            elif isinstance(item, Loop):
                carries = [c for c in item.carries if c is not None]
                lines += [indent + self._show_operation(c) for c in carries]
                trips = "?" if item.trips is None else item.trips
                (predicate,) = self.operations[item.choose].operands
                lines.append(f"{indent}while %{predicate} ({trips} times)  {item.source}")
                lines += self._show(item.condition, indent + "  ")
                lines.append(f"{indent}do")
                lines += self._show(item.body, indent + "  ")
            else:
                lines.append(indent + self._show_operation(item.choose))
                for number, branch in enumerate(item.branches):
                    lines.append(f"{indent}branch {number}")
                    lines += self._show(branch, indent + "  ")
                lines += [indent + self._show_operation(j) for j in item.joins]
        return lines

    def _show_operation(self, index: int) -> str:
        op = self.operations[index]
        results = ", ".join(f"%{v}" for v in op.results)
        operands = ", ".join(f"%{v}" for v in op.operands)
        types = ", ".join(str(self.values[v].type) for v in op.results)
        head = f"{results} = " if results else ""
        return f"{head}{op.short}({operands}) : {types}  {op.rule}  {op.source}".rstrip()
