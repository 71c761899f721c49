"""Functions that say themselves how they are split: `jax.experimental.custom_partitioning`.

One with a sharding rule is an operation with that rule while partita traces, and what each device
runs is what its `partition` gives. One without a rule is planned as what it computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from partita.errors import UnsupportedError
from partita.program.op_traits import MANUAL
from partita.stablehlo import mlir
from partita.stablehlo.custom_calls import create
from partita.stablehlo.functions import lowered
from partita.stablehlo.internals import (
    PARTITIONED,
    LoweringRule,
    as_function,
    inline,
    sharding_rule,
)
from partita.stablehlo.mlir import ir
from partita.stablehlo.rules.calls import PARTITIONED_CALL

Specs = Sequence[PartitionSpec]


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """A function with a rule, as the user has defined it."""

    whole: Callable[..., Any]
    """The unpartitioned function, of flat arrays."""
    partition: Callable[..., Any]
    """The user's: of static arguments, a mesh, and sharded types of arguments and results."""
    arguments: Any
    """Tree structure of the arguments."""
    results: Any
    """Tree structure of the results."""
    static: tuple[Any, ...]

    def on_device(
        self, mesh: AbstractMesh, operands: Sequence[Any], results: Sequence[Any], specs: Specs
    ) -> Callable[..., Any]:
        """Returns a function of flat arrays for a mesh: a `shard_map` of what each device runs.

        Args:
          mesh: the mesh.
          operands: types of the whole operands.
          results: types of the whole results.
          specs: how operands and then results are sharded.

        Raises:
          UnsupportedError: the function's `partition` asks for other shardings.
        """
        shardings = [NamedSharding(mesh, spec) for spec in specs]
        typed = [
            jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=sharding)
            for t, sharding in zip((*operands, *results), shardings, strict=True)
        ]
        count = len(operands)
        nested = jax.tree.unflatten(self.arguments, typed[:count])
        made = jax.tree.unflatten(self.results, typed[count:])
        _, run, of_results, of_arguments = self.partition(*self.static, mesh, nested, made)
        wanted = [*jax.tree.leaves(of_arguments), *jax.tree.leaves(of_results)]
        for own, their, type_ in zip(shardings, wanted, typed, strict=True):
            if not own.is_equivalent_to(their, len(type_.shape)):
                raise UnsupportedError(
                    f"a custom_partitioning function splits {type_.dtype}{list(type_.shape)} as "
                    f"{their.spec}, but its sharding_rule lets it be split as {own.spec}; have its "
                    "partition take the shardings that it is given, or narrow the rule"
                )

        def flat(*args: Any) -> tuple[Any, ...]:
            return tuple(jax.tree.leaves(run(*jax.tree.unflatten(self.arguments, args))))

        return jax.shard_map(
            flat,
            mesh=mesh,
            in_specs=tuple(specs[:count]),
            out_specs=tuple(specs[count:]),
            check_vma=False,
        )


def lowering(found: dict[str, Partitioned]) -> LoweringRule:
    """Returns the lowering rule of such functions while partita traces.

    Args:
      found: is filled with the functions, by the name of their call.
    """

    def lower(context: Any, *values: Any, call: Any, **said: Any) -> Any:
        if said["sharding_rule"] is None:
            return inline(context, call, values)
        name, static = str(len(found)), said["static_args"]
        found[name] = Partitioned(
            as_function(call), said["partition"], said["in_tree"], said["out_tree"], static
        )
        names = {kind: name for name, kind in mlir.element_types().items()}
        types = [
            ir.RankedTensorType.get(aval.shape, ir.Type.parse(names[aval.dtype]))
            for aval in call.out_avals
        ]
        rule = sharding_rule(said["sharding_rule"], static, [v.type for v in values], types)
        attributes = {"backend_config": ir.StringAttr.get(name), "sdy.sharding_rule": rule}
        return create(PARTITIONED_CALL, values, types, **attributes)

    return PARTITIONED, lower


def body_of(function: Callable[..., Any], types: Sequence[Any], platform: str) -> tuple[Any, Any]:
    """A module for a `shard_map`, and the manual computation in it, which lives as long."""
    module = lowered(function, types, platform)
    main = mlir.main_function(module)
    operations = [view.operation for view in main.entry_block.operations]
    return module, next(op for op in operations if op.name == MANUAL)
