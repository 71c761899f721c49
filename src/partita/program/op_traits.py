"""What partita does with each operation of the StableHLO and CHLO dialects: one set of tables.

Every operation is in exactly one of them. One that is in none, of a newer dialect, is kept whole.
"""

from __future__ import annotations

from typing import NamedTuple


class Refused(NamedTuple):
    """Something that a program must not contain, and what to do about it."""

    what: str
    advice: str


def _kinds(dialect: str, names: str) -> frozenset[str]:
    return frozenset(f"{dialect}.{name}" for name in names.split())


ELEMENTWISE = _kinds(
    "stablehlo",
    """abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert cosine
    count_leading_zeros divide exponential exponential_minus_one floor imag is_finite log
    log_plus_one logistic maximum minimum multiply negate not or popcnt power real
    reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor""",
) | _kinds(
    "chlo",
    """_asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e conj constant_like cosh digamma
    erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi next_after polygamma sinh square tan
    zeta""",
)
"""Kinds that compute each result element from the operand elements at the same position."""

BROADCASTING = _kinds(
    "chlo",
    """broadcast_add broadcast_and broadcast_atan2 broadcast_compare broadcast_complex
    broadcast_divide broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after
    broadcast_or broadcast_polygamma broadcast_power broadcast_remainder broadcast_shift_left
    broadcast_shift_right_arithmetic broadcast_shift_right_logical
    broadcast_subtract broadcast_xor broadcast_zeta""",
)
"""Elementwise kinds that stretch smaller operands first, as NumPy does."""

SHARDY = _kinds(
    "stablehlo",
    """broadcast_in_dim cholesky concatenate convolution custom_call dot_general dynamic_slice
    dynamic_update_slice fft gather pad reduce reduce_window reshape reverse scatter
    select_and_scatter slice sort transpose triangular_solve""",
)
"""Kinds with a rule of Shardy's, which `windows` and `sliding` narrow or widen."""

CONVOLUTION = "stablehlo.convolution"

PRODUCTS = frozenset({"stablehlo.dot_general", CONVOLUTION})
"""Of those, the kinds that run on matrix units, two FLOPs per point of their iteration space."""

GENERATED = _kinds("stablehlo", "constant iota") | {"chlo.constant"}
"""Kinds that make a value from nothing: each dimension can be sharded as its uses need it."""

OWN = BROADCASTING | {
    "chlo.top_k",
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_inference",
    "stablehlo.batch_norm_training",
    "stablehlo.einsum",
    "stablehlo.map",
}
"""Kinds with a rule of partita's own, see `rules`."""

SHARDABLE = ELEMENTWISE | SHARDY | GENERATED | OWN
"""Kinds whose device-local form is known to `partita.spmd.localize`."""

STRUCTURE = _kinds("stablehlo", "while case if optimization_barrier return")
"""Kinds that order other operations, see `partita.program.blocks`."""

REWRITTEN = _kinds(
    "stablehlo",
    """broadcast composite dot dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota
    dynamic_pad dynamic_reshape get_dimension_size real_dynamic_slice unary_einsum""",
)
"""Kinds that are replaced by others when a program is read; dynamic ones, if sizes are constant."""

WHOLE = {
    "stablehlo.rng_bit_generator": "the bits depend on the size of the whole",
    "stablehlo.torch_index_select": "no local form is known",
    "chlo.ragged_dot": "no local form is known",
    "chlo.scan": "each index depends on those before it",
}
"""Kinds that every device runs in full, and why."""

_COLLECTIVE = Refused("a collective", "plan the program of the whole, without shard_map or pmap")
_DEVICE = Refused("a result that depends on the device", "plan the program of the whole")
_HOST = Refused(
    "a call back to the host",
    "it cannot be exported: take debug prints and callbacks out of the function",
)
_ASYNC = Refused("half of an asynchronous operation", "plan the program before XLA has split it")
_TUPLE = Refused("a tuple", "pass and return its elements instead")
QUANTIZED = Refused("a quantized type", "write the scaling out")
_DYNAMIC = Refused("a size that depends on data", "pad to a fixed size instead")
INSTEAD = "take it out, and say what it says with a ManualPartition tactic"
_GSPMD = Refused(
    "a sharding constraint or a shard_map region, written for GSPMD",
    f"export it with Shardy (jax_use_shardy_partitioner), or {INSTEAD}",
)

REFUSED = {
    **dict.fromkeys(
        _kinds(
            "stablehlo",
            """all_gather all_reduce all_to_all collective_broadcast collective_permute
            cross-replica-sum reduce_scatter""",
        ),
        _COLLECTIVE,
    ),
    **dict.fromkeys(_kinds("stablehlo", "partition_id replica_id"), _DEVICE),
    **dict.fromkeys(_kinds("stablehlo", "after_all create_token infeed outfeed recv send"), _HOST),
    **dict.fromkeys(_kinds("stablehlo", "async_done async_start"), _ASYNC),
    **dict.fromkeys(_kinds("stablehlo", "get_tuple_element tuple"), _TUPLE),
    **dict.fromkeys(_kinds("stablehlo", "uniform_dequantize uniform_quantize"), QUANTIZED),
    "stablehlo.rng": Refused(
        "random numbers without a key", "devices would draw different ones: use jax.random"
    ),
    "stablehlo.set_dimension_size": _DYNAMIC,
    "chlo.broadcast_select": Refused(
        "a select that XLA cannot read", "use stablehlo.select, on operands of one shape"
    ),
}
"""Kinds that a program must not contain."""

REFUSED_CALLS = {
    **dict.fromkeys(("callback", "infeed", "outfeed", "host_"), _HOST),
    "CustomSPMDPartitioning": Refused(
        "a jax.experimental.custom_partitioning function",
        "only XLA can read its rule: plan the function inside of it, or one that makes a custom "
        "call which partita.register_rule has a rule for",
    ),
    **dict.fromkeys(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"), _GSPMD),
}
"""Custom calls that a program must not contain, by a part of their target."""

REFUSED_TYPES = {"!stablehlo.token": _HOST, "!stablehlo.future": _ASYNC, "tuple": _TUPLE}
"""Types that a program must not contain, by how they begin."""

COMPILED_CALLS = ("tpu_custom_call", "triton", "mosaic", "cudnn", "cublas")
"""Parts of custom-call targets that carry a kernel compiled for the sizes of the whole."""

REGION_KINDS = _kinds("stablehlo", "map reduce reduce_window scatter select_and_scatter sort")
"""Kinds whose regions work on scalars and capture nothing."""

COMBINERS = {
    "stablehlo.add": "add",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "mul",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}
"""Scalar operations under which partial results of several devices can be combined."""
