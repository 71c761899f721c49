"""Sharding rules of operations that Shardy has none for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.program.rule import Factor, Rule
from partita.stablehlo.rules import notation
from partita.stablehlo.rules.ragged import ragged_dot

Types = Sequence[TensorType]


def own(op: Any, operands: Types, results: Types) -> Rule | None:
    """The rule of an MLIR operation; None if there is none here."""
    known = traits(op.name)
    if known.treatment == "generated":
        return same(results[0], 0, 1)
    if known.elementwise and all(t.shape == results[0].shape for t in operands):
        return same(results[0], len(operands), len(results))
    write = _broadcasting if known.treatment == "broadcasting" else OWN.get(op.name)
    text = write(op, operands, results) if write else None
    return notation.read(text, operands, results, op.name.rpartition(".")[2]) if text else None


def _broadcasting(op: Any, operands: Types, results: Types) -> str:
    """Operands stand at the end, or where the operation says; what is stretched is not sharded."""
    (result,) = results
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


def _einsum(op: Any, operands: Types, results: Types) -> str | None:
    """Returns the rule of an einsum; None for diagonals, and for dots that stand for dimensions."""
    config = op.attributes["einsum_config"].value
    inputs, _, output = config.replace(" ", "").partition("->")
    if "." in config or any(len(set(each)) < len(each) for each in (*inputs.split(","), output)):
        return None
    tensors = [
        " ".join(letter if letter in output else f"{letter}+" for letter in tensor)
        for tensor in inputs.split(",")
    ]
    return f"{', '.join(tensors)} -> {' '.join(output)}"


def _map(op: Any, operands: Types, results: Types) -> str:
    dims = " ".join(_names(operands[0]))
    return f"{', '.join([dims] * len(operands))} -> {dims}"


def _top_k(op: Any, operands: Types, results: Types) -> str:
    names = _names(operands[0])
    kept = " ".join([*names[:-1], "."])
    return f"{' '.join(names)}! -> {', '.join([kept] * len(results))}"


def _batch_norm(op: Any, operands: Types, results: Types) -> str:
    return _normalized(op, operands, results, "")


def _batch_norm_training(op: Any, operands: Types, results: Types) -> str:
    """It takes means over everything but the features."""
    return _normalized(op, operands, results, "!")


def _normalized(op: Any, operands: Types, results: Types, mark: str) -> str:
    """Tensors and vectors of features; the tensors' other dimensions are marked."""
    names = _names(operands[0])
    feature = op.attributes["feature_index"].value
    tensor = " ".join(n if dim == feature else n + mark for dim, n in enumerate(names))

    def side(types: Types) -> str:
        return ", ".join(tensor if len(t.shape) > 1 else names[feature] for t in types)

    return f"{side(operands)} -> {side(results)}"


def _names(type_: TensorType) -> list[str]:
    return [f"d{dim}" for dim in range(len(type_.shape))]


OWN: dict[str, Callable[[Any, Types, Types], str | None]] = {
    "stablehlo.batch_norm_grad": _batch_norm_training,
    "stablehlo.batch_norm_inference": _batch_norm,
    "stablehlo.batch_norm_training": _batch_norm_training,
    "stablehlo.einsum": _einsum,
    "stablehlo.map": _map,
    "chlo.ragged_dot": ragged_dot,
    "chlo.top_k": _top_k,
}
"""Writers by kind of partita's own rules, as text that `notation` reads."""


def same(type_: TensorType, operands: int, results: int) -> Rule:
    """All operands and results are one value: carried by a loop, or what branches give."""
    factors = tuple(Factor(size, "parallel") for size in type_.shape)
    tensor = tuple((dim,) for dim in range(len(type_.shape)))
    return Rule(factors, (tensor,) * operands, (tensor,) * results)


def opaque(operands: Types, results: Types) -> Rule:
    """No factor at all: every operand requires replication, every result is made in full."""

    def unmapped(types: Types) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(() for _ in type_.shape) for type_ in types)

    return Rule((), unmapped(operands), unmapped(results), known=False)
