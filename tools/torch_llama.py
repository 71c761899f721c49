"""Llama 3 8B of Hugging Face, a step of training planned for a mesh of 8 x 8: how long that takes.

The shapes are those of AutoParallel's own example: 32 layers, 16 sequences of 8192 tokens, 64
GPUs. Times are of the process, from the module on the meta device to the plan.

    python -m tools.torch_llama [--layers 32] [--search [--budget 500]]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import partita as pt

CONFIG = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "use_cache": False,
}
BATCH, LENGTH = 16, 8192

EXPERT: list[pt.Tactic] = [
    pt.DataParallel("data"),
    pt.SequenceParallel("model"),
    pt.ZeRO(3, "data"),
]


def module(layers: int) -> Any:
    """The model on the meta device, in bfloat16."""
    import torch
    import transformers

    config = transformers.LlamaConfig(num_hidden_layers=layers, **CONFIG)
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()


def loss(outputs: Any, targets: Any) -> Any:
    """Of the next token."""
    import torch

    return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


@contextlib.contextmanager
def timed(times: dict[str, float], what: str) -> Iterator[None]:
    """Notes how long something takes, in seconds of the process."""
    start = time.process_time()
    yield
    times[what] = time.process_time() - start


def main() -> None:
    """Plans, and prints what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--search", action="store_true", help="search, in place of the expert")
    parser.add_argument("--budget", type=int, default=500, help="plans that it evaluates")
    asked = parser.parse_args()
    import torch

    from partita.torch import api

    model = module(asked.layers)
    times: dict[str, float] = {}
    tokens = torch.zeros((BATCH, LENGTH), dtype=torch.int64, device="meta")
    with timed(times, "capture"):
        step, captured = api.stepped(model, tokens, None, loss, tokens, "adamw")
    tactics = [pt.AutomaticPartition(budget=asked.budget)] if asked.search else EXPERT
    with timed(times, "trace, analyse, plan"):
        made = api.planned(
            step,
            captured,
            mesh="data=8,model=8",
            hardware="h100",
            tactics=tactics,
            memory=None,
            seed=0,
            budget=asked.budget,
            target="dtensor",
            progress=lambda *_: None,
        )
    with timed(times, "placements"):
        placements = made.placements
    print(f"Llama 3 8B, {asked.layers} layers, {len(made.plan.program.operations)} operations")
    for done in made.history:
        print(done.name + (f", {done.search.evaluations} plans evaluated" if done.search else ""))
    print(", ".join(f"{what} {seconds:.1f} s" for what, seconds in times.items()))
    print(made.estimate)
    print(dict(Counter(c.kind for c in made.collectives)))
    for name, placed in placements.items():
        if "layers." not in name or "layers.0." in name:
            print(f"{name:48} {placed}")


if __name__ == "__main__":
    main()
