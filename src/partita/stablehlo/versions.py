"""JAX's versions: which partita is tested with, and all that differs between them.

Elsewhere programs look the same whatever the version. A new release is taken in here: run
`make test-newest`, write what differs into this file, and raise `NEWEST`.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, TypeVar

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.dialects import stablehlo as hlo

from partita.errors import PartitaWarning
from partita.program.rule import Factor, Rule

OLDEST = (0, 10, 2)
"""The oldest release of JAX that is tested."""

NEWEST = (0, 12)
"""The newest minor release that is tested."""

JAX: tuple[int, ...] = jax.__version_info__
"""The one at hand."""

_T = TypeVar("_T")


def warn_if_untested(version: tuple[int, ...] = JAX) -> None:
    """Warns of a version of JAX that partita is not tested with, and says what to expect."""
    if version >= OLDEST and version[:2] <= NEWEST:
        return
    oldest, newest, this = (".".join(map(str, v)) for v in (OLDEST, NEWEST, version))
    warnings.warn(
        f"partita is tested with JAX {oldest} to {newest}, and this is JAX {this}: it may fail in "
        "JAX's internals, or refuse programs; plans that it makes may have other shardings or "
        "predict other collectives than are compiled, which Plan.verify() shows",
        PartitaWarning,
        stacklevel=3,  # who imports partita
    )


LATER_OPERATIONS = frozenset({"stablehlo.collective_reduce"} if JAX < (0, 11) else ())
"""Operations that partita knows and the dialects of this version do not have yet."""

_FORMER_OPTIONS = frozenset({"xla_cpu_use_fusion_emitters"} if JAX >= (0, 11) else ())
"""Options of XLA that this version does not have any more."""


def compiler_options(options: dict[str, _T]) -> dict[str, _T]:
    """Returns the options of XLA, of those given, that this version has."""
    return {name: value for name, value in options.items() if name not in _FORMER_OPTIONS}


def axes_of_groups(groups: Any, meshes: dict[str, Any]) -> tuple[list[tuple[str, int]], list[str]]:
    """Groups of devices as axes of a mesh, which is how JAX 0.11 and later say them.

    Args:
      groups: the attribute `replica_groups`.
      meshes: those of the module, by symbol.

    Returns:
      The mesh, and the names of the axes along which devices are together, major first; both are
      empty where the groups list devices, as they did before, or take parts of axes together.
    """
    kind = getattr(hlo, "ReplicaGroupMeshAxesAttr", None)
    if kind is None or not kind.isinstance(groups):
        return [], []
    said: Any = kind(groups)
    mesh: Any
    if isinstance(said.mesh, ir.FlatSymbolRefAttr):
        mesh = sdy.MeshAttr(meshes[said.mesh.value])
        sizes = [(each.name, each.size) for each in map(sdy.MeshAxisAttr, mesh.axes)]
        reordered = bool(list(mesh.device_ids))
    else:
        mesh = hlo.MeshAttr(said.mesh)
        sizes = [(each.name, each.size) for each in map(hlo.MeshAxisAttr, mesh.axes)]
        reordered = mesh.device_ids is not None
    axes = list(map(hlo.AxisRefAttr, said.axes))
    if reordered or any(axis.sub_axis_info is not None for axis in axes):
        return [], []
    return sizes, [axis.name for axis in axes]


def reshape_rule(attribute: Any, rule: Rule, result: tuple[int, ...]) -> Rule:
    """The rule of a reshape, each side with factors of its own where it is cut otherwise.

    Since JAX 0.12 Shardy gives both sides one factor there, as a permutation, whose size fits the
    operand alone. Dimensions that have nothing in common would be taken for one.

    Args:
      attribute: Shardy's rule.
      rule: the same, as it was read.
      result: the shape of the result.
    """
    for factor in sorted(sdy.OpShardingRuleAttr(attribute).permutation_factors, reverse=True):
        own = factor + 1  # the number of the result's own factor; those from there on move up
        operand, made = (
            tuple(tuple(f + (f > factor) for f in dim) for dim in dims)
            for dims in (rule.operands[0], rule.results[0])
        )
        made = tuple(tuple(own if f == factor else f for f in dim) for dim in made)
        factors = [*rule.factors[:own], Factor(1, "parallel"), *rule.factors[own:]]
        for size, dim in zip(result, made, strict=True):
            if own in dim:
                others = math.prod(factors[f].size for f in dim)
                factors[own] = Factor(size // others, "parallel")
        rule = dataclasses.replace(
            rule, factors=tuple(factors), operands=(operand,), results=(made,)
        )
    # Since then it also blocks dimensions of one index, which nothing can shard.
    free = [Factor(1, "parallel") if f.size == 1 else f for f in rule.factors]
    return dataclasses.replace(rule, factors=tuple(free))
