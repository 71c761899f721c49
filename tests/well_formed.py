"""Invariants of programs, as the importer gives them and passes keep them."""

from __future__ import annotations

from collections.abc import Iterator

from partita.program import Program
from partita.program.blocks import Barrier, Block, Branch, Loop
from partita.program.op_traits import BARRIER, CARRY, CHOOSE, JOIN


def check(program: Program) -> None:
    """Fails unless a program is numbered, nested and in SSA form as it has to be."""
    values, operations = program.values, program.operations
    assert [v.index for v in values] == list(range(len(values)))
    assert [op.index for op in operations] == list(range(len(operations)))
    assert list(program.arguments) == list(range(len(program.arguments)))
    for position, v in enumerate(program.arguments):
        assert (values[v].producer, values[v].position) == (None, position)
    made = [v for op in operations for v in op.results]
    assert [*program.arguments, *made] == list(range(len(values)))  # numbered as they are made
    for op in operations:
        for position, v in enumerate(op.results):
            assert (values[v].producer, values[v].position) == (op.index, position)
        assert len(op.operands) == len(op.rule.operands), op
        assert len(op.results) == len(op.rule.results), op
        assert (op.template >= 0) or op.kind == BARRIER, op
    regions = iter(range(1, len(program.regions)))
    seen = set(program.arguments)
    placed = list(_block(program, program.body, 0, 1, seen, regions))
    assert placed == sorted(placed) == list(range(len(operations)))
    assert next(regions, None) is None
    assert seen.issuperset(program.results)
    held = (v for constant in program.constants for v in constant.values)
    assert all(v < len(values) for v in (*held, *program.keys, *program.hosted))


def _block(
    program: Program, block: Block, region: int, times: int, seen: set[int], regions: Iterator[int]
) -> Iterator[int]:
    """Yields the operations of a block; every operand is made before, where it can be seen."""
    operations = program.operations

    def read(op: int, *values: int) -> int:
        assert seen.issuperset(values), operations[op]
        assert (operations[op].region, operations[op].times) == (region, times), operations[op]
        return op

    def inner(block: Block, trips: int, own: set[int], repeats: bool) -> tuple[int, set[int], list]:
        number, around = next(regions), seen | own
        assert (program.regions[number].parent, program.regions[number].repeats) == (
            region,
            repeats,
        )
        return number, around, list(_block(program, block, number, times * trips, around, regions))

    for item in block.items:
        if isinstance(item, int):
            yield read(item, *operations[item].operands)
            seen.update(operations[item].results)
        elif isinstance(item, Barrier):
            for part in item.parts:
                assert operations[part].kind == BARRIER
                yield read(part, *operations[part].operands)
            seen.update(v for part in item.parts for v in operations[part].results)
        elif isinstance(item, Loop):
            carries = [carry for carry in item.carries if carry is not None]
            for carry in carries:
                assert operations[carry].kind == CARRY
                yield read(carry, operations[carry].operands[0])
            starts = {operations[carry].results[0] for carry in carries}
            number, around, inside = inner(item.condition, 1, starts, repeats=True)
            yield from inside
            choose = operations[item.choose]
            assert (choose.kind, choose.region, choose.times) == (CHOOSE, number, times)
            assert around.issuperset(choose.operands)
            yield item.choose
            starts = {operations[carry].results[1] for carry in carries}
            _, around, inside = inner(item.body, item.trips or 1, starts, repeats=True)
            yield from inside
            assert around.issuperset(operations[carry].operands[1] for carry in carries)
            seen.update(operations[carry].results[2] for carry in carries)
        elif isinstance(item, Branch):
            assert operations[item.choose].kind == CHOOSE
            yield read(item.choose, *operations[item.choose].operands)
            for number, branch in enumerate(item.branches):
                _, around, inside = inner(branch, 1, set(), repeats=False)
                yield from inside
                assert around.issuperset(item.yields[number])
                given = tuple(operations[join].operands[number] for join in item.joins)
                assert given == item.yields[number]
            for join in item.joins:
                assert (operations[join].kind, operations[join].region) == (JOIN, region)
                yield join
            seen.update(v for join in item.joins for v in operations[join].results)
