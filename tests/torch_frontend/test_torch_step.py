"""What is planned computes what torch computes: outputs, losses, updated parameters."""

import jax
import numpy as np
import pytest
import torch

from partita.torch.capture import capture
from partita.torch.optimizers import optimizer_of
from partita.torch.step import forward, training
from torch_frontend.torch_models import (
    MLP,
    Experts,
    Images,
    Tied,
    Transformer,
    next_token_loss,
    tokens,
)


def numbers(tensor):
    return tensor.detach().numpy()


def arguments(step, module, inputs):
    """The arguments of a step: the module's tensors, the inputs, and zeros for the optimizer."""
    known = dict(module.state_dict(keep_vars=True)) | inputs
    names, made = iter(step.argument_names), []
    for group in step.args:
        row = ((next(names), leaf) for leaf in group)
        made.append(
            tuple(
                numbers(known[name]).astype(leaf.dtype)
                if name in known
                else np.zeros(leaf.shape, leaf.dtype)
                for name, leaf in row
            )
        )
    return made


def run(step, module, inputs):
    with jax.default_matmul_precision("highest"):
        return jax.jit(step.fn)(*arguments(step, module, inputs))


CASES = {
    "mlp": (MLP, lambda: {"x": torch.randn(8, 32)}),
    "experts": (Experts, lambda: {"x": torch.randn(2, 8, 32)}),
    "transformer": (Transformer, lambda: {"tokens": tokens()}),
    "images": (Images, lambda: {"images": torch.randn(4, 3, 16, 16)}),
    "tied": (Tied, lambda: {"tokens": tokens()}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_forward_is_that_of_torch(name):
    make, inputs = CASES[name]
    torch.manual_seed(0)
    module, given = make(), inputs()
    made, _ = run(forward(capture(module, (), given)), module, given)
    np.testing.assert_allclose(made[0], numbers(module(**given)), atol=1e-5)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_step_of_training_is_that_of_torch(make):
    torch.manual_seed(0)
    module, given = Tied(), tokens()
    optimizer = make(module.parameters(), lr=0.01)
    targets = given.roll(-1, 1)
    step = training(
        capture(module, (given,), {}, next_token_loss, targets), optimizer_of(optimizer)
    )
    loss, new, *_ = run(step, module, {"tokens": given, "targets": targets})
    expected = next_token_loss(module(given), targets)
    expected.backward()
    optimizer.step()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    for name, ours in zip(step.argument_names, new, strict=False):
        np.testing.assert_allclose(ours, numbers(module.get_parameter(name)), atol=2e-6)


def test_buffers_that_a_module_changes_are_results():
    module = torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    captured = capture(module, (x,), {}, lambda made: made.square().sum())
    step = training(captured, optimizer_of("sgd"))
    *_, mutated = run(step, module, {"input": x})
    module(x)
    for name, ours in zip(captured.mutated, mutated, strict=True):
        np.testing.assert_allclose(ours, numbers(module.get_buffer(name)), atol=1e-6)
        assert f"updated.{name}" in step.result_names


def test_frozen_parameters_are_not_trained():
    module = MLP()
    module.up.weight.requires_grad_(False)
    step = training(
        capture(module, (torch.randn(4, 32),), {}, lambda made: made.sum()), optimizer_of("sgd")
    )
    assert "updated.up.weight" not in step.result_names
    assert "updated.down.weight" in step.result_names


def test_what_torch_detaches_has_no_gradient():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.a + self.a.detach()

    x = torch.randn(3)
    step = training(capture(Half(), (x,), {}, lambda made: made.sum()), None)
    _, gradient, *_ = run(step, Half(), {"x": x})
    np.testing.assert_allclose(gradient[0], numbers(x), rtol=1e-6)
