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
}


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
    )


def cases(strategies, models=MODELS):
    for model in models:
        for strategy in strategies:
            make, loss = MODELS[model]
            plan = planned(model, strategy)
            if not plan.refusals:
                yield Case(f"{model}, {strategy}", plan.distribution, make, loss)


def check(found):
    wrong = {
        name: result
        for name, result in found.items()
        if "error" in result or max(result["loss"], result["parameters"]) > 1e-5
    }
    assert found and not wrong


def test_two_processes_train_as_one_does():
    check(trained(list(cases(TWO)), 2))


@pytest.mark.slow
def test_four_processes_train_as_one_does():
    check(trained(list(cases(FOUR, ["transformer"])), 4))
