"""Sharding rules as text, as in `"rows k+, k+ columns -> rows columns"`.

One word for each dimension; words that are equal are one factor. Marks say what a factor is:

- `k+`: a reduction, results are sums over it;
- `k!`: it requires replication;
- `.`: a dimension by itself, which requires replication.

Tensors are separated by commas; a scalar has no word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from partita.errors import RuleError
from partita.program.ir import TensorType
from partita.program.rule import Factor, FactorKind, Rule

_WORD = re.compile(r"([A-Za-z_]\w*)([+!]?)")
_MARKS: dict[str, FactorKind] = {"+": "reduction", "!": "blocked"}

Tensors = list[list[str]]


def split(text: str) -> tuple[Tensors, Tensors]:
    """The words of every operand and every result, with their marks."""
    sides = text.split("->")
    if len(sides) != 2:
        raise RuleError(
            f"rule {text!r} has {len(sides) - 1} arrows; expected one, between operands and "
            "results, as in 'rows k+, k+ columns -> rows columns'"
        )
    operands, results = ([tensor.split() for tensor in side.split(",")] for side in sides)
    for word in (word for tensor in (*operands, *results) for word in tensor):
        if word != "." and not _WORD.fullmatch(word):
            raise RuleError(
                f"rule {text!r} has {word!r}; expected a name for each dimension, such as rows, "
                "k+ (results are sums over it), k! (it requires replication) or . (a dimension by "
                "itself)"
            )
    return operands, results


def check(text: str) -> None:
    """Raises `RuleError` if a rule makes no sense, whatever the sizes."""
    operands, results = split(text)
    kinds = _kinds_of(text, operands, results)
    for name, kind in kinds.items():
        read = [_has(tensor, name) for tensor in operands]
        made = [_has(tensor, name) for tensor in results]
        if kind == "parallel" and not all(made):
            raise RuleError(
                f"rule {text!r}: {name} is missing in a result; write {name}+ if results are sums "
                f"over it, or {name}! if it requires replication"
            )
        if kind == "parallel" and not any(read):
            raise RuleError(
                f"rule {text!r}: {name} is in no operand; write . for a dimension that results "
                "have by themselves"
            )
        if kind == "reduction" and any(made):
            raise RuleError(f"rule {text!r}: {name}+ is summed over, so no result can have it")
    for tensor in (*operands, *results):
        names = [word.rstrip("+!") for word in tensor if word != "."]
        for name in names:
            if names.count(name) > 1 and kinds[name] != "blocked":
                raise RuleError(
                    f"rule {text!r}: {name} is twice in [{' '.join(tensor)}]; one axis cannot "
                    "shard both, give them different names"
                )


def read(text: str, operands: Sequence[TensorType], results: Sequence[TensorType], of: str) -> Rule:
    """The rule that a text means for operands and results of these types.

    Args:
      text: as described above.
      operands: their types.
      results: their types.
      of: what the rule is for, in words.

    Raises:
      RuleError: the text does not fit the types.
    """
    sides = split(text)
    kinds = _kinds_of(text, *sides)
    numbers = {name: number for number, name in enumerate(kinds)}
    sizes: dict[str, int] = {}
    mappings = []
    for words, types, side in zip(sides, (operands, results), ("operand", "result"), strict=True):
        tensors = words if types or words != [[]] else []
        if len(tensors) != len(types):
            raise RuleError(
                f"rule {text!r} of {of} has {len(tensors)} {side}s, but it is called with "
                f"{len(types)}: {', '.join(map(str, types))}"
            )
        mapped = []
        for number, (tensor, type_) in enumerate(zip(tensors, types, strict=True)):
            if len(tensor) != len(type_.shape):
                raise RuleError(
                    f"rule {text!r} of {of} has {len(tensor)} dimensions for {side} {number}, "
                    f"which is {type_}"
                )
            names = [word.rstrip("+!") for word in tensor]
            for name, size in zip(names, type_.shape, strict=True):
                if name != "." and sizes.setdefault(name, size) != size:
                    raise RuleError(
                        f"rule {text!r} of {of}: {name} is {sizes[name]} and, in {side} {number} "
                        f"({type_}), {size}; dimensions of one name have one size"
                    )
            mapped.append(tuple(() if name == "." else (numbers[name],) for name in names))
        mappings.append(tuple(mapped))
    reason = f"{of} requires replication of this dimension"
    factors = tuple(
        Factor(sizes[name], kind, reason if kind == "blocked" else "")
        for name, kind in kinds.items()
    )
    return Rule(factors, operands=mappings[0], results=mappings[1])


def _has(tensor: Sequence[str], name: str) -> bool:
    return any(word.rstrip("+!") == name for word in tensor)


def _kinds_of(text: str, operands: Tensors, results: Tensors) -> dict[str, FactorKind]:
    """Returns the kind of each factor, in the order in which they are named."""
    kinds: dict[str, FactorKind] = {}
    for tensor in (*operands, *results):
        for name, mark in (m.groups() for m in map(_WORD.fullmatch, tensor) if m):
            known = kinds.setdefault(name, "parallel")
            if mark and known not in ("parallel", _MARKS[mark]):
                raise RuleError(f"rule {text!r}: {name} is marked both + and !; it can be one")
            if mark:
                kinds[name] = _MARKS[mark]
    return kinds
