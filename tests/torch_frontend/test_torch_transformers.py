"""Models of Hugging Face, from their configurations: planned, and trained in two processes."""

import pytest
import torch

import partita as pt
import partita.torch as ptt
from torch_frontend.torch_workers import Case, trained

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}


def language(model):
    given = torch.randint(0, 256, (4, 16), generator=torch.manual_seed(1))
    return model.train(), {"input_ids": given}, given.roll(-1, 1)


def llama():
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=128, num_key_value_heads=4, use_cache=False
    )
    return language(transformers.LlamaForCausalLM(config))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=8, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return language(transformers.GPT2LMHeadModel(config))


def vit():
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=8, intermediate_size=128,
        image_size=32, patch_size=8, num_labels=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    images = torch.randn(4, 3, 32, 32, generator=torch.manual_seed(1))
    model = transformers.ViTForImageClassification(config)
    return model.train(), {"pixel_values": images}, torch.arange(4)


def loss(outputs, targets):
    logits = outputs.logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def planned(make, mesh, *tactics, **options):
    torch.manual_seed(0)
    module, inputs, targets = make()
    return ptt.plan(
        module,
        kwargs=inputs,
        mesh=mesh,
        hardware="h100",
        tactics=tactics,
        loss=loss,
        targets=targets,
        optimizer="adamw",
        **options,
    )


SEARCH = pt.AutomaticPartition(axes=["model"], budget=60)
FSDP, MEGATRON = pt.FullyShardedDataParallel("data"), pt.Megatron("model", vocabulary=False)


def test_the_projections_of_gpt2_that_are_fused_exchange_parts_which_dtensor_does_not():
    plan = planned(gpt2, "model=2", MEGATRON)
    (reason,) = plan.refusals
    assert "c_attn.output" in reason and "collective_permute" in reason
    with pytest.raises(pt.UnsupportedError, match=r"c_attn\.output"):
        planned(gpt2, "model=2", MEGATRON, target="dtensor")


def test_models_train_in_two_processes_as_in_one():
    hidden = pt.Megatron("model", patterns=["*.c_fc.weight"], vocabulary=False)
    cases = {
        "llama, fsdp": (llama, "data=2", FSDP),
        "llama, megatron": (llama, "model=2", MEGATRON),
        "gpt2, fsdp": (gpt2, "data=2", FSDP),
        "gpt2, megatron": (gpt2, "model=2", hidden),
        "vit, fsdp": (vit, "data=2", FSDP),
        "vit, megatron": (vit, "model=2", MEGATRON),
    }
    plans = {name: planned(make, mesh, tactic) for name, (make, mesh, tactic) in cases.items()}
    # The nearest plan that the refusal of `MEGATRON` names.
    plans["gpt2, searched"] = planned(gpt2, "model=2", SEARCH, memory="1MiB", target="dtensor")
    cases["gpt2, searched"] = gpt2, "model=2", SEARCH
    made = [
        Case(name, plans[name].distribution, make, loss) for name, (make, _, _) in cases.items()
    ]
    found = trained(made, 2)
    wrong = {
        name: result
        for name, result in found.items()
        if "error" in result or max(result["loss"], result["parameters"]) > 1e-5
    }
    assert len(found) == len(cases) and not wrong
    compared = {
        name: plan.compare(found[name]["issued"])
        for name, plan in plans.items()
        if "searched" not in name
    }
    assert not {name: each.left_over for name, each in compared.items() if each.left_over}
