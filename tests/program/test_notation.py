"""Sharding rules as text."""

from __future__ import annotations

import pytest

from partita.errors import RuleError
from partita.program.ir import TensorType
from partita.stablehlo.rules import notation
from partita.stablehlo.rules import registry as custom


def types(*shapes):
    return [TensorType(shape, "f32") for shape in shapes]


@pytest.mark.parametrize(
    ("text", "operands", "results", "rule", "kinds"),
    [
        (
            "m k+, k+ n -> m n",
            [(4, 8), (8, 2)],
            [(4, 2)],
            "[i j], [j k] -> [i k]",
            ["parallel", "reduction", "parallel"],
        ),
        (
            "b h q d!, b h k! d! -> b h q .",
            [(2, 3, 4, 5), (2, 3, 6, 5)],
            [(2, 3, 4, 7)],
            "[i j k l], [i j m l] -> [i j k 1]",
            ["parallel", "parallel", "parallel", "blocked", "blocked"],
        ),
        ("n!, -> ", [(4,), ()], [()], "[i], [] -> []", ["blocked"]),
        ("-> .", [], [(4,)], " -> [1]", []),
        # A mark said once holds for all.
        ("a b!, b -> a", [(4, 8), (8,)], [(4,)], "[i j], [j] -> [i]", ["parallel", "blocked"]),
    ],
)
def test_rules_are_read(text, operands, results, rule, kinds):
    notation.check(text)
    read = notation.read(text, types(*operands), types(*results), "call")
    assert str(read) == rule
    assert [factor.kind for factor in read.factors] == kinds
    blocked = {factor.reason for factor in read.factors if factor.kind == "blocked"}
    assert blocked <= {"call requires replication of this dimension"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "'a b' has 0 arrows; expected one"),
        ("a -> a -> a", "has 2 arrows"),
        ("a-b -> a", "has 'a-b'; expected a name for each dimension"),
        ("a k -> a", r"k is missing in a result; write k\+ if results are sums over it, or k!"),
        ("a -> a b", "b is in no operand; write . for a dimension that results have by themselves"),
        ("a k+ -> a k", r"k\+ is summed over, so no result can have it"),
        ("a k+, k! -> a", r"k is marked both \+ and !"),
        ("a a -> a", r"a is twice in \[a a\]; one axis cannot shard both"),
    ],
)
def test_rules_that_make_no_sense(text, message):
    with pytest.raises(RuleError, match=message):
        custom.register_rule("a_call", text)
    assert "a_call" not in custom.RULES


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ([(4, 8)], r"has 2 operands, but it is called with 1: f32\[4,8\]"),
        ([(4, 8), (8,)], r"has 2 dimensions for operand 1, which is f32\[8\]"),
        ([(4, 8), (9, 2)], r"k is 8 and, in operand 1 \(f32\[9,2\]\), 9; dimensions of one name"),
    ],
)
def test_calls_that_do_not_fit_their_rule(operands, message):
    with pytest.raises(RuleError, match=rf"rule 'm k\+, k\+ n -> m n' of call.*{message}"):
        notation.read("m k+, k+ n -> m n", types(*operands), types((4, 2)), "call")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tpu_custom_call", "carries a kernel that was compiled for the sizes of the whole"),
        ("__gpu$xla.gpu.triton", "carries a kernel that was compiled"),
        ("xla_python_cpu_callback", "'xla_python_cpu_callback', a call back to the host"),
        ("CustomSPMDPartitioning", "custom_partitioning"),
    ],
)
def test_targets_that_can_have_no_rule(target, message):
    with pytest.raises(RuleError, match=message):
        custom.register_rule(target, "a -> a")
