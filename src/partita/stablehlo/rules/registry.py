"""Rules that users give for their custom calls."""

from __future__ import annotations

from partita.errors import RuleError
from partita.options import text
from partita.program.refused import CALLS, COMPILED_CALLS
from partita.stablehlo.rules import notation

RULES: dict[str, str] = {}
"""The rule of each custom-call target that has been given one, as text."""


def register_rule(target: str, rule: str) -> None:
    """Says how calls of a custom-call target can be sharded over devices.

    Without a rule, every device runs all of the call: what goes in is gathered. With one, each
    device makes the same call on shards, so its code must take any size along what is sharded.

    Args:
      target: the name of the call, as given to `jax.ffi.ffi_call`.
      rule: one word for each dimension of each operand and result; equal words are sharded
        alike. `k+` marks a dimension that results are sums over, `k!` one that requires
        replication, and `.` is a dimension by itself, which requires replication, too.

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
                "the sizes of the whole"
            )
    notation.check(rule)
    RULES[target] = rule
