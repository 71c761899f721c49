"""Constructs that a program must not contain: each with a description and a remedy for the user."""

from __future__ import annotations

from typing import NamedTuple


class Refused(NamedTuple):
    """Something that a program must not contain, and what to do about it."""

    what: str
    advice: str


INSTEAD = "take it out, and say what it says with a ManualPartition tactic"

COLLECTIVE = Refused("a collective", "plan the program of the whole, without shard_map or pmap")
DEVICE = Refused("a result that depends on the device", "plan the program of the whole")
HOST = Refused(
    "a call back to the host",
    "it cannot be exported: take debug prints and callbacks out of the function",
)
ASYNC = Refused("half of an asynchronous operation", "plan the program before XLA has split it")
TUPLE = Refused("a tuple", "pass and return its elements instead")
QUANTIZED = Refused("a quantized type", "write the scaling out")
DYNAMIC = Refused("a size that depends on data", "pad to a fixed size instead")
KEYLESS = Refused(
    "random numbers without a key", "devices would draw different ones: use jax.random"
)
UNREADABLE = Refused(
    "a select that XLA cannot read", "use stablehlo.select, on operands of one shape"
)
BITS = Refused(
    "a bitcast between booleans and numbers",
    "XLA keeps a boolean in a byte: shift and mask the bits instead",
)
GSPMD = Refused(
    "a sharding constraint or a shard_map, written for GSPMD",
    f"export it with Shardy (jax_use_shardy_partitioner), or {INSTEAD}",
)

CALLS = {
    **dict.fromkeys(("callback", "infeed", "outfeed", "host_"), HOST),
    "CustomSPMDPartitioning": Refused(
        "a jax.experimental.custom_partitioning function",
        "of which a file has no more than a number of the process that wrote it: plan the JAX "
        "function",
    ),
    **dict.fromkeys(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"), GSPMD),
}
"""Custom calls that a program must not contain, by a part of their target."""

COMPILED_CALLS = ("tpu_custom_call", "triton", "mosaic", "cudnn", "cublas")
"""Parts of custom-call targets that carry a kernel compiled for the sizes of unsharded operands."""

TYPES = {"!stablehlo.token": HOST, "!stablehlo.future": ASYNC, "tuple": TUPLE}
"""Types that a program must not contain, by how they begin."""
