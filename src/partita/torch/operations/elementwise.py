"""Elementwise operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from partita.torch.operations.registry import aten, table
from partita.torch.operations.types import converted, wide

_UNARY: dict[str, Any] = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "bitwise_not": jnp.bitwise_not,
    "ceil": jnp.ceil,
    "_conj": jnp.conj,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "logical_not": jnp.logical_not,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}
_OF_FLOATS = frozenset("rsqrt erf erfc reciprocal sigmoid silu".split())
"""Operations that JAX rejects integers for."""

_BINARY: dict[str, Any] = {
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_left_shift": jnp.left_shift,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_right_shift": jnp.right_shift,
    "bitwise_xor": jnp.bitwise_xor,
    "eq": jnp.equal,
    "fmod": jnp.fmod,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "ne": jnp.not_equal,
    "remainder": jnp.remainder,
}
_OVERLOADS = ("default", "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar")


def _float(value: Any) -> Any:
    """Numbers as floats: what torch makes of integers in functions of real numbers."""
    exact = jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == jnp.bool_
    return value.astype(jnp.float32) if exact else value


def _of_floats(function: Any) -> Any:
    return lambda x: function(_float(x))


table({name: _of_floats(f) if name in _OF_FLOATS else f for name, f in _UNARY.items()})
table({" ".join(f"{name}.{each}" for each in _OVERLOADS): f for name, f in _BINARY.items()})
table(
    {
        "complex": jax.lax.complex,
        "copysign.Tensor copysign.Scalar": jnp.copysign,
        "mul.Tensor mul.Scalar": jnp.multiply,
        "where.self": jnp.where,
    }
)


@aten("add.Tensor add.Scalar")
def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    if getattr(a, "dtype", None) == getattr(b, "dtype", 0) == jnp.bool_:
        return jnp.logical_or(a, b)
    return jnp.add(a, b if alpha == 1 else alpha * b)


@aten("sub.Tensor sub.Scalar")
def _sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return jnp.subtract(a, b if alpha == 1 else alpha * b)


@aten("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode")
def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(a, b)
    if rounding_mode == "trunc":
        return jnp.trunc(jnp.divide(a, b))
    return jnp.divide(a, b)


@aten("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar")
def _pow(a: Any, b: Any) -> Any:
    if isinstance(b, float) and b.is_integer() and abs(b) <= 8:
        b = int(b)  # exact, and with a gradient at 0
    if isinstance(b, int) and not isinstance(a, int | float):
        if a.dtype == jnp.bool_:
            a = a.astype(jnp.int32)
        exact = jnp.issubdtype(a.dtype, jnp.integer)
        return a**b if exact and b < 0 else jax.lax.integer_pow(a, b)
    return jnp.power(a, b)


@aten("clamp clamp.Tensor")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


@aten("hardtanh")
def _hardtanh(x: Any, least: float = -1.0, most: float = 1.0) -> Any:
    return jnp.clip(x, least, most)


@aten("gelu")
def _gelu(x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@aten("elu")
def _elu(x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0) * input_scale))


@aten("leaky_relu")
def _leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    return jnp.where(x > 0, x, x * slope)


@aten("_to_copy prims.convert_element_type")
def _to(x: Any, dtype: Any = None, **_: Any) -> Any:
    return converted(x, dtype if isinstance(dtype, torch.dtype) else None)


@aten("clone alias lift_fresh lift_fresh_copy detach_copy")
def _same(x: Any, **_: Any) -> Any:
    return x


@aten("copy")
def _copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    return jnp.broadcast_to(source, x.shape).astype(x.dtype)


@aten("view_as_complex")
def _view_as_complex(x: Any) -> Any:
    x = wide(x)
    return jax.lax.complex(x[..., 0], x[..., 1])


@aten("view_as_real")
def _view_as_real(x: Any) -> Any:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)


@aten("polar")
def _polar(size: Any, angle: Any) -> Any:
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


@aten("bernoulli bernoulli.p")
def _no_random(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("random numbers inside of a module cannot be planned")
