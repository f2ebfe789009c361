"""A training loop that changes one import line: the losses are those of PyTorch's own attention.

    python examples/python/sdpa.py
"""

import torch
from torch import nn
from torch.nn import functional as F

import foveal


class Block(nn.Module):
    def __init__(self, attention, dim=64, heads=4):
        super().__init__()
        self.attention, self.heads = attention, heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = self.attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


def train(attention, steps=10):
    """Learns to repeat the token of four places before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 64), Block(attention), Block(attention),
                          nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(32, (8, 64))
        logits = model(tokens)[:, 4:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, :-4].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    expected = train(F.scaled_dot_product_attention)
    losses = train(foveal.scaled_dot_product_attention)
    for step, (ours, theirs) in enumerate(zip(losses, expected)):
        print(f"step {step}: loss {ours:.4f}, with PyTorch's attention {theirs:.4f}")
    assert all(abs(a - b) < 1e-3 for a, b in zip(losses, expected))
    q = torch.randn(8, 4, 64, 16)
    print(foveal.explain(foveal.scaled_dot_product_attention, q, q, q, is_causal=True))
