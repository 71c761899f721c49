"""Operations on whole dimensions: reductions, normalisations, sorts and decompositions.

Along all other dimensions each vector or matrix is by itself. The initial value of a reduction
counts once, however many devices reduce parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from partita.program.combining import NEUTRAL
from partita.program.ir import TensorType
from partita.stablehlo.builder import COMBINE, Builder
from partita.stablehlo.local_run import LocalRun
from partita.stablehlo.operations.entry import Entry, Types
from partita.stablehlo.operations.letters import (
    Letters,
    its_dimension,
    last,
    lettered,
    listed,
    numbered,
    same_but,
)


def _reduced(op: Any) -> Letters:
    names = lettered(op.operands[0])
    over = set(op.attributes["dimensions"])
    kept = tuple(name for dim, name in enumerate(names) if dim not in over)
    count = len(op.results)
    return (names,) * count + ((),) * count + (kept,) * count


def _reduce(op: Any, run: LocalRun, build: Builder) -> Sequence[Any]:
    """Applies the initial value to the combined result of all devices, once if it is added.

    It is combined with a device's partial result rather than passed to the reduction: XLA reduces a
    shard of a single element to that element, without the initial value.
    """
    known = run.operation.zero_init and run.operation.combine == "add"
    if not run.sums or known:
        return build.place(op, run.outputs)
    combine, init = COMBINE[run.operation.combine], op.operands[1]
    neutral = NEUTRAL.get(run.operation.combine)
    if neutral is not None:
        op.operands[1] = build.fill(init.type, neutral)
        init = build.only_first(init, op.operands[1], run.sums)
    (result,) = build.place(op, run.outputs)
    return [combine(result, build.propagation(init, result))]


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


def _transformed(op: Any) -> Iterable[int]:
    return last(len(op.attributes["fft_length"]))(op)


_MATRICES = Entry(letters=same_but(last(2)))

ENTRIES = {
    "chlo.top_k": Entry(own=_top_k, letters=same_but(last(1))),
    "stablehlo.batch_norm_grad": Entry(own=_batch_norm_training),
    "stablehlo.batch_norm_inference": Entry(own=_batch_norm),
    "stablehlo.batch_norm_training": Entry(own=_batch_norm_training),
    "stablehlo.cholesky": _MATRICES,
    "stablehlo.fft": Entry(letters=same_but(_transformed)),
    "stablehlo.map": Entry(own=_map),
    "stablehlo.reduce": Entry(letters=_reduced, renumber=listed("dimensions"), local=_reduce),
    "stablehlo.sort": Entry(letters=same_but(its_dimension), renumber=numbered("dimension")),
    "stablehlo.triangular_solve": _MATRICES,
}
"""Entries of operations on whole dimensions, by kind."""
