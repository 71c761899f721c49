"""PyTorch: a transformer trained on a DeviceMesh, as partita has planned it.

torchrun --standalone --nproc-per-node 4 examples/torch_train.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import partita as pt
import partita.torch as ptt

MESH = {"data": 2, "model": 2}
WIDTH, VOCABULARY, LENGTH, BATCH = 64, 256, 32, 8


class Block(nn.Module):
    def __init__(self, heads=8):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y, shape = self.norm1(x), (*x.shape[:2], self.heads, -1)
        q, k, v = (
            p(y).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def loss_fn(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_plan():
    with torch.device("meta"):
        model, tokens = Model(), torch.zeros((BATCH, LENGTH), dtype=torch.int64)
    return ptt.plan(
        model,
        tokens,
        loss=loss_fn,
        targets=tokens,
        optimizer="adamw",
        mesh=MESH,
        hardware="h100",
        tactics=[
            pt.DataParallel("data"),
            pt.Megatron("model", vocabulary=False),
            pt.ZeRO(3, "data"),
        ],
    )


def batches(count):
    """Sequences that count up."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        tokens = (first + torch.arange(LENGTH + 1)) % VOCABULARY
        yield tokens[:, :-1], tokens[:, 1:]


def train(plan, mesh, steps=3):
    """Every rank has the whole batch; the module takes its part."""
    torch.manual_seed(0)
    model = plan.parallelize(Model(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens, targets in batches(steps):
        targets = plan.distribute({"targets": targets}, mesh)["targets"]
        with ptt.running(mesh):
            loss = loss_fn(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.full_tensor().item())
    return losses


def main():
    plan = make_plan()
    if int(os.environ.get("RANK", "0")) == 0:
        print(plan)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", tuple(MESH.values()), mesh_dim_names=tuple(MESH))
        losses = train(plan, mesh)
        if dist.get_rank() == 0:
            print("losses", *losses)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
