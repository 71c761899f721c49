"""Rules that users give for their custom calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.errors import RuleError
from partita.options import text
from partita.program.refused import CALLS, COMPILED_CALLS
from partita.stablehlo.rules import notation

RULES: dict[str, str] = {}
"""The rule of each custom-call target that has been given one, as text."""


LOCAL: dict[str, Callable[..., Any]] = {}
"""Functions that a device runs on its shards instead of a call, by target or kernel."""


def register_rule(target: str, rule: str, local: Callable[..., Any] | None = None) -> None:
    """Says how calls of a custom-call target can be sharded over devices.

    Without a rule, every device runs all of the call: its operands are gathered. With one, each
    device makes the same call on shards, so its code must take any size along what is sharded.

    Args:
      target: the name of the call, as given to `jax.ffi.ffi_call`.
      rule: one word for each dimension of each operand and result; equal words are sharded
        alike. `k+` marks a dimension that results are sums over, `k!` one that requires
        replication, and `.` is a dimension by itself, which requires replication, too.
      local: what a device runs on its shards: a JAX function of the operands of the call, which
        gives its results, such as the function that calls the kernel. By default the same call.

    Raises:
      RuleError: the rule makes no sense, or there can be none for this target.

    Example:
      >>> register_rule("my_attention", "b h q d!, b h k! d!, b h k! d! -> b h q d!")
      >>> register_rule("my_matmul", "m k+, k+ n -> m n")
    """
    text(target, "target", "the name of a custom call", RuleError)
    text(rule, "rule", "a rule such as 'm k+, k+ n -> m n'", RuleError)
    for part, refused in CALLS.items():
        if part in target:
            raise RuleError(f"there can be no rule for {target!r}, {refused.what}")
    for part in COMPILED_CALLS:
        if part in target:
            raise RuleError(
                f"there can be no rule for {target!r}: it carries a kernel that was compiled for "
                "the sizes of the whole; give the name of the kernel, pallas_call(name=...), and "
                "local=, what a device runs on its shards"
            )
    if local is not None and not callable(local):
        raise RuleError(f"local= of the rule for {target!r} must be a function, got {local!r}")
    notation.check(rule)
    RULES[target] = rule
    LOCAL.pop(target, None)
    if local is not None:
        LOCAL[target] = local
