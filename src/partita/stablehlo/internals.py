"""JAX internals (`jax._src`) that partita uses, by purpose.

They may change with any release: where they have, `partita.stablehlo.versions` says how. Names that
`jax.extend` exports are imported from `jax._src`, too: importing `jax.extend` imports Pallas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import mesh as mesh_lib
from jax._src import source_info_util
from jax._src.ad_checkpoint import name_p
from jax._src.ad_util import Zero
from jax._src.core import Primitive, jaxpr_as_fun, shaped_abstractify, trace_state_clean
from jax._src.custom_partitioning import custom_partitioning_p
from jax._src.custom_partitioning_sharding_rule import (
    SdyShardingRule,
    sdy_sharding_rule_to_mlir,
    str_to_sdy_sharding_rule,
)
from jax._src.interpreters import ad, batching
from jax._src.interpreters import mlir as jax_mlir
from jax._src.mesh import thread_resources
from jax._src.util import weakref_cache_key_types
from jaxlib import _jax

from partita.text import relative

_T = TypeVar("_T")

LoweringRule = tuple[Primitive, Callable[..., Any]]
"""A primitive, and how it is lowered while partita traces."""

serialize_portable_artifact = _jax.mlir.serialize_portable_artifact
"""A module as a portable artifact of a version of StableHLO."""

PMAP_AXIS = "_internal_pmap_axis_name"
"""The axis of the mesh of a `jax.pmap` to which its user gives no name."""

runs_at_once = trace_state_clean
"""Returns whether calls run at once, rather than being traced, differentiated or batched."""

NAME: Primitive = name_p
"""The primitive of `jax.ad_checkpoint.checkpoint_name`."""

PARTITIONED: Primitive = custom_partitioning_p
"""The primitive of `jax.experimental.custom_partitioning`."""


def make_context() -> Any:
    """Makes an MLIR context with every dialect that JAX emits."""
    return jax_mlir.make_ir_context()


def identity(
    name: str, batched: Callable[[Any, int, tuple[str, ...] | None], dict[str, Any]]
) -> Primitive:
    """A primitive whose result is its operand, and whose gradient is constrained alike.

    Args:
      name: of the primitive.
      batched: its parameters once the operand has a batch dimension, from its parameters, the
        position of that dimension, and the `spmd_axis_name` of the `jax.vmap`.
    """
    primitive = Primitive(name)

    def batch(axis: Any, operands: Any, dims: Any, **parameters: Any) -> Any:
        (value,), (dim,) = operands, dims
        if dim is not None:
            parameters = batched(parameters, dim, axis.spmd_name)
        return primitive.bind(value, **parameters), dim

    primitive.def_impl(lambda value, **_: value)
    primitive.def_abstract_eval(lambda value, **_: value)
    ad.deflinear2(primitive, lambda cotangent, _, **said: [primitive.bind(cotangent, **said)])
    batching.fancy_primitive_batchers[primitive] = batch
    jax_mlir.register_lowering(primitive, lambda context, value, **_: [value])
    return primitive


def two_forms(name: str) -> Primitive:
    """A primitive that runs one form of a function, and is differentiated and batched as another.

    Its parameter `forms` has functions of flat arguments with flat results: `run`, what runs where
    it is compiled; `original`, what runs where nothing is; and `transformed`, what is
    differentiated and batched. `results` are `ShapeDtypeStruct`s of the results.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def types(*_: Any, forms: Any) -> list[Any]:
        return [shaped_abstractify(result) for result in forms.results]

    def differentiate(primals: Any, tangents: Any, *, forms: Any) -> Any:
        moving = [n for n, t in enumerate(tangents) if not isinstance(t, Zero)]

        def moved(*values: Any) -> Any:
            every = list(primals)
            for n, value in zip(moving, values, strict=True):
                every[n] = value
            return forms.transformed(*every)

        made, changes = jax.jvp(
            moved, [primals[n] for n in moving], [ad.instantiate_zeros(tangents[n]) for n in moving]
        )
        zeros = [
            Zero(tangent_type(value)) if change.dtype == jax.dtypes.float0 else change
            for value, change in zip(made, changes, strict=True)
        ]
        return made, zeros

    def batch(axis: Any, operands: Any, dims: Any, *, forms: Any) -> Any:
        mapped = jax.vmap(
            forms.transformed, dims, axis_size=axis.size, spmd_axis_name=axis.spmd_name
        )
        made = mapped(*operands)
        return made, [0] * len(made)

    primitive.def_impl(lambda *values, forms: forms.original(*values))
    primitive.def_abstract_eval(types)
    ad.primitive_jvps[primitive] = differentiate
    batching.fancy_primitive_batchers[primitive] = batch
    jax_mlir.register_lowering(
        primitive,
        lambda context, *values, forms: jax_mlir.lower_fun(forms.run)(context, *values),
    )
    return primitive


def cached_weakly(kind: type[_T]) -> type[_T]:
    """Class decorator: what JAX caches about a parameter of this type goes with the parameter.

    JAX remembers thousands of equations with their parameters, and would keep alive all that a
    parameter holds: a function of the user's, and its plan.
    """
    weakref_cache_key_types.add(kind)
    return kind


def signatures(jitted: Any) -> int:
    """Returns how many combinations of argument types and shardings a jitted function has seen."""
    return int(jitted._cache_size())


def tangent_type(value: Any) -> Any:
    """The type of changes of a value."""
    return jax.typeof(value).to_tangent_aval()


def lower_transformed(context: Any, *values: Any, forms: Any) -> Any:
    """Lowers a primitive of `two_forms` as what is differentiated and batched."""
    return jax_mlir.lower_fun(forms.transformed)(context, *values)


def jit_options(fn: Any) -> dict[str, tuple[Any, ...]] | None:
    """Returns what `jax.jit` found static and donated, by position and name; None if not jitted."""
    # `functools.wraps` copies what is known of a function, but does not make it one of `jax.jit`.
    info = getattr(fn, "_jit_info", None) if hasattr(fn, "trace") else None
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    return None if info is None else {name: tuple(getattr(info, name)) for name in names}


def lower(traced: Any, rules: Sequence[LoweringRule], platform: str) -> Any:
    """Lowers what `jax.jit(...).trace` made, some primitives by rules of ours.

    Args:
      traced: what JAX has traced.
      rules: the rules.
      platform: what it is lowered for, which need not be at hand: tpu, cuda, rocm or cpu.
    """
    ours: Any = tuple(rules)  # JAX annotates it as a tuple of one rule
    parameters = jax_mlir.LoweringParameters(override_lowering_rules=ours)
    return traced.lower(lowering_platforms=(platform,), _private_parameters=parameters)


def platform_of(device: jax.Device | None = None) -> str:
    """Returns the platform that JAX lowers for on a device; by default, on the first one."""
    device = jax.devices()[0] if device is None else device
    client: Any = device.client
    return str(getattr(client, "_raw_platform", device.platform))  # cuda or rocm, where that is gpu


def inline(context: Any, jaxpr: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Lowers what a closed jaxpr computes, within a lowering rule."""
    made: Sequence[Any] = jax_mlir.lower_fun(as_function(jaxpr), multiple_results=True)(
        context, *values
    )
    return made


def as_function(jaxpr: Any) -> Callable[..., Any]:
    """Returns a closed jaxpr as a function of flat arrays."""
    made: Callable[..., Any] = jaxpr_as_fun(jaxpr)
    return made


def bind_again(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Does what an equation of a jaxpr does, on other operands, at the same line of the source."""
    primitive, source = equation.primitive, equation.source_info
    scope = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=scope), equation.ctx.manager:
        made = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(made) if primitive.multiple_results else [made]


def lines_of(equation: Any) -> list[str]:
    """The lines of the source that made an equation of a jaxpr, innermost first, without JAX's."""
    frames = source_info_util.user_frames(equation.source_info.traceback)
    return [f"{relative(frame.file_name)}:{frame.start_line}" for frame in frames]


def inputs_of(jaxpr: Any, result: int) -> set[int]:
    """The numbers of the inputs of a closed jaxpr that a result is computed from."""
    needed = {id(var) for var, _ in _needed(jaxpr.jaxpr, [result])}
    return {n for n, var in enumerate(jaxpr.jaxpr.invars) if id(var) in needed}


def used_by(jaxpr: Any, result: int, others: Sequence[int]) -> bool:
    """Returns whether a result of a closed jaxpr is one of some others, or used to compute them."""
    value = jaxpr.jaxpr.outvars[result]
    return any(var is value for var, _ in _needed(jaxpr.jaxpr, others))


def _needed(jaxpr: Any, results: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """The variables that results are computed from, these included, each with where it is from."""
    made = {id(var): equation for equation in jaxpr.eqns for var in equation.outvars}
    waiting, seen = [jaxpr.outvars[n] for n in results], set[int]()
    while waiting:
        var = waiting.pop()
        if id(var) not in seen:
            seen.add(id(var))
            equation = made.get(id(var))
            yield var, equation
            waiting += [] if equation is None else equation.invars


def sharding_rule(
    rule: Any, static: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """The `sharding_rule` of a custom_partitioning function as Shardy's attribute.

    Args:
      rule: as the user has given it.
      static: the static arguments of the call.
      operands: MLIR types.
      results: MLIR types.
    """
    if not isinstance(rule, SdyShardingRule):
        rule = rule(*static, thread_resources.env.physical_mesh, operands, results)
        rule, sizes = rule if isinstance(rule, tuple | list) else (rule, {})
        if isinstance(rule, str):
            rule = str_to_sdy_sharding_rule(rule, **sizes)
    return sdy_sharding_rule_to_mlir(rule, list(operands), list(results))


def concrete_mesh() -> Any:
    """The mesh that `jax.set_mesh` has set, with its devices; None without one."""
    mesh = mesh_lib.get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


def argument_shardings(traced: Any) -> Sequence[Any]:
    """The shardings that a function's own `jax.jit` gives its flat arguments."""
    return tuple(traced._params["in_shardings"])


def result_shardings(traced: Any) -> Sequence[Any]:
    """The same of its flat results."""
    return tuple(traced._params["out_shardings"])


def export_schema() -> Any:
    """The module that reads and writes what a serialized `jax.export.Exported` is made of."""
    from jax._src.export import serialization_generated  # only files need it

    return serialization_generated


def exported_nodes(data: bytes) -> int:
    """Counts the nodes in the pytrees of a serialized `Exported`.

    A file can say in a few bytes that a node contains another one twice, and that one a third one
    twice; JAX makes all of them.
    """
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if node is None:
            return 0
        if (at := node._tab.Pos) not in sizes:
            sizes[at] = 1 + sum(size(node.Children(n)) for n in range(node.ChildrenLength()))
        return sizes[at]

    root = export_schema().Exported.GetRootAs(data, 0)
    return size(root.InTree()) + size(root.OutTree())


def random_key_type(dtype: Any) -> str:
    """The name of the generator that typed random keys are for."""
    return str(dtype._impl.name)


def element_types() -> dict[str, np.dtype]:
    """The types of array elements in JAX, by their names in StableHLO; within an MLIR context."""
    return {str(jax_mlir.dtype_to_ir_type(dtype)): dtype for dtype in jax_mlir._dtype_to_ir_type}


# Source lines are the user's: the package is kept out of those that JAX records, but for models.
_PACKAGE = Path(__file__).parents[1]
source_info_util.register_exclusion(f"{_PACKAGE}{os.sep}")
source_info_util.register_inclusion(f"{_PACKAGE / 'models'}{os.sep}")
