"""Sharding rules of operations that Shardy has none for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.ir import Factor, Rule, TensorType
from partita.program.op_traits import BROADCASTING, ELEMENTWISE, GENERATED, OWN
from partita.stablehlo.rules import notation
from partita.stablehlo.rules import registry as custom


def own(op: Any, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule | None:
    """The rule of an MLIR operation; None if there is none here."""
    if op.name in GENERATED:
        return same(results[0], 0, 1)
    if op.name in ELEMENTWISE and all(t.shape == results[0].shape for t in operands):
        return same(results[0], len(operands), len(results))
    short = op.name.rpartition(".")[2]
    text = _text(op, short, operands, results) if op.name in OWN else None
    return notation.read(text, operands, results, short) if text else None


def of_custom_call(
    target: str, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Rule | None:
    """The rule that a user has given for a custom call; None without."""
    text = custom.RULES.get(target)
    return notation.read(text, operands, results, target) if text else None


def _text(
    op: Any, short: str, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> str | None:
    """The rule of an operation in `OWN`, as text."""
    if op.name in BROADCASTING:
        return _broadcasting(op, operands, results[0])
    if short == "einsum":
        return _einsum(op.attributes["einsum_config"].value)
    names = [f"d{dim}" for dim in range(len(operands[0].shape))]
    if short == "map":
        dims = " ".join(names)
        return f"{', '.join([dims] * len(operands))} -> {dims}"
    if short == "top_k":
        kept = " ".join([*names[:-1], "."])
        return f"{' '.join(names)}! -> {', '.join([kept] * len(results))}"
    # Batch normalization, which takes means over everything but the features when it trains.
    feature = op.attributes["feature_index"].value
    mark = "" if short == "batch_norm_inference" else "!"
    tensor = " ".join(n if dim == feature else n + mark for dim, n in enumerate(names))

    def side(types: Sequence[TensorType]) -> str:
        return ", ".join(tensor if len(t.shape) > 1 else names[feature] for t in types)

    return f"{side(operands)} -> {side(results)}"


def _broadcasting(op: Any, operands: Sequence[TensorType], result: TensorType) -> str:
    """Operands stand at the end, or where the operation says; what is stretched is not split."""
    rank = len(result.shape)
    given = op.attributes.get("broadcast_dimensions", ())
    least = min(len(t.shape) for t in operands)
    sides = []
    for type_ in operands:
        own_rank = len(type_.shape)
        start = rank - own_rank
        places = list(given) if given and own_rank == least else range(start, rank)
        sides.append(
            " ".join(
                f"d{place}" if size == result.shape[place] else "."
                for place, size in zip(places, type_.shape, strict=True)
            )
        )
    return f"{', '.join(sides)} -> {' '.join(f'd{dim}' for dim in range(rank))}"


def _einsum(config: str) -> str | None:
    """None where a letter stands for a diagonal, or dots for several dimensions."""
    inputs, _, output = config.replace(" ", "").partition("->")
    if "." in config or any(len(set(each)) < len(each) for each in (*inputs.split(","), output)):
        return None
    tensors = [
        " ".join(letter if letter in output else f"{letter}+" for letter in tensor)
        for tensor in inputs.split(",")
    ]
    return f"{', '.join(tensors)} -> {' '.join(output)}"


def same(type_: TensorType, operands: int, results: int) -> Rule:
    """All operands and results are one value: carried by a loop, or what branches give."""
    factors = tuple(Factor(size, "parallel") for size in type_.shape)
    tensor = tuple((dim,) for dim in range(len(type_.shape)))
    return Rule(factors, (tensor,) * operands, (tensor,) * results)


def opaque(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule:
    """No factor at all: every operand and every result is replicated."""

    def unmapped(types: Sequence[TensorType]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(() for _ in type_.shape) for type_ in types)

    return Rule((), unmapped(operands), unmapped(results), known=False)
