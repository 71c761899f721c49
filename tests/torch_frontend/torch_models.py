"""Small modules of torch that the tests plan, with example inputs."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width=32, hidden=64):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Experts(nn.Module):
    """A mixture of experts that computes all experts for all tokens, and mixes the best two."""

    def __init__(self, width=32, hidden=64, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * 0.1)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        best, chosen = scores.topk(2, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best)
        hidden = torch.relu(torch.einsum("bsd,edh->bseh", x, self.up))
        made = torch.einsum("bseh,ehd->bsed", hidden, self.down)
        return torch.einsum("bsed,bse->bsd", made, weights)


class Block(nn.Module):
    def __init__(self, width, heads, experts):
        super().__init__()
        self.width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.mlp = Experts(width) if experts else MLP(width)

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            proj(x).view(batch, length, -1, self.width).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(made.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, layers=2, width=32, heads=4, vocabulary=64, experts=False):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Images(nn.Module):
    """A vision transformer: patches by a convolution, and a transformer on them."""

    def __init__(self, width=32, heads=4, classes=8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(torch.zeros(1, 16, width))
        self.layers = nn.ModuleList(Block(width, heads, False) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def tokens(batch=8, length=8, vocabulary=64):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.manual_seed(1))


def next_token_loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
