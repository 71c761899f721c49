"""`LogicalAxes`: names that arrays carry, in the boxes of Flax, as a tactic."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import partita as pt
from checks import array, planner

MESH = "data=2,model=4"


def boxed(sizes, names, rules=None):
    return nn.LogicallyPartitioned(array(*sizes), names, rules=rules)


def scale(tree):
    return jax.tree.map(lambda leaf: 2 * leaf, tree)


plan = planner(mesh=MESH)


def specs(plan):
    is_spec = lambda leaf: isinstance(leaf, P)  # noqa: E731
    return jax.tree.leaves(plan.in_shardings, is_leaf=is_spec)


RULES = {
    "each": (("embed", "data"), ("mlp", "model")),
    "none": (("embed", None), ("mlp", "model")),
    "several": (("embed", ("model", "data")), ("mlp", None)),
    "taken by the first": (("mlp", "model"), ("embed", "model")),
    "a second choice": (("mlp", "model"), ("embed", "model"), ("embed", "data")),
    "several, one taken": (("mlp", "model"), ("embed", ("data", "model"))),
    "none comes first": (("embed", None), ("embed", "data"), ("mlp", "model")),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("names", [("embed", "mlp"), ("mlp", "embed"), (None, "embed")])
def test_rules_mean_what_flax_says(rules, names):
    made = plan(scale, boxed((16, 32), names), tactics=[pt.LogicalAxes(rules)])
    theirs = tuple(nn.logical_to_mesh_axes(names, rules))
    while theirs and theirs[-1] is None:
        theirs = theirs[:-1]
    assert specs(made) == [P(*theirs)]
    assert not made.history[0].refused


def test_a_name_whose_axis_another_dimension_has_is_told():
    made = plan(
        scale,
        boxed((16, 32), ("mlp", "embed")),
        tactics=[pt.LogicalAxes(RULES["taken by the first"])],
    )
    assert made.history[0].decisions == (
        "mlp -> model of tree.value and 1 more",
        "embed -> none of tree.value and 1 more, where model is that of mlp by an earlier rule",
    )
    assert "chose embed -> none of tree.value and 1 more" in str(made)


def test_rules_may_be_a_dict():
    made = plan(
        scale,
        boxed((16, 32), ("embed", "mlp")),
        tactics=pt.LogicalAxes({"embed": None, "mlp": ("data", "model")}),
    )
    assert specs(made) == [P(None, ("data", "model"))]
    assert made.history[0].name == "LogicalAxes(embed -> none, mlp -> data x model)"


def test_names_without_rules_are_mesh_axes():
    arrays = [
        nn.Partitioned(array(16, 32), ("model", "data")),
        nn.Partitioned(
            array(
                32,
            ),
            (("data", "model"),),
        ),
        nn.Partitioned(
            array(
                32,
            ),
            (None,),
        ),
        array(32),
    ]
    made = plan(scale, arrays, tactics=[pt.LogicalAxes()])
    assert specs(made) == [P("model", "data"), P(("data", "model")), P(), P()]


def test_rules_that_an_array_carries_come_after_those_of_the_tactic():
    own = (("embed", "data"), ("mlp", "data"))
    made = plan(
        scale,
        [boxed((16, 32), ("embed", "heads"), own), boxed((16, 32), ("heads", "mlp"), own)],
        tactics=[pt.LogicalAxes({"heads": None, "mlp": "model"})],
    )
    assert specs(made) == [P("data"), P(None, "model")]


def test_variables_of_nnx_carry_names():
    with nnx.use_eager_sharding(False):
        variables = {
            "w": nnx.Param(jnp.ones((16, 32)), out_sharding=("embed", "mlp")),
            "own": nnx.Param(
                jnp.ones((8, 16)), out_sharding=("seq", None), sharding_rules=[("seq", "model")]
            ),
            "axis": nnx.Param(jnp.ones((8, 16)), out_sharding=P(None, "model")),
            "plain": nnx.Param(jnp.ones(16)),
        }
    made = plan(
        scale, nnx.State(variables), tactics=[pt.LogicalAxes({"embed": None, "mlp": "model"})]
    )
    assert specs(made) == [P(None, "model"), P("model"), P(), P(None, "model")]


def test_what_follows_is_split_too():
    def loss(params, x):
        return jnp.tanh(x @ params["up"].unbox() + params["bias"]) @ params["down"].unbox()

    params = {
        "up": boxed((16, 32), ("embed", "mlp")),
        "bias": array(32),
        "down": boxed((32, 16), ("mlp", "embed")),
    }
    made = plan(loss, params, array(8, 16), tactics=[pt.LogicalAxes({"mlp": "model"})])
    assert made.in_shardings[0]["bias"] == P("model")
    assert [c.kind for c in made.collectives] == ["all_reduce"]


def test_an_array_with_names_is_laid_out_as_they_say_and_later_tactics_may_split_it():
    def add(a, b):
        return a.unbox() + b.unbox()

    arrays = boxed((16, 32), ("rows", None)), boxed((16, 32), (None, None))
    names = pt.LogicalAxes({"rows": "data"})
    assert specs(plan(add, *arrays, tactics=[names])) == [P("data"), P()]
    later = pt.ManualPartition({"b*": 0}, axis="data")
    assert specs(plan(add, *arrays, tactics=[names, later])) == [P("data"), P("data")]


def test_results_carry_names_too():
    def init(key):
        return boxed((), ("embed", "mlp")).replace_boxed(jnp.ones((16, 32)) * key)

    made = plan(init, array(), tactics=[pt.LogicalAxes({"mlp": "model"})])
    assert made.out_shardings.value == P(None, "model")


def test_earlier_tactics_win_and_what_is_refused_is_reported():
    arrays = [boxed((16, 32), ("embed", "mlp")), boxed((16, 6), ("embed", "odd"))]
    made = plan(
        scale,
        arrays,
        tactics=[
            pt.ManualPartition({"tree[0]*": 0}, axis="model"),
            pt.LogicalAxes({"embed": "data", "mlp": "model", "odd": "model"}),
        ],
    )
    assert specs(made) == [P(("model", "data")), P("data")]
    refused = [str(refusal) for refusal in made.history[1].refused]
    assert refused[0].startswith("tree[0].value dimension 1: model is already used there")
    assert any("tree[1].value dimension 1: 6 is not divisible by model=4" in r for r in refused)
    assert made.history[1].decisions[0].startswith("embed -> data of tree[0].value and 3 more")


def test_a_name_that_leads_nowhere_is_refused_once():
    arrays = [boxed((16, 32), ("embed", "vocab")), boxed((32,), ("vocab",))]
    refused = plan(scale, arrays, tactics=[pt.LogicalAxes({"embed": None})]).history[0].refused
    assert [str(refusal) for refusal in refused] == [
        "'vocab' of tree[0].value and 3 more: no rule is for it, and mesh data=2,model=4 has no "
        "such axis (the rule ('vocab', None) would leave it unsharded)"
    ]


def test_more_names_than_dimensions_are_refused():
    # A factored optimizer keeps a row and a column of statistics in the box of the matrix.
    made = plan(scale, boxed((32,), ("embed", "mlp")), tactics=[pt.LogicalAxes({"mlp": "model"})])
    assert specs(made) == [P()]
    assert str(made.history[0].refused[0]).startswith(
        "tree.value (embed, mlp): it has 2 names for 1 dimensions"
    )


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"mlp": "modle"}, pt.AxisError, "no axis 'modle'; did you mean 'model'"),
        ({"mlp": 1}, pt.TacticError, "cannot read the rule"),
        ([("mlp", "data", "model")], pt.TacticError, "cannot read the rule"),
        (
            {"embed": ("data", "model"), "mlp": ("model", "data")},
            pt.TacticError,
            "another the other way round",
        ),
    ],
)
def test_rules_that_cannot_be_followed(rules, error, message):
    arrays = [boxed((16,), ("embed",)), boxed((32,), ("mlp",))]
    with pytest.raises(error, match=message):
        plan(scale, arrays, tactics=[pt.LogicalAxes(rules)])


def test_a_program_without_names_is_an_error():
    with pytest.raises(pt.TacticError, match="no argument or result of scale carries axis names"):
        plan(scale, array(8), tactics=[pt.LogicalAxes({"mlp": "model"})])
