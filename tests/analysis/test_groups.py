"""Groups and classes: repeated structure is decided and priced once."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import pytest

from partita.analysis import analyse, discrete, fold
from partita.analysis.classes import use_windows
from partita.analysis.describe import describe

LAYER = "state['params']['layers'][0]"

COLORS = {
    # color: an argument dimension that has it, once per layer
    "batch": ("batch['tokens']", 0, False),
    "sequence": ("batch['tokens']", 1, False),
    "embed": ("state['params']['ln_f']", 0, False),
    "vocabulary": ("state['params']['embed']", 0, False),
    "heads": (f"{LAYER}['wq']", 1, True),
    "qk head-dim": (f"{LAYER}['wq']", 2, True),
    "v head-dim": (f"{LAYER}['wv']", 2, True),
    "ffn": (f"{LAYER}['w_in']", 1, True),
}

SHARED = {
    # color: other dimensions of the same layer that have it
    "embed": [("wq", 0), ("wo", 2), ("w_in", 0), ("w_out", 1), ("ln1", 0), ("ln2", 0)],
    "heads": [("wk", 1), ("wv", 1), ("wo", 0)],
    "qk head-dim": [("wk", 2)],
    "v head-dim": [("wo", 1)],
    "ffn": [("w_out", 0)],
}


@pytest.mark.parametrize("layers", [1, 3])
def test_gpt_colors(gpt_bench, layers):
    b = gpt_bench(layers, "x=2")
    found = {name: b.color(example, dim) for name, (example, dim, _) in COLORS.items()}
    assert len(set(found.values())) == len(COLORS)
    assert b.analysis.groups.colors == len(COLORS) == 8
    counts = Counter(b.analysis.groups.color_group)
    for name, (_, _, per_layer) in COLORS.items():
        assert counts[found[name]] == (layers if per_layer else 1), name


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("color", SHARED)
def test_gpt_weights_share_colors_with_each_other_and_with_their_moments(gpt_bench, color, layer):
    b = gpt_bench(3, "x=2")
    expected = b.color(*COLORS[color][:2])
    for weight, dim in SHARED[color]:
        for tree in ("['params']", "['opt'][0].mu", "['opt'][0].nu"):
            for root in ("state", "result[0]"):
                assert b.color(f"{root}{tree}['layers'][{layer}]['{weight}']", dim) == expected


@pytest.mark.parametrize("layers", [1, 3])
def test_gpt_has_one_group_of_conflicts_with_two_roles(gpt_bench, layers):
    b = gpt_bench(layers, "x=2")
    (conflict,) = describe(b.analysis).conflicts
    assert conflict.count == layers
    assert len(conflict.roles) == 2
    assert conflict.color == b.color("batch['tokens']", 1)


def test_every_role_is_said_in_words(bench):
    (conflict,) = describe(bench(lambda x, w: x + x @ w, "f32[4,8]", "f32[8,8]").analysis).conflicts
    assert all(" of dot_general at " in role for role in conflict.roles)


# ----------------------------------------------------------------------------------- groups


def mlp(x, weights):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def blocks(x, weights):
    """Residual blocks, each with a width of its own."""
    for w_in, w_out in weights:
        x = x + jnp.tanh(x @ w_in) @ w_out
    return x


def test_colors_that_meet_are_not_grouped(bench):
    b = bench(mlp, "f32[4,8]", ["f32[8,8]"] * 4)
    widths = [b.color("x", 1), *(b.color(f"weights[{i}]", 1) for i in range(4))]
    assert len(set(widths)) == 5


def test_colors_that_are_alike_and_never_meet_are_grouped(bench):
    b = bench(blocks, "f32[4,8]", [("f32[8,32]", "f32[32,8]")] * 4)
    assert b.analysis.names.colors == 6
    assert b.analysis.groups.colors == 3
    assert {b.color(f"weights[{i}][0]", 1) for i in range(4)} == {b.color("weights[0][1]", 0)}


def test_colors_that_meet_are_grouped_with_those_that_meet_alike_colors(bench):
    def deep(x, weights):
        for layers in weights:
            y = x
            for w in layers:
                y = jnp.tanh(y @ w)
            x = x + y
        return x

    block = ("f32[4,8]", "f32[8,8]", "f32[8,8]", "f32[8,8]", "f32[8,4]")
    b = bench(deep, "f32[2,4]", [block] * 3)
    # Two widths of a block are alike, as they lie between matrices of one shape, and they meet.
    first, second = ({b.color(f"weights[{n}][{i}]", 1) for n in range(3)} for i in (1, 2))
    assert len(first) == len(second) == 1
    assert first != second


def test_colors_of_different_size_are_not_grouped(bench):
    b = bench(blocks, "f32[4,8]", [("f32[8,32]", "f32[32,8]"), ("f32[8,16]", "f32[16,8]")])
    assert b.color("weights[0][0]", 1) != b.color("weights[1][0]", 1)


def test_operations_with_the_same_signature_but_other_combiners_differ(bench):
    b = bench(lambda x, y: (x.max(0), y.min(0)), "f32[4]", "f32[4]")
    reductions = [op.index for op in b.program.operations if op.short == "reduce"]
    assert len({b.analysis.groups.signature[i] for i in reductions}) == 2


# ---------------------------------------------------------------------------------- classes


def test_classes_do_not_grow_with_the_number_of_layers(gpt_program):
    six, twelve = (fold(analyse(gpt_program(layers))) for layers in (6, 12))
    assert len(six.ops) == len(twelve.ops)
    assert len(six.values) == len(twelve.values)
    assert len(six.ops) < len(gpt_program(6).operations) / 4


@pytest.mark.parametrize("classes", [fold, discrete])
def test_classes_partition_the_program(gpt_program, classes):
    p = gpt_program(3)
    graph = classes(analyse(p))
    for found, of, all_ in (
        (graph.ops, graph.op_class, p.operations),
        (graph.values, graph.value_class, p.values),
    ):
        assert sorted(m for c in found for m in c.members) == list(range(len(all_)))
        assert all(of[m] == c.index for c in found for m in c.members)


def test_members_of_a_class_agree(gpt_program):
    p = gpt_program(3)
    analysis = analyse(p)
    graph = fold(analysis)
    for c in graph.ops:
        for member in c.members:
            op = p.operations[member]
            assert (op.kind, op.rule) == (c.op.kind, c.op.rule)
            start, end = analysis.names.factor_base[member : member + 2]
            assert analysis.groups_of(start, end) == (c.colors, c.roles)
    for c in graph.values:
        for member in c.members:
            assert p.values[member].type == c.value.type
            assert (member in p.results) == c.is_result


def test_a_discrete_class_is_one_operation(gpt_program):
    p = gpt_program(1)
    graph = discrete(analyse(p))
    assert graph.op_class == tuple(range(len(p.operations)))
    assert graph.value_class == tuple(range(len(p.values)))


def test_labels_keep_classes_apart(bench):
    b = bench(blocks, "f32[4,8]", [("f32[8,32]", "f32[32,8]")] * 6)
    plain = fold(b.analysis)
    shared = next(c for c in plain.values if len(c.members) > 1)
    one = shared.members[0]
    labelled = fold(b.analysis, value_label=lambda v: v == one)
    assert labelled.values[labelled.value_class[one]].members == (one,)


def test_donated_buffers_tie_classes_together(bench):
    b = bench(lambda old, new: new + 1.0, "f32[4]", "f32[4]", donate=0)
    old, result = b.value("old"), b.value("result")
    assert b.graph.values[old].aliases == (result,)
    assert b.graph.values[result].aliases == (old,)


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([], []),
        ([3], [0]),
        ([3, 3, 4], [0, 0, 0]),
        ([0, 48], [0, 0]),
        ([0, 49], [0, 1]),
        ([0, 40, 80, 200, 210, 400], [0, 0, 0, 1, 1, 2]),
    ],
)
def test_uses_that_are_far_apart_are_different_windows(program, ops, expected):
    straight = program(lambda x: x, "f32[4]")  # without loops, reads happen in order
    uses = [(op, 0) for op in ops]
    assert use_windows(straight, uses, 48) == expected
    assert use_windows(straight, uses, None) == [0] * len(ops)
