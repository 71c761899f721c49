"""Plans run by torch: processes with gloo on this machine train as one process does."""

import functools

import pytest
import torch

import partita as pt
import partita.torch as ptt
from torch_frontend.torch_models import Images, Transformer, next_token_loss, tokens
from torch_frontend.torch_workers import Case, trained


def transformer():
    given = tokens()
    return Transformer(), {"tokens": given}, given.roll(-1, 1)


def mixture():
    given = tokens()
    return Transformer(experts=True), {"tokens": given}, given.roll(-1, 1)


def images():
    return Images(), {"images": torch.randn(4, 3, 16, 16)}, torch.arange(4)


def class_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets)


DATA, FSDP = pt.DataParallel("data"), pt.FullyShardedDataParallel("data")
MEGATRON = pt.Megatron("model", vocabulary=False)
SEQUENCE = pt.SequenceParallel("model", vocabulary=False)
SEARCH = pt.AutomaticPartition(budget=60)

MODELS = {
    "transformer": (transformer, next_token_loss),
    "mixture": (mixture, next_token_loss),
    "images": (images, class_loss),
}
TWO = {
    "data parallel": ("data=2", [DATA]),
    "fsdp": ("data=2", [FSDP]),
    "megatron": ("model=2", [MEGATRON]),
    "sequence parallel": ("model=2", [SEQUENCE]),
    "searched": ("data=2", [SEARCH]),
}
FOUR = {
    "fsdp and megatron": ("data=2,model=2", [DATA, MEGATRON, pt.ZeRO(3, "data")]),
    "data and sequence parallel": ("data=2,model=2", [DATA, SEQUENCE]),
    "fsdp and sequence parallel": ("data=2,model=2", [DATA, SEQUENCE, pt.ZeRO(3, "data")]),
    "vocabulary": ("data=2,model=2", [DATA, pt.Megatron("model"), pt.ZeRO(3, "data")]),
}


# Replicated, these small models would be fastest; there is no room for that.
LITTLE_MEMORY = {"transformer": "420KiB", "mixture": "560KiB", "images": "300KiB"}


@functools.cache
def planned(model, strategy):
    make, loss = MODELS[model]
    mesh, tactics = (TWO | FOUR)[strategy]
    torch.manual_seed(0)
    module, inputs, targets = make()
    return ptt.plan(
        module,
        tuple(inputs.values()),
        mesh=mesh,
        hardware="h100",
        tactics=tactics,
        loss=loss,
        targets=targets,
        optimizer="adamw",
        memory=LITTLE_MEMORY[model] if strategy == "searched" else None,
    )


def case(model, strategy, styled=False):
    make, loss = MODELS[model]
    name = f"{model}, {strategy}{', styles' if styled else ''}"
    return Case(name, planned(model, strategy).distribution, make, loss, styled)


def check(found):
    wrong = {
        name: result
        for name, result in found.items()
        if "error" in result or max(result["loss"], result["parameters"]) > 1e-5
    }
    assert found and not wrong


def unexplained(found, model, strategies):
    """Collectives that torch issues otherwise than planned, and that no rule says."""
    compared = {
        strategy: planned(model, strategy).compare(found[f"{model}, {strategy}"]["issued"])
        for strategy in strategies
    }
    return {strategy: each.left_over for strategy, each in compared.items() if each.left_over}


def test_two_processes_train_as_one_does_and_issue_what_was_predicted():
    strategies = ["data parallel", "fsdp", "megatron", "sequence parallel"]
    found = trained(
        [case("transformer", s) for s in strategies] + [case("transformer", "megatron", True)], 2
    )
    check(found)
    assert not unexplained(found, "transformer", strategies)


@pytest.mark.parametrize("model", MODELS)
def test_every_strategy_trains_as_one_process_does(model):
    check(trained([case(model, strategy) for strategy in TWO], 2))


def test_four_processes_train_as_one_does():
    both = "fsdp and megatron"
    cases = [case("transformer", strategy) for strategy in FOUR]
    found = trained([*cases, case("mixture", both), case("images", both)], 4)
    check(found)
    assert not unexplained(found, "transformer", FOUR)


def used(model, strategy):
    """What torch has by name, and what partita does itself, by path."""
    made = planned(model, strategy).tools(MODELS[model][0]()[0])
    styles = {path: type(style).__name__ for path, style in made.styles.items()}
    return made.axis, made.sharded, styles, made.others


LAYER = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "mlp.up"), "ColwiseParallel"),
    **dict.fromkeys(("o_proj", "mlp.down"), "RowwiseParallel"),
}
LAYERS = {f"layers.{n}.{name}": style for n in (0, 1) for name, style in LAYER.items()}
NORMS = [*(f"layers.{n}.norm{k}" for n in (0, 1) for k in (1, 2)), "norm"]
BLOCKS = ("layers.0", "layers.1", "")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("data parallel", (None, (), {}, {})),
        ("fsdp", ("data", BLOCKS, {}, {})),
        ("megatron", (None, (), LAYERS, {})),
        ("sequence parallel", (None, (), LAYERS | dict.fromkeys(NORMS, "SequenceParallel"), {})),
        ("fsdp and megatron", ("data", BLOCKS, LAYERS, {})),
    ],
)
def test_what_torch_has_by_name_is_done_by_its_own_tools(strategy, expected):
    assert used("transformer", strategy) == expected


def test_what_torch_has_no_tool_for_says_why():
    axis, sharded, _, others = used("mixture", "fsdp")
    assert (axis, sharded) == (None, ()) and "moves activations" in others["data"]
    *_, others = used("mixture", "megatron")
    assert others == {f"layers.{n}.mlp": "there is no style for Experts" for n in (0, 1)}
