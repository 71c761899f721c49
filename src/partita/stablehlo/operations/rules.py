"""The sharding rule of every operation: Shardy's, as far as a device can follow it, or our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partita.program.combining import combines
from partita.program.ir import TensorType
from partita.program.op_traits import traits
from partita.program.rule import Factor, FactorKind, Rule
from partita.stablehlo.bodies import combiner
from partita.stablehlo.custom_calls import target_of
from partita.stablehlo.kernels import kernel_of
from partita.stablehlo.mlir import sdy
from partita.stablehlo.operations import entry
from partita.stablehlo.operations.entry import Types
from partita.stablehlo.rules import calls, notation
from partita.stablehlo.rules.draft import blocked, opaque

_RULE = "sdy.sharding_rule"


class Rules:
    """Reads the rules of operations to which Shardy has attached its own."""

    def __init__(self) -> None:
        self._known: dict[Any, Rule] = {}

    def of(
        self,
        op: Any,
        operands: Sequence[TensorType],
        results: Sequence[TensorType],
        combine: str | None,
    ) -> Rule:
        """The rule of an operation.

        Args:
          op: the MLIR operation.
          operands: types of what it reads, captured values included.
          results: types of what it makes.
          combine: how unreduced results along a reduction factor combine; None when they cannot.
        """
        rule = _given(op, operands, results)
        if rule is None:
            rule = self._shardy(op, combine)
            narrow = entry(op.name).narrow
            rule = rule if narrow is None else narrow(op, rule, operands, results)
        how = combine or "add"
        if not all(combines(t.dtype, how) for t in results):
            what = "sum" if how == "add" else how
            sums = [n for n, factor in enumerate(rule.factors) if factor.kind == "reduction"]
            rule = blocked(rule, sums, f"parts of {results[0].dtype} have no {what}")
        return rule

    def _shardy(self, op: Any, combine: str | None) -> Rule:
        attribute = op.attributes[_RULE]
        key = (attribute, op.name, combine)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _read_rule(attribute, op.name, combine)
        return known


def _given(op: Any, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule | None:
    """A rule that is not Shardy's; None where Shardy's is to be read."""
    if is_shardys(op):
        return None
    if target := target_of(op):
        if target == calls.PARTITIONED_CALL:
            return _read_rule(op.attributes[_RULE], target, "add")
        rule = calls.of_call(op, target, operands, results)
        kernel = kernel_of(op)
        if rule is None and kernel is not None:
            rule = calls.of_kernel(kernel.name, operands, results)
    else:
        rule = _own(op, operands, results)
    return rule or opaque(operands, results)


def _own(op: Any, operands: Types, results: Types) -> Rule | None:
    """The rule of an MLIR operation; None if there is none here."""
    known = traits(op.name)
    if known.treatment == "generated":
        return Rule.same(results[0].shape, 0, 1)
    if known.elementwise and all(t.shape == results[0].shape for t in operands):
        return Rule.same(results[0].shape, len(operands), len(results))
    write = _broadcasting if known.treatment == "broadcasting" else entry(op.name).own
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


def is_shardys(op: Any) -> bool:
    """Returns whether the rule of an operation is Shardy's, narrowed or widened."""
    known = traits(op.name)
    ours = known.treatment == "generated" or bool(target_of(op))
    return _RULE in op.attributes and known.shardable and not ours


def combiner_of(op: Any) -> str | None:
    """Returns how unreduced results along a reduction factor combine; None when they cannot."""
    known = traits(op.name)
    if known.sums:
        return "add"
    if not (known.reduces or known.scatters):
        return None
    found = combiner(op)
    if found in ("and", "or") and "i1>" not in str(op.results[0].type):
        return None  # compilers combine booleans in this way, not the bits of integers
    return found


def _read_rule(attribute: Any, kind: str, combine: str | None) -> Rule:
    rule = sdy.OpShardingRuleAttr(attribute)
    sizes = list(rule.factor_sizes)
    kinds: list[FactorKind] = ["parallel"] * len(sizes)
    reasons = [""] * len(sizes)

    def block(factors: Any, reason: str) -> None:
        for factor in factors:
            kinds[factor], reasons[factor] = "blocked", reason

    short = kind.rpartition(".")[2]
    for factor in rule.reduction_factors:
        kinds[factor] = "reduction"
    if combine is None:
        block(rule.reduction_factors, f"unreduced results of {short} cannot be combined")
    block(rule.need_replication_factors, f"{short} requires replication of this dimension")
    block(rule.permutation_factors, f"{short} moves elements along this dimension")
    block(rule.blocked_propagation_factors, f"{short} does not pass shards along this dimension")
    operands, results = _mappings(rule.operand_mappings), _mappings(rule.result_mappings)
    draft = Rule(tuple(map(Factor, sizes, kinds)), operands, results)
    for tensor in (*operands, *results):
        for dimension in tensor:
            leading = draft.leading(dimension)
            inner = [f for f in dimension if f != leading and sizes[f] > 1]
            made = " x ".join(str(sizes[f]) for f in dimension)
            block(inner, f"it is an inner factor of a dimension made of {made}")
    factors = tuple(map(Factor, sizes, kinds, reasons))
    return dataclasses.replace(draft, factors=factors)


def _mappings(tensors: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(
            tuple(sdy.DimMappingAttr(dim).factor_indices)
            for dim in sdy.TensorMappingAttr(tensor).dim_mappings
        )
        for tensor in tensors
    )
