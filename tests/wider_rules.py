"""Where Shardy's rule of an operation is wider than partita's: found, and listed with why.

Shardy's rules say how shardings propagate; compilers then move data where an operation needs more
than a device has. partita's say along what devices can do their parts: where one cannot, a value is
gathered first, which the plan shows with its price, and what follows is sharded by other decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from partita.program.rule import Rule
from partita.stablehlo import mlir
from partita.stablehlo.mlir import ir, sdy
from partita.stablehlo.normal_form import prepare, with_rules
from partita.stablehlo.operations.rules import Rules, combiner_of
from partita.stablehlo.refusals import target_of, tensor_type

PASSED, SUMMED, MOVED, GATHERED = "passed on", "summed", "moved", "gathered"
"""What a rule of Shardy's does along a factor: pass-through, reduction, permutation, and need of
replication."""

Place = tuple[bool, int, int]
"""A dimension: whether of a result, the number of the tensor, and its own."""


class Wider(NamedTuple):
    """An operation along some factor of which Shardy's rule is wider."""

    operation: str
    """Its kind, or the target of a custom call."""
    does: str
    """What Shardy's rule does along the factor."""


def wider(text: str) -> set[Wider]:
    """Where Shardy's rules are wider, in a module."""
    found: set[Wider] = set()
    rules = Rules()

    def visit(op: Any) -> Any:
        if "sdy.sharding_rule" in op.attributes:
            operands, results = (
                [tensor_type(v.type) for v in s] for s in (op.operands, op.results)
            )
            ours = _links(rules.of(op, operands, results, combiner_of(op)))
            for does, places in _shardys(op):
                if not any(places <= linked for linked in ours):
                    found.add(Wider(target_of(op) or op.name, does))
        return ir.WalkResult.ADVANCE

    with mlir.context():
        with_rules(prepare(text)).operation.walk(visit)
    return found


def _shardys(op: Any) -> Iterator[tuple[str, frozenset[Place]]]:
    """What Shardy's rule does along each factor that it propagates; which dimensions have it."""
    rule = sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"])
    sizes, blocked = list(rule.factor_sizes), set(rule.blocked_propagation_factors)
    kinds = {
        **dict.fromkeys(rule.reduction_factors, SUMMED),
        **dict.fromkeys(rule.permutation_factors, MOVED),
        **dict.fromkeys(rule.need_replication_factors, GATHERED),
    }
    sides = [
        [
            [list(sdy.DimMappingAttr(dim).factor_indices) for dim in made.dim_mappings]
            for made in map(sdy.TensorMappingAttr, side)
        ]
        for side in (rule.operand_mappings, rule.result_mappings)
    ]
    for factor, places in _by_factor(sides, sizes):
        does = kinds.get(factor, PASSED)
        if factor not in blocked and (len(places) > 1 or does == SUMMED):
            yield does, places


def _links(rule: Rule) -> list[frozenset[Place]]:
    """The dimensions that are sharded together."""
    sizes = [factor.size for factor in rule.factors]
    linked = _by_factor((rule.operands, rule.results), sizes)
    return [places for factor, places in linked if rule.factors[factor].kind != "blocked"]


def _by_factor(sides: Any, sizes: list[int]) -> Iterable[tuple[int, frozenset[Place]]]:
    """The dimensions of which each factor carries the shards."""
    found: dict[int, set[Place]] = {}
    for result, tensors in enumerate(sides):
        for number, tensor in enumerate(tensors):
            for dim, made_of in enumerate(tensor):
                leading = next((factor for factor in made_of if sizes[factor] > 1), None)
                if leading is not None:
                    found.setdefault(leading, set()).add((bool(result), number, dim))
    return [(factor, frozenset(places)) for factor, places in found.items()]


_ALL = "each element of the result is made of all along it"
_MATRIX = "what is sharded is one matrix, which one device factors"
_WINDOWS = "windows reach into other shards"
_PLACES = "elements move to other shards"

WHY = {
    Wider("stablehlo.cholesky", GATHERED): _MATRIX,
    Wider("stablehlo.triangular_solve", GATHERED): _MATRIX,
    Wider("Cholesky", PASSED): _MATRIX,
    Wider("CompactWyHelper", PASSED): _MATRIX,
    Wider("Eigh", PASSED): _MATRIX,
    Wider("InvertDiagBlocksLowerTriangular", PASSED): _MATRIX,
    Wider("InvertDiagBlocksUpperTriangular", PASSED): _MATRIX,
    Wider("ProductOfElementaryHouseholderReflectors", GATHERED): _MATRIX,
    Wider("Qr", GATHERED): _MATRIX,
    Wider("QrDecompositionBlock", GATHERED): _MATRIX,
    Wider("stablehlo.fft", GATHERED): _ALL,
    Wider("stablehlo.sort", GATHERED): _ALL,
    Wider("mhlo.topk", PASSED): _ALL,
    Wider("ApproxTopK", PASSED): _ALL,
    Wider("stablehlo.reduce", SUMMED): "results of several operands together have no sum; those of "
    "`argmax` and its like are cut into parts when a program is planned",
    Wider("stablehlo.convolution", MOVED): "without padding results do not line up with elements",
    Wider(
        "stablehlo.convolution", SUMMED
    ): "a dimension of the image goes with the result, not the window",
    Wider("stablehlo.select_and_scatter", MOVED): _WINDOWS,
    Wider("stablehlo.reduce_window", MOVED): _WINDOWS,
    Wider("stablehlo.scatter", GATHERED): _WINDOWS,
    Wider("stablehlo.concatenate", GATHERED): _PLACES,
    Wider("stablehlo.concatenate", MOVED): _PLACES,
    Wider("stablehlo.slice", MOVED): _PLACES,
    Wider("stablehlo.dynamic_update_slice", MOVED): _WINDOWS,
    Wider(
        "stablehlo.reshape", MOVED
    ): "the dimensions of one side are no parts of those of the other",
}
"""All there is, and why it stays so."""

LATER = {Wider("stablehlo.dynamic_update_slice", MOVED), Wider("stablehlo.reshape", MOVED)}
"""What Shardy's rules have since JAX 0.11 or 0.12. Other entries may be gone with these."""
