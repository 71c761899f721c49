"""PyTorch: Llama of Hugging Face, from its configuration, planned for 64 GPUs without any.

python examples/torch_llama.py
partita plan examples/torch_llama.py:make --frontend torch --mesh data=8,model=8 --hardware h100
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import partita as pt
import partita.torch as ptt

CONFIG = LlamaConfig(
    vocab_size=32768,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=8,
    use_cache=False,
)


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


def make(config=CONFIG, batch=16, length=2048):
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).train()
        tokens = torch.zeros((batch, length), dtype=torch.int64)
    return {
        "module": model,
        "args": tokens,
        "loss": loss,
        "targets": tokens,
        "optimizer": "adamw",
    }


def main():
    plan = ptt.plan(
        **make(),
        mesh={"data": 8, "model": 8},
        hardware="h100",
        tactics=[pt.DataParallel("data"), pt.SequenceParallel("model"), pt.ZeRO(3, "data")],
    )
    print(plan)
    for name, placements in plan.placements.items():
        print(name, *placements)
    return plan


if __name__ == "__main__":
    main()
