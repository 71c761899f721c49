"""StableHLO text -> `Program`: rules from Shardy, names and source lines from locations."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from partita.program.blocks import Barrier, Block, Branch, Item, Loop, Region
from partita.program.ir import Given, Operation, Program, TensorType, Value, Work
from partita.program.memories import on_host
from partita.program.op_traits import (
    BARRIER,
    CARRY,
    CHOOSE,
    CONSTRAINT,
    JOIN,
    MANUAL,
    ROLL,
    Traits,
    traits,
)
from partita.program.rule import Rule
from partita.stablehlo import (
    constraints,
    manual_regions,
    mlir,
    normal_form,
    offload,
    rolls,
    shard_map,
    signature,
    tags,
)
from partita.stablehlo.constants import content, describe
from partita.stablehlo.custom_calls import target_of
from partita.stablehlo.given_shardings import given_shardings
from partita.stablehlo.kernels import kernel_of
from partita.stablehlo.locations import Sources
from partita.stablehlo.mlir import RETURNS, hlo
from partita.stablehlo.operations.rules import Rules, combiner_of
from partita.stablehlo.passes.dimensions import takes_apart
from partita.stablehlo.refusals import check_supported, tensor_type
from partita.stablehlo.rules.draft import opaque
from partita.stablehlo.templates import captured, templates


def import_stablehlo(text: str, name: str | None = None, hoisted: int = 0) -> Program:
    """Reads a StableHLO module.

    Args:
      text: the module, with debug locations if sources are to be reported.
      name: what to call the program; the module's own name by default.
      hoisted: how many of the last arguments are closed-over constants.

    Raises:
      UnsupportedError: unreadable, dynamic shapes, host callbacks, or sharding given inside.
    """
    with mlir.context():
        prepared = normal_form.prepare(text)
        module = normal_form.with_rules(prepared)
        importer = _Importer(module, normal_form.without_shardings(prepared), name)
        program = importer.run()
        constants = describe(program, importer.constants, hoisted)
        return dataclasses.replace(program, constants=constants, hosted=on_host(program))


class _Importer:
    """State of one import: numbering of values, and caches of MLIR's uniqued objects."""

    def __init__(self, module: Any, text: str, name: str | None) -> None:
        self.module = module
        self.main = mlir.main_function(module)
        self.text = text
        attributes = module.operation.attributes
        own = attributes["sym_name"].value if "sym_name" in attributes else "program"
        self.name = name or own
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.numbers: dict[Any, int] = {}
        self.templates: dict[Any, int] = {}
        self.types: dict[Any, TensorType] = {}
        self.rules = Rules()
        self.sources = Sources()
        self.zeros: set[int] = set()
        self.integers: dict[int, int] = {}
        """Values that are known integer constants."""
        self.constants: list[tuple[Any, int]] = []
        """Contents of constants whose elements differ, each with the number of the value."""
        self.directions: dict[int, str] = {}
        """Directions of comparisons, by the value that holds the outcome."""
        self.manual: Given | None = None
        """Inside of a manual computation, how that is sharded."""
        self.collectives: list[tuple[Any, int]] = []
        """Collectives inside of a manual computation, as MLIR operations and by number."""
        self.manually: dict[int, manual_regions.Manual] = {}
        """Values inside of computations that are manual over some axes, with these axes."""
        self.region = 0
        self.regions = [Region(0, False)]

    def run(self) -> Program:
        block = self.main.entry_block
        body, results = self._function(block)
        count = len(block.arguments)
        arguments = tuple(range(count))
        argument_names = signature.argument_names(self.main, block.arguments)
        result_names = signature.result_names(self.main, len(results))
        named = [*zip(argument_names, arguments, strict=True)]
        named_results = [*zip(result_names, results, strict=True)]
        return Program(
            name=self.name,
            values=tuple(self.values),
            operations=tuple(self.operations),
            arguments=arguments,
            results=results,
            argument_names=tuple(argument_names),
            result_names=tuple(result_names),
            aliases=signature.aliases(
                self.main,
                [self.values[v].type for v in arguments],
                [self.values[v].type for v in results],
            ),
            body=body,
            regions=tuple(self.regions),
            module=self.text,
            given=given_shardings(self.module, self.main, named, named_results),
            argument_memory=offload.hosted(self.main, "arg_attrs", count),
            result_memory=offload.hosted(self.main, "res_attrs", len(results)),
        )

    def _function(self, block: Any) -> tuple[Block, tuple[int, ...]]:
        """The operations of a block with arguments, and the values that it ends with."""
        self.templates = {op: number for number, op in enumerate(templates(block))}
        for position, argument in enumerate(block.arguments):
            self._define(argument, None, position)
        return self._block(block)

    def _block(self, block: Any) -> tuple[Block, tuple[int, ...]]:
        """The operations of a block, and the values that it ends with."""
        items: list[Item] = []
        for view in block.operations:
            op = view.operation
            if op.name in RETURNS:
                return Block(tuple(items)), tuple(self.numbers[v] for v in op.operands)
            structured = self._STRUCTURED.get(op.name)
            if constraints.is_constraint(op):
                structured = _Importer._constraint
            elif manual_regions.crosses(op):
                structured = _Importer._crossing
            elif rolls.is_roll(op):
                structured = _Importer._roll
            items.append(structured(self, op) if structured else self._operation(op))
        raise AssertionError("a block without a return")

    def _define(self, value: Any, producer: int | None, position: int) -> int:
        index = len(self.values)
        self.numbers[value] = index
        self.values.append(Value(index, self._type(value.type), producer, position))
        return index

    def _type(self, type_: Any) -> TensorType:
        known = self.types.get(type_)
        if known is None:
            known = self.types[type_] = tensor_type(type_)
        return known

    def _operation(self, op: Any) -> int:
        source, scope = self.sources.of(op.location)
        known = traits(op.name)
        inside = self.manual is not None or bool(manual_regions.noted(op).axes)
        if not (inside and known.in_manual):
            check_supported(op, source)
        index = len(self.operations)
        operands = [self.numbers[v] for v in op.operands]
        if op.regions and not known.scalar_body:
            operands += [self.numbers[v] for v in captured(op)]
        results = tuple(self._define(r, index, i) for i, r in enumerate(op.results))
        combine = combiner_of(op)
        if op.name == "stablehlo.compare":
            self.directions[results[0]] = hlo.ComparisonDirectionAttr(
                op.attributes["comparison_direction"]
            ).value
        made = Operation(
            index=index,
            kind=op.name,
            operands=tuple(operands),
            results=results,
            rule=self.rules.of(
                op,
                [self.values[v].type for v in operands],
                [self.values[v].type for v in results],
                combine,
            ),
            combine=combine or "",
            zero_init=self._starts_from_zeros(known, operands),
            source=source,
            scope=scope,
            region=self.region,
            target=target_of(op),
            tags=tuple(tags.of(op)),
            kernel=kernel_of(op),
            memory=offload.memory_of(op),
            takes_apart=takes_apart(op),
            template=self.templates[op],
        )
        if known.in_manual and self.manual is None:
            types = ([self.values[v].type for v in side] for side in (operands, results))
            made = manual_regions.exchange(op, made, *types)
        self._add(op, made)
        self._note_constants(op, made)
        if known.collective:
            self.collectives.append((op, index))
        return index

    def _add(self, op: Any, made: Operation) -> None:
        """Adds an operation: with the axes over which it is manual, if it is."""
        manual = manual_regions.noted(op)
        for value in made.operands if self.manually else ():
            if value in self.manually:
                manual = manual.union(self.manually[value])
        if manual.axes:
            made = manual_regions.confined(made, manual)
            inside = manual_regions.outside(op, manual)
            self.manually |= dict.fromkeys(made.results if inside.axes else (), inside)
        self.operations.append(made)

    def _same(self, kind: str, op: Any, operands: Sequence[int], results: Sequence[Any]) -> int:
        """Adds an operation whose operands and results are one value."""
        made = self._sameness(kind, op, operands, results)
        self._add(op, made)
        return made.index

    def _sameness(
        self, kind: str, op: Any, operands: Sequence[int], results: Sequence[Any]
    ) -> Operation:
        index = len(self.operations)
        source, scope = self.sources.of(op.location)
        return Operation(
            index=index,
            kind=kind,
            operands=tuple(operands),
            results=tuple(self._define(r, index, i) for i, r in enumerate(results)),
            rule=Rule.same(self.values[operands[0]].type.shape, len(operands), len(results)),
            zero_init=kind == CARRY and operands[0] in self.zeros,
            source=source,
            scope=scope,
            region=self.region,
            template=self.templates[op],
        )

    def _crossing(self, op: Any) -> int:
        """Adds a value's entry to, or exit from, a computation that is manual over some axes."""
        source, scope = self.sources.of(op.location)
        index, operand = len(self.operations), self.numbers[op.operands[0]]
        result = self._define(op.results[0], index, 0)
        before, after = (self.values[v].type for v in (operand, result))
        rule, given = manual_regions.crossing(op, before, after, source)
        made = Operation(
            index,
            manual_regions.crosses(op),
            (operand,),
            (result,),
            rule,
            source=source,
            scope=scope,
            region=self.region,
            tags=tuple(tags.of(op)),
            given=given,
            template=self.templates[op],
        )
        self._add(op, made)
        return index

    def _constraint(self, op: Any) -> int:
        made = self._sameness(CONSTRAINT, op, [self.numbers[op.operands[0]]], op.results)
        said = constraints.said_by(op, f"the constraint at {made.source or 'an unknown line'}")
        rule, given = constraints.facts(said, made.rule)
        made = dataclasses.replace(made, rule=rule, given=given, tags=tuple(tags.of(op)))
        self._add(op, made)
        return made.index

    def _roll(self, op: Any) -> int:
        made = self._sameness(ROLL, op, [self.numbers[op.operands[0]]], op.results)
        made = dataclasses.replace(made, rule=rolls.rule(op, made.rule), tags=tuple(tags.of(op)))
        self._add(op, made)
        return made.index

    def _manual(self, op: Any) -> int:
        """A manual computation: one operation. What is inside is read as a program of its own."""
        source, scope = self.sources.of(op.location)
        index = len(self.operations)
        shard_map.check_inside(op, source)
        operands = tuple(self.numbers[v] for v in op.operands)
        types = [self.values[v].type for v in operands]
        made = [self._type(r.type) for r in op.results]
        rule, given = shard_map.facts(op, types, made, source)
        inside = _Importer(self.module, self.text, self.name)
        inside.manual = given
        inside._function(op.regions[0].blocks[0])
        collectives = [
            collective
            for view, number in inside.collectives
            for collective in shard_map.collectives(
                view, given.mesh, inside.operations[number].times, inside.operations[number].source
            )
        ]
        work = Work(tuple(inside.values), tuple(inside.operations), tuple(collectives))
        results = tuple(self._define(r, index, i) for i, r in enumerate(op.results))
        self.operations.append(
            Operation(
                index,
                MANUAL,
                operands,
                results,
                rule,
                source=source,
                scope=scope,
                region=self.region,
                tags=tuple(tags.of(op)),
                given=given,
                work=work,
                template=self.templates[op],
            )
        )
        return index

    def _barrier(self, op: Any) -> Barrier:
        pairs = zip(op.operands, op.results, strict=True)
        return Barrier(tuple(self._same(BARRIER, op, [self.numbers[a]], [r]) for a, r in pairs))

    def _while(self, op: Any) -> Loop:
        condition, body = (region.blocks[0] for region in op.regions)
        returned = [o.operation for o in body.operations][-1].operands
        carries: list[int | None] = []
        for number, initial in enumerate(op.operands):
            start = self.numbers[initial]
            seen = [condition.arguments[number], body.arguments[number], op.results[number]]
            if returned[number] == body.arguments[number]:
                for value in seen:
                    self.numbers[value] = start
                carries.append(None)
            else:
                # What the body passes on is not known yet: the initial value stands in for it.
                carries.append(self._same(CARRY, op, [start, start], seen))
        source, _ = self.sources.of(op.location)
        with self._inside(repeats=True):
            condition_block, (predicate,) = self._block(condition)
            choose = self._choose(op, predicate)
        with self._inside(repeats=True):
            first = len(self.operations)
            body_block, handed_on = self._block(body)
            last = len(self.operations)
        for carry, value in zip(carries, handed_on, strict=True):
            if carry is not None:
                known = self.operations[carry]
                operands = (known.operands[0], value)
                self.operations[carry] = dataclasses.replace(known, operands=operands)
        trips = self._trips(predicate)
        for index in range(first, last):
            known = self.operations[index]
            self.operations[index] = dataclasses.replace(known, times=known.times * (trips or 1))
        return Loop(tuple(carries), condition_block, choose, body_block, trips, source)

    def _trips(self, predicate: int) -> int | None:
        """Returns the trip count of a loop that counts up to a constant; None for any other."""
        compare = self._maker(predicate)
        if compare is None or compare.kind != "stablehlo.compare":
            return None
        counter, limit = compare.operands
        carry = self._maker(counter)
        if carry is None or carry.kind != CARRY or self.directions[predicate] != "LT":
            return None
        step = self._maker(carry.operands[1])
        if step is None or step.traits.combiner != "add":
            return None
        if carry.results[1] not in step.operands:
            return None
        start = self.integers.get(carry.operands[0])
        stop = self.integers.get(limit)
        by = next((self.integers[v] for v in step.operands if v in self.integers), None)
        if start is None or stop is None or by is None or by <= 0:
            return None
        return max(0, -(-(stop - start) // by))

    def _maker(self, value: int) -> Operation | None:
        producer = self.values[value].producer
        return None if producer is None else self.operations[producer]

    def _case(self, op: Any) -> Branch:
        choose = self._choose(op, self.numbers[op.operands[0]])
        blocks, yields = [], []
        for region in op.regions:
            with self._inside(repeats=False):
                block, given = self._block(region.blocks[0])
            blocks.append(block)
            yields.append(given)
        joins = [
            self._same(JOIN, op, [given[number] for given in yields], [result])
            for number, result in enumerate(op.results)
        ]
        return Branch(choose, tuple(blocks), tuple(yields), tuple(joins))

    def _choose(self, op: Any, value: int) -> int:
        """Adds the operation that reads what a loop or branch depends on."""
        source, scope = self.sources.of(op.location)
        index = len(self.operations)
        rule = dataclasses.replace(opaque([self.values[value].type], []), known=True)
        made = Operation(
            index,
            CHOOSE,
            (value,),
            (),
            rule,
            source=source,
            scope=scope,
            region=self.region,
            template=self.templates[op],
        )
        self._add(op, made)
        return index

    @contextlib.contextmanager
    def _inside(self, repeats: bool) -> Iterator[None]:
        outer = self.region
        self.region = len(self.regions)
        self.regions.append(Region(outer, repeats))
        yield
        self.region = outer

    _STRUCTURED: ClassVar[dict[str, Callable[[_Importer, Any], Any]]] = {
        "stablehlo.while": _while,
        "stablehlo.case": _case,
        "stablehlo.if": _case,
        "stablehlo.optimization_barrier": _barrier,
        MANUAL: _manual,
    }

    def _starts_from_zeros(self, known: Traits, operands: list[int]) -> bool:
        if known.scatters:
            return operands[0] in self.zeros
        if known.reduces:
            return all(v in self.zeros for v in operands[len(operands) // 2 :])
        return False

    def _note_constants(self, op: Any, made: Operation) -> None:
        if made.traits.constant:
            number = getattr(mlir.splat(op), "value", None)
            if isinstance(number, int | float) and number == 0:
                self.zeros.update(made.results)
            if isinstance(number, int) and not made.rule.factors:
                self.integers[made.results[0]] = number
            if (held := content(op)) is not None:
                self.constants.append((held, made.results[0]))
        elif made.traits.keeps_zeros and made.operands[0] in self.zeros:
            self.zeros.update(made.results)
