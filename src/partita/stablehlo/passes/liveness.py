"""Drops what nothing uses: operations, and results of loops and branches with what makes them.

JAX leaves results of loops that nothing reads: the accumulated value next to the accumulated
gradient, say. Kept, they would be reduced over the mesh and paid for, where XLA drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.program.op_traits import traits
from partita.stablehlo.mlir import find, hlo, ir, main_function, returned

_USED = "partita.used"
"""Attribute of a loop or branch that has results which nothing uses: the others."""


def drop_dead(module: Any) -> None:
    """Erases from the function `main` what neither its results nor an effect need."""
    main = main_function(module)
    structured = find(main.operation, _structures)
    if structured:
        _note_used(main, structured)
    _clean(main.entry_block)


def _note_used(main: Any, structured: Sequence[Any]) -> None:
    used = _Used(main)
    for op in structured:
        kept = [number for number, result in enumerate(op.results) if result in used.values]
        if 0 < len(kept) < len(op.results):
            op.attributes[_USED] = ir.DenseI64ArrayAttr.get(kept)


class _Used:
    """The values that results of a function or effects depend on."""

    def __init__(self, main: Any) -> None:
        self.values: set[Any] = set()
        self._waiting: list[Any] = []
        self._need(returned(main.entry_block))
        for op in find(main.operation, _has_effect):
            self._need(op.operands)
            self._need_around(op)
        while self._waiting:
            self._follow(self._waiting.pop())

    def _need(self, values: Sequence[Any]) -> None:
        for value in values:
            if value not in self.values:
                self.values.add(value)
                self._waiting.append(value)

    def _need_around(self, op: Any) -> None:
        """Marks the conditions of loops and branches around an operation with an effect as live."""
        while (op := op.parent) is not None and op.name != "func.func":
            if traits(op.name).loops:
                self._need(returned(op.regions[0].blocks[0]))
            else:
                self._need(op.operands)

    def _follow(self, value: Any) -> None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            around = owner.owner.operation
            if traits(around.name).loops:
                self._need([around.results[value.arg_number]])
            return
        number = value.result_number
        if traits(owner.name).loops:
            condition, body = (region.blocks[0] for region in owner.regions)
            self._need([owner.operands[number], returned(body)[number], *returned(condition)])
        elif traits(owner.name).branches:
            self._need([owner.operands[0]])
            self._need([returned(region.blocks[0])[number] for region in owner.regions])
        else:
            for inner in find(owner, lambda op: True) if owner.regions else (owner,):
                self._need(inner.operands)


def _clean(block: Any) -> None:
    """Erases what is dead in a block, last operations first, for they use the others."""
    for view in reversed(list(block.operations)):
        op = view.operation
        if _structures(op) and _USED in op.attributes:
            _rebuild(op, list(op.attributes[_USED]))
            continue
        if traits(op.name).treatment == "structure":
            for region in op.regions:
                _clean(region.blocks[0])
        used = any(True for result in op.results for _ in result.uses)
        # Branches and loops may have no results at all; what else has none ends a block.
        droppable = bool(op.results) or _structures(op)
        if droppable and not used and not find(op, _has_effect):
            op.erase()


def _rebuild(op: Any, kept: Sequence[int]) -> None:
    """Replaces a loop or branch by one that has only some of its results."""
    blocks = [region.blocks[0] for region in op.regions]
    loop = traits(op.name).loops
    for block in blocks[1:] if loop else blocks:
        end = list(block.operations)[-1].operation
        with ir.InsertionPoint(end), end.location:
            hlo.return_([end.operands[number] for number in kept])
        end.erase()
    for block in blocks:
        _clean(block)
    if loop:
        for block in blocks:
            for number in reversed(range(len(op.results))):
                if number not in kept:
                    block.erase_argument(number)
    made = ir.Operation.create(
        op.name,
        results=[op.results[number].type for number in kept],
        operands=[op.operands[number] for number in kept] if loop else list(op.operands),
        attributes={name: value for name, value in op.attributes.items() if name != _USED},
        regions=len(blocks),
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for region, block in zip(made.regions, blocks, strict=True):
        block.append_to(region)
    for number, result in zip(kept, made.results, strict=True):
        op.results[number].replace_all_uses_with(result)
    op.erase()


def _structures(op: Any) -> bool:
    """Returns whether an operation is a loop or a choice between branches."""
    return traits(op.name).loops or traits(op.name).branches


def _has_effect(op: Any) -> bool:
    if traits(op.name).calls:
        effect = op.attributes.get("has_side_effect", None)
        return effect is not None and bool(effect.value)
    return traits(op.name).has_effect
