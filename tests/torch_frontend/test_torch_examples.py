"""The examples for PyTorch."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_llama_of_hugging_face_is_planned_from_its_configuration():
    pytest.importorskip("transformers")
    example = runpy.run_path(str(EXAMPLES / "torch_llama.py"))
    plan = example["main"]()
    layer = "model.layers.0"
    assert plan.placements[f"{layer}.mlp.up_proj.weight"][1] == Shard(0)
    assert plan.placements[f"{layer}.mlp.down_proj.weight"][1] == Shard(1)
    assert plan.placements[f"{layer}.input_layernorm.weight"] == (Shard(0), Replicate())


def test_the_script_trains_in_four_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, "--standalone", str(EXAMPLES / "torch_train.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(word) for word in done.stdout.split("losses ")[-1].split()]
    assert losses == pytest.approx(alone(runpy.run_path(str(EXAMPLES / "torch_train.py"))), 1e-5)
    assert losses[-1] < losses[0]


def alone(example):
    """The losses of the script's model in one process, without a plan."""
    torch.manual_seed(0)
    model, losses = example["Model"](), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for tokens, targets in example["batches"](3):
        loss = example["loss_fn"](model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
