"""StableHLO text -> `Program`: rules from Shardy, names and source lines from locations."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxlib.mlir.dialects import sdy

from partita.errors import UnsupportedError
from partita.program import mlir, rules
from partita.program.ir import Factor, FactorKind, Operation, Program, Rule, TensorType, Value
from partita.program.mlir import ir
from partita.program.windows import block_windows

_RULE = "sdy.sharding_rule"
_KEEPS_ZERO = {"stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"}
_REFUSED = {
    "sdy.sharding_constraint": "a sharding constraint (with_sharding_constraint)",
    "sdy.manual_computation": "a shard_map region",
}


def import_stablehlo(text: str, name: str | None = None) -> Program:
    """Reads a StableHLO module.

    Args:
      text: the module, with debug locations if sources are to be reported.
      name: what to call the program; the module's own name by default.

    Raises:
      UnsupportedError: unreadable, dynamic shapes, host callbacks, or sharding given inside.
    """
    with mlir.context():
        prepared = mlir.prepare(text)
        module = mlir.with_rules(prepared)
        return _Importer(module, prepared, name).run()


class _Importer:
    """State of one import: numbering of values, and caches of MLIR's uniqued objects."""

    def __init__(self, module: Any, text: str, name: str | None) -> None:
        self.main = mlir.main_function(module)
        self.text = text
        self.name = name or str(module.operation.attributes["sym_name"]).strip('"@')
        self.values: list[Value] = []
        self.numbers: dict[Any, int] = {}
        self.types: dict[Any, TensorType] = {}
        self.rule_cache: dict[Any, Rule] = {}
        self.sources: dict[Any, tuple[str, str]] = {}
        self.zeros: set[int] = set()

    def run(self) -> Program:
        block = self.main.entry_block
        for position, argument in enumerate(block.arguments):
            self._define(argument, None, position)
        operations: list[Operation] = []
        results: tuple[int, ...] = ()
        for view in block.operations:
            op = view.operation
            if op.name == "func.return":
                results = tuple(self.numbers[v] for v in op.operands)
            else:
                operations.append(self._operation(op, len(operations)))
        count = len(block.arguments)
        return Program(
            name=self.name,
            values=tuple(self.values),
            operations=tuple(operations),
            arguments=tuple(range(count)),
            results=results,
            argument_names=tuple(self._argument_names(block.arguments)),
            result_names=tuple(self._result_names(len(results))),
            aliases=self._aliases(count),
            module=self.text,
        )

    def _define(self, value: Any, producer: int | None, position: int) -> int:
        index = len(self.values)
        self.numbers[value] = index
        self.values.append(Value(index, self._type(value.type), producer, position))
        return index

    def _type(self, type_: Any) -> TensorType:
        known = self.types.get(type_)
        if known is None:
            known = self.types[type_] = _tensor_type(type_)
        return known

    def _operation(self, op: Any, index: int) -> Operation:
        source, scope = self._source(op.location)
        _check_supported(op, source)
        operands = [self.numbers[v] for v in op.operands]
        if op.regions and op.name not in rules.REGION_KINDS:
            operands += [self.numbers[v] for v in _captured(op, self.numbers)]
        results = tuple(self._define(r, index, i) for i, r in enumerate(op.results))
        combine = _combiner(op)
        rule = self._rule(op, operands, results, combine)
        made = Operation(
            index=index,
            kind=op.name,
            operands=tuple(operands),
            results=results,
            rule=rule,
            combine=combine or "",
            zero_init=self._starts_from_zeros(op.name, operands),
            source=source,
            scope=scope,
        )
        self._note_zero(op, made)
        return made

    def _starts_from_zeros(self, kind: str, operands: list[int]) -> bool:
        if kind == "stablehlo.scatter":
            return operands[0] in self.zeros
        if kind == "stablehlo.reduce":
            return all(v in self.zeros for v in operands[len(operands) // 2 :])
        return False

    def _note_zero(self, op: Any, made: Operation) -> None:
        if op.name == "stablehlo.constant":
            value = op.attributes["value"]
            if value.is_splat and _is_zero(value.get_splat_value()):
                self.zeros.update(made.results)
        elif op.name in _KEEPS_ZERO and made.operands[0] in self.zeros:
            self.zeros.update(made.results)

    def _rule(
        self, op: Any, operands: list[int], results: tuple[int, ...], combine: str | None
    ) -> Rule:
        operand_types = [self.values[v].type for v in operands]
        result_types = [self.values[v].type for v in results]
        if op.name in ("stablehlo.iota", "stablehlo.constant"):
            return rules.identity(result_types[0])
        if op.name == "stablehlo.optimization_barrier":
            return rules.pairwise(result_types)
        if op.name not in rules.SHARDABLE or _RULE not in op.attributes:
            return rules.opaque(operand_types, result_types)
        attribute = op.attributes[_RULE]
        key = (attribute, op.name, combine)
        known = self.rule_cache.get(key)
        if known is None:
            known = self.rule_cache[key] = _read_rule(attribute, op.name, combine)
        return block_windows(op, known, operand_types)

    def _source(self, location: Any) -> tuple[str, str]:
        """File and line, and scope. Locations nest and are shared, so each part is read once."""
        known = self.sources.get(location)
        if known is None:
            known = self.sources[location] = self._read_location(location)
        return known

    def _read_location(self, location: Any) -> tuple[str, str]:
        if hasattr(location, "filename"):
            return f"{location.filename}:{location.start_line}", ""
        if hasattr(location, "callee"):
            return self._source(location.callee)
        if hasattr(location, "child_loc"):
            return self._source(location.child_loc)[0], location.name_str
        for inner in getattr(location, "locations", ()):
            if (found := self._source(inner))[0]:
                return found
        return "", ""

    def _argument_names(self, arguments: Any) -> list[str]:
        names = [getattr(argument.location, "name_str", "") for argument in arguments]
        return [name or f"arg{i}" for i, name in enumerate(names)]

    def _result_names(self, count: int) -> list[str]:
        attributes = self.main.attributes
        infos = attributes["res_attrs"] if "res_attrs" in attributes else [{}] * count
        names = [
            info["jax.result_info"].value if "jax.result_info" in info else "" for info in infos
        ]
        return [name or (f"result[{i}]" if count > 1 else "result") for i, name in enumerate(names)]

    def _aliases(self, count: int) -> dict[int, int]:
        attributes = self.main.attributes
        infos = attributes["arg_attrs"] if "arg_attrs" in attributes else [{}] * count
        key = "tf.aliasing_output"
        return {i: info[key].value for i, info in enumerate(infos) if key in info}


def _tensor_type(type_: Any) -> TensorType:
    try:
        ranked = ir.RankedTensorType(type_)
    except (TypeError, ValueError):
        raise UnsupportedError(
            f"a value of type {type_} cannot be partitioned; effects that are ordered by tokens "
            "(callbacks, prints) have to be taken out of the function"
        ) from None
    if not ranked.has_static_shape:
        raise UnsupportedError(
            f"{type_} has a dynamic shape; export the program with fixed shapes, for example by "
            "passing jax.ShapeDtypeStruct arguments"
        )
    return TensorType(tuple(ranked.shape), str(ranked.element_type))


def _check_supported(op: Any, source: str) -> None:
    where = f" at {source}" if source else ""
    if op.name in _REFUSED:
        raise UnsupportedError(
            f"the program contains {_REFUSED[op.name]}{where}; take it out, and say what it says "
            "with a ManualPartition tactic"
        )
    if op.name == "stablehlo.custom_call":
        target = op.attributes["call_target_name"].value
        if any(part in target for part in rules.HOST_CALLS):
            raise UnsupportedError(
                f"the program calls back to the host{where} ({target}), which cannot be exported; "
                "take debug prints and callbacks out of the function"
            )


def _captured(op: Any, numbers: dict[Any, int]) -> list[Any]:
    """Values of the function that the regions of `op` read without receiving them as operands."""
    found: dict[Any, None] = {}

    def visit(inner: Any) -> Any:
        if inner != op:
            for value in inner.operands:
                if value in numbers:
                    found[value] = None
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return list(found)


def _combiner(op: Any) -> str | None:
    """How partial results along a reduction factor combine; None when they cannot."""
    if op.name in ("stablehlo.dot_general", "stablehlo.gather"):
        return "add"
    if op.name not in rules.REGION_KINDS or len(op.results) != 1:
        return None
    body = [inner.operation for inner in op.regions[0].blocks[0].operations]
    if len(body) != 2 or set(body[0].operands) != set(op.regions[0].blocks[0].arguments):
        return None
    combiner = rules.COMBINERS.get(body[0].name)
    if op.name == "stablehlo.scatter" and combiner != "add":
        return None
    return combiner


def _is_zero(attribute: Any) -> bool:
    value = getattr(attribute, "value", None)
    return isinstance(value, int | float) and value == 0


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
        block(rule.reduction_factors, f"partial results of {short} cannot be combined")
    block(rule.need_replication_factors, f"{short} needs this dimension whole")
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
