"""`LogicalAxes`: axis names that a model's arrays carry, as Flax writes them.

Flax puts an array with names for its dimensions into a box, a pytree node around it. Boxes are
known here by what they have, so that partita needs no Flax:

- `flax.linen`'s `Partitioned` and `LogicallyPartitioned` have `names` (and `rules`) and `unbox`;
- `flax.nnx`'s variables have `get_metadata()`, with `out_sharding` (and `sharding_rules`) in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import jax

from partita.decisions import Request, ShardValues, Stage
from partita.errors import TacticError
from partita.mesh import Mesh
from partita.options import wrong
from partita.tactics.combine import while_pinned
from partita.tactics.placement import Placement, sharing_a_buffer
from partita.tactics.protocol import Outcome, Refusal

Axes = str | Sequence[str] | None
"""Mesh axes of a logical name: one, several (major first), or none."""

Pairs = Sequence[tuple[str, Axes]]
"""Rules as pairs of a logical name and its mesh axes, in order of precedence."""


@dataclasses.dataclass(frozen=True)
class LogicalAxes:
    """Shards arguments and results as the axis names say that they carry, and all that follows.

    Within this tactic, the other dimensions of an array that carries names stay unsharded; later
    tactics may shard them.

    Args:
      rules: the mesh axes of each logical name, as pairs or a dict: an axis, several, or `None`
        to leave the dimension unsharded. A name may have several pairs: the first counts whose axes
        the array does not use yet. Rules that an array carries itself come after these. A name
        without any rule is that of a mesh axis.

    Example:
      >>> LogicalAxes({"embed": None, "mlp": "model"}).name
      'LogicalAxes(embed -> none, mlp -> model)'
    """

    rules: Mapping[str, Axes] | Pairs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rules, str) or not isinstance(self.rules, Iterable | None):
            expected = 'a dict of names and mesh axes, or pairs, such as [("mlp", "model")]'
            raise wrong("LogicalAxes: rules", self.rules, expected, TacticError)
        for pair in _pairs(self.rules):
            if not _is_rule(pair):
                raise TacticError(
                    f"cannot read the rule {pair!r} of LogicalAxes; expected a logical name and "
                    "one mesh axis, several or None, such as ('mlp', 'model')"
                )

    @property
    def name(self) -> str:
        """Name in reports."""
        shown = (f"{name} -> {' x '.join(_tuple(axes)) or 'none'}" for name, axes in self._rules)
        return f"LogicalAxes({', '.join(shown)})"

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh axes in the rules."""
        return tuple(dict.fromkeys(axis for _, axes in self._rules for axis in _tuple(axes)))

    @property
    def _rules(self) -> Pairs:
        return _pairs(self.rules)

    def apply(self, stage: Stage) -> Outcome:
        """Reads the names, then seeds and propagates one mesh axis after the other."""
        context = stage.context
        program, mesh = context.analysis.program, context.mesh
        for axis in self.axes:
            mesh.axis(axis)
        named = _named_arrays(stage)
        if not named:
            raise TacticError(
                f"{self.name}: no argument or result of {program.name} carries axis names; box "
                "its arrays with flax.linen.with_logical_partitioning or "
                "flax.nnx.with_partitioning, or write a ManualPartition"
            )
        given = [
            _resolve(array, (*self._rules, *array.rules), mesh) for array in named if array.fits
        ]
        placements = [
            Placement(_along(axis, given, mesh.axis(axis))) for axis in _outer_first(given, mesh)
        ]
        outcome = while_pinned(stage, _others(given, stage), placements)
        misfits = (array.misfit for array in named if not array.fits)
        # No suggestions: they would stand in for one axis of the rules, not for all.
        refused = (dataclasses.replace(refusal, suggestions=()) for refusal in outcome.refused)
        return dataclasses.replace(
            outcome,
            decisions=_decisions(given),
            refused=(*misfits, *_unknown(given, mesh), *refused),
        )


def _along(name: str, given: Iterable[_Given], axis: int) -> ShardValues:
    """The requests along an axis, by its name and its position in the mesh."""
    requests = (
        Request(each.array.name, each.array.value, (dim,), logical)
        for each in given
        for (dim, logical), axes in sorted(each.axes.items())
        if name in axes
    )
    return ShardValues(tuple(requests), axis)


@dataclasses.dataclass(frozen=True)
class _Named:
    """An argument or result in a box: what its dimensions are called."""

    name: str
    value: int
    rank: int
    dims: tuple[tuple[str, ...], ...]
    rules: Pairs

    @property
    def fits(self) -> bool:
        """True if there are no more names than dimensions."""
        return len(self.dims) <= self.rank

    @property
    def misfit(self) -> Refusal:
        """What to say when there are."""
        names = ", ".join("+".join(names) or "-" for names in self.dims)
        reason = f"it has {len(self.dims)} names for {self.rank} dimensions"
        return Refusal(f"{self.name} ({names})", reason, "another tactic can shard it")


@dataclasses.dataclass(frozen=True)
class _Given:
    """Mesh axes that the names of an array lead to."""

    array: _Named
    axes: Mapping[tuple[int, str], tuple[str, ...]]
    """Mesh axes by (dimension, name)."""
    unknown: tuple[str, ...]
    """Names that are those of no rule and no axis."""
    taken: tuple[tuple[str, str], ...]
    """Names left without axes, each with one of its axes, which an earlier rule gave to another."""

    @property
    def dims(self) -> list[tuple[str, ...]]:
        """The axes of every dimension, major first."""
        return [
            tuple(axis for name in names for axis in self.axes.get((dim, name), ()))
            for dim, names in enumerate(self.array.dims)
        ]


def _named_arrays(stage: Stage) -> list[_Named]:
    """The arguments and results in boxes with axis names, in order."""
    program = stage.context.analysis.program
    sides = (
        (stage.context.arguments, program.argument_names, program.arguments),
        (stage.context.results, program.result_names, program.results),
    )
    found = []
    for tree, names, values in sides:
        number = 0
        for node in jax.tree.leaves(tree, is_leaf=lambda node: _boxed(node) is not None):
            box = _boxed(node)
            for _ in jax.tree.leaves(node):
                if box is not None:
                    rank = len(program.values[values[number]].type.shape)
                    found.append(_Named(names[number], values[number], rank, *box))
                number += 1
    return found


def _boxed(node: Any) -> tuple[tuple[tuple[str, ...], ...], Pairs] | None:
    """The names of every dimension and the rules of their own that a box carries, or None."""
    if hasattr(node, "unbox") and hasattr(node, "names"):
        names, rules = node.names, getattr(node, "rules", None)
    elif hasattr(node, "get_metadata"):
        metadata = node.get_metadata()
        keys = ("out_sharding", "sharding_names", "sharding")  # the latter two in older versions
        names = next((metadata[key] for key in keys if metadata.get(key)), None)
        rules = metadata.get("sharding_rules")
    else:
        return None
    names = getattr(names, "spec", names)  # of a NamedSharding
    return None if names is None else (tuple(map(_tuple, names)), _pairs(rules))


def _resolve(array: _Named, rules: Pairs, mesh: Mesh) -> _Given:
    """Looks the names of an array up, rule by rule; each axis is given once."""
    ruled = {name for name, _ in rules}
    own_names = [(axis, axis) for axis in mesh.names if axis not in ruled]
    given: dict[tuple[int, str], tuple[str, ...]] = {}
    used: set[str] = set()
    for name, entry in (*rules, *own_names):
        axes = _tuple(entry)
        for dim, names in enumerate(array.dims):
            if name in names and (dim, name) not in given and used.isdisjoint(axes):
                given[dim, name] = axes
                used.update(axes)
    known = ruled.union(mesh.names)
    unknown = (name for names in array.dims for name in names if name not in known)
    taken = {
        (dim, name): axis
        for name, entry in (*rules, *own_names)
        for dim, names in enumerate(array.dims)
        for axis in _tuple(entry)
        if name in names and (dim, name) not in given and axis in used
    }
    return _Given(
        array, given, tuple(unknown), tuple((name, axis) for (_, name), axis in taken.items())
    )


def _outer_first(given: Iterable[_Given], mesh: Mesh) -> list[str]:
    """The axes in use, in an order that keeps every dimension's own, major first."""
    before: dict[str, set[str]] = {}
    for axes in (axes for each in given for axes in each.dims):
        for number, axis in enumerate(axes):
            before.setdefault(axis, set()).update(axes[:number])
    ordered = {axis: sorted(before[axis], key=mesh.axis) for axis in mesh.names if axis in before}
    try:
        return list(TopologicalSorter(ordered).static_order())
    except CycleError as error:
        raise TacticError(
            f"the rules shard one dimension along {' before '.join(error.args[1][:-1])} and "
            "another the other way round; write these axes in one order"
        ) from error


def _others(given: Iterable[_Given], stage: Stage) -> set[tuple[int, int]]:
    """Returns the axes that arrays with names, and values that share their buffers, do not name."""
    mesh, program = stage.context.mesh, stage.context.analysis.program
    found = set()
    for each in given:
        named = {mesh.axis(axis) for axes in each.dims for axis in axes}
        for value in sharing_a_buffer(program, each.array.value):
            found |= {(value, axis) for axis in range(len(mesh.names)) if axis not in named}
    return found


def _unknown(given: Iterable[_Given], mesh: Mesh) -> list[Refusal]:
    """Names that lead nowhere, each once."""
    unknown: dict[str, list[str]] = {}
    for each in given:
        for name in each.unknown:
            unknown.setdefault(name, []).append(each.array.name)
    return [
        Refusal(
            f"{name!r} of {_some(where)}",
            f"no rule is for it, and mesh {mesh} has no such axis",
            f"the rule ({name!r}, None) would leave it unsharded",
        )
        for name, where in unknown.items()
    ]


def _decisions(given: Iterable[_Given]) -> tuple[str, ...]:
    """Describes the result for every name, each once."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for each in given:
        for (_, name), axes in each.axes.items():
            found.setdefault((name, axes), []).append(each.array.name)
    taken: dict[tuple[str, str, str], list[str]] = {}
    for each in given:
        for name, axis in each.taken:
            other = next(other for (_, other), axes in each.axes.items() if axis in axes)
            taken.setdefault((name, axis, other), []).append(each.array.name)
    return (
        *(
            f"{name} -> {' x '.join(axes) or 'none'} of {_some(arrays)}"
            for (name, axes), arrays in found.items()
        ),
        *(
            f"{name} -> none of {_some(arrays)}, where {axis} is that of {other} by an earlier rule"
            for (name, axis, other), arrays in taken.items()
        ),
    )


def _pairs(rules: Mapping[str, Axes] | Pairs | None) -> Pairs:
    if rules is None:
        return ()
    return tuple(rules.items()) if isinstance(rules, Mapping) else tuple(rules)


def _is_rule(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
        return False
    axes = pair[1]
    several = isinstance(axes, list | tuple) and all(isinstance(axis, str) for axis in axes)
    return axes is None or isinstance(axes, str) or several


def _tuple(entry: Any) -> tuple[str, ...]:
    """Names or axes of one dimension; what is no name (`PartitionSpec.UNCONSTRAINED`) is none."""
    entries = entry if isinstance(entry, list | tuple) else (entry,)
    return tuple(name for name in entries if isinstance(name, str))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return names[0] + more
