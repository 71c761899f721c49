"""Constant-like values: constants, iotas, and what is computed from them alone.

They are made in the layout that all of their uses need, or replicated if these differ, and so never
cost a collective.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.analysis import ClassGraph
from partita.spmd.memoised import MemoisedByGroup, connected
from partita.tiling import Forms, OpForm, layout_from_result

_Uses = tuple[tuple[int, int], ...]
"""The uses of a result, as (operation class, operand number)."""


class Generated:
    """The operation classes of one graph that depend on no argument and only compute elementwise.

    Those that read each other are decided together.
    """

    def __init__(self, graph: ClassGraph, forms: Forms) -> None:
        self._graph = graph
        self._forms = forms
        self._uses = _generated(graph)
        self.ops = frozenset(self._uses)
        order = {op: place for place, op in enumerate(self._uses)}
        itself = [(op, op) for op in self._uses]
        reads = [(op, use) for op, uses in self._uses.items() for use, _ in uses if use in order]
        self._groups = [sorted(ops, key=order.__getitem__) for ops in connected(itself + reads)]
        """Operation classes of each group, last one first."""
        outside = [
            list(dict.fromkeys(use for op in ops for use, _ in self._uses[op] if use not in order))
            for ops in self._groups
        ]
        self.decisions = MemoisedByGroup(outside, self._decide, len(graph.ops), seed=1)
        """Memoised forms of the classes of a group."""
        unread = [number for number, ops in enumerate(outside) if not ops]
        self.unread = [pair for number in unread for pair in self._decide(number, ())]
        """Forms of the groups that no other operation reads."""
        self.values = frozenset(
            v for op in order for classes in graph.ops[op].results for v in classes
        )

    def _decide(self, number: int, forms: Sequence[OpForm]) -> tuple[tuple[int, OpForm], ...]:
        found: dict[int, OpForm] = {}
        for index in self._groups[number]:
            layouts = {
                (found.get(op) or forms[op]).needs[number] for op, number in self._uses[index]
            }
            wanted = layouts.pop() if len(layouts) == 1 else None
            op = self._graph.ops[index]
            found[index] = self._forms.of(op, layout_from_result(op, wanted))
        return tuple(found.items())


def _generated(graph: ClassGraph) -> dict[int, _Uses]:
    """Returns the operation classes, last one first, each with the uses of its result."""
    found: dict[int, _Uses] = {}
    for op in sorted(graph.ops, key=lambda each: each.op.index):
        made = [graph.values[v] for classes in op.results for v in classes]
        if op.op.traits.free and len(op.results) == 1 and not any(v.is_result for v in made):
            sources = [graph.values[v].producer for classes in op.operands for v in classes]
            if all(source is not None and source[0] in found for source in sources):
                found[op.index] = tuple({(u.op, u.number): None for v in made for u in v.uses})
    # Scalars have only one layout.
    shaped = [i for i in found if any(graph.values[v].colors for v in graph.ops[i].results[0])]
    order = sorted(shaped, key=lambda index: -graph.ops[index].op.index)
    return {index: found[index] for index in order}
