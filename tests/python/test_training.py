"""A small transformer learns with foveal's attention what it learns with PyTorch's, and two
deterministic runs are the same to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import foveal
from math_path import rounding_math_path
from package_cases import DEVICES

STEPS, BATCH, WIDTH, HEADS, WORDS = 200, 8, 128, 2, 64
# On a GPU several tiles of keys, whose order decides the bits of dq.
LENGTHS = {"cpu": 48, "cuda": 300}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, attend):
        qkv = self.qkv(F.layer_norm(x, (WIDTH,))).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        x = x + self.out(attend(*qkv.unbind(2)).flatten(2))
        return x + self.narrow(F.gelu(self.wide(F.layer_norm(x, (WIDTH,)))))


def attend_pytorch(q, k, v):
    with rounding_math_path():
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def attend_foveal(q, k, v):
    return foveal.flash_attn.flash_attn_func(q, k, v, causal=True, deterministic=True)


def sentences(generator, length):
    """Each word follows from the two before it, most of the time."""
    words = [torch.randint(WORDS, (BATCH,), generator=generator) for _ in range(2)]
    while len(words) < length + 1:
        follows = (words[-1] + 3 * words[-2]) % WORDS
        strange = torch.rand(BATCH, generator=generator) < 0.05
        any_word = torch.randint(WORDS, (BATCH,), generator=generator)
        words.append(torch.where(strange, any_word, follows))
    return torch.stack(words, 1)


def train(attend, device, dtype):
    torch.manual_seed(0)
    embed, place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTHS[device], WIDTH)
    head = nn.Linear(WIDTH, WORDS)
    layers = nn.ModuleList([Layer(), Layer()])
    model = nn.ModuleList([embed, place, head, layers]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        text = sentences(generator, LENGTHS[device]).to(device)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            x = embed(text[:, :-1]) + place.weight
            for layer in layers:
                x = layer(x, attend)
            loss = F.cross_entropy(head(x).flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_learns_as_with_pytorch(device, dtype):
    expected, _ = train(attend_pytorch, device, dtype)
    losses, parameters = train(attend_foveal, device, dtype)
    assert losses[-20:].mean() < 0.8 * losses[:20].mean()
    # Runs diverge, as two of PyTorch's own do after one rounding; smoothed curves stay together.
    smooth = [x.unfold(0, 20, 20).mean(1) for x in (losses, expected)]
    assert (smooth[0] - smooth[1]).abs().max() < 0.01 * expected[0]
    again, same_parameters = train(attend_foveal, device, dtype)
    assert torch.equal(losses, again)
    assert all(torch.equal(a, b) for a, b in zip(parameters, same_parameters))
