"""The program being partitioned: values, operations, and the factors of each operation.

A `Program` knows nothing of meshes. It is plain data, read from StableHLO by `importer`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Literal

FactorKind = Literal["parallel", "reduction", "blocked"]

_BITS = {"pred": 8, "i1": 8, "i4": 4, "ui4": 4, "i2": 2, "ui2": 2}


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
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("complex<"):
        return 2 * bits(dtype[len("complex<") : -1])
    if dtype.startswith("f8"):
        return 8
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) if digits else 8


@dataclasses.dataclass(frozen=True, slots=True)
class Factor:
    """A loop index of one operation (an einsum letter)."""

    size: int
    kind: FactorKind
    reason: str = ""
    """Why a blocked factor cannot be sharded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Which dimension of which operand and result is which factor (Shardy's sharding rule).

    A dimension may be made of several factors, major first: `[B, H*K]` reshaped to `[B, H, K]`.
    Only the leading factor larger than one can carry a shard of such a dimension.
    """

    factors: tuple[Factor, ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    known: bool = True
    """False for an operation without a rule, which is kept replicated."""

    def leading(self, dimension: tuple[int, ...]) -> int | None:
        """The factor that carries the shards of a dimension, None when it has none."""
        for factor in dimension:
            if self.factors[factor].size > 1:
                return factor
        return None

    def __str__(self) -> str:
        def side(tensors: tuple[tuple[tuple[int, ...], ...], ...]) -> str:
            return ", ".join(
                "[" + " ".join("".join(map(_letter, dim)) or "1" for dim in tensor) + "]"
                for tensor in tensors
            )

        return f"{side(self.operands)} -> {side(self.results)}"


def _letter(factor: int) -> str:
    letters = "ijklmnopqrstuvwxyzabcdefgh"
    return letters[factor] if factor < len(letters) else f"z{factor}"


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
class Operation:
    """One operation. `operands` and `results` are indices of values."""

    index: int
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule
    combine: str = "add"
    """How partial results along a reduction factor are combined: add, max, min, mul, and, or."""
    zero_init: bool = False
    """A scatter into zeros, or a reduction that starts from zeros."""
    source: str = ""
    """`file:line` of the user's code."""
    scope: str = ""
    """JAX name scope."""

    @property
    def short(self) -> str:
        """Name without the dialect."""
        return self.kind.rpartition(".")[2]


@dataclasses.dataclass(frozen=True)
class Program:
    """A straight-line tensor program, in SSA form and in execution order."""

    name: str
    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]
    aliases: Mapping[int, int]
    """Donated argument number -> number of the result that takes its buffer over."""
    module: str = dataclasses.field(repr=False, compare=False)
    """The same program as StableHLO text, operation for operation."""

    def uses(self) -> list[list[tuple[int, int]]]:
        """For every value, the (operation, operand number) pairs that read it."""
        uses: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for op in self.operations:
            for number, operand in enumerate(op.operands):
                uses[operand].append((op.index, number))
        return uses

    def describe(self, value: int) -> str:
        """A value by the user's own name: its argument path, or its operation and source line."""
        v = self.values[value]
        if v.producer is None:
            return self.argument_names[v.position]
        op = self.operations[v.producer]
        return f"{op.short} at {op.source}" if op.source else f"{op.short} %{value}"

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        for name, value in zip(self.argument_names, self.arguments, strict=True):
            lines.append(f"  %{value} = {name} : {self.values[value].type}")
        for op in self.operations:
            results = ", ".join(f"%{v}" for v in op.results)
            operands = ", ".join(f"%{v}" for v in op.operands)
            types = ", ".join(str(self.values[v].type) for v in op.results)
            lines.append(f"  {results} = {op.short}({operands}) : {types}  {op.rule}  {op.source}")
        for name, value in zip(self.result_names, self.results, strict=True):
            lines.append(f"  {name} = %{value}")
        return "\n".join(lines)
