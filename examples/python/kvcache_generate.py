"""Greedy generation with a paged cache: one call a step appends the new key and value and attends.

    python examples/python/kvcache_generate.py
"""

import torch
from torch import nn

from foveal.flash_attn import flash_attn_func, flash_attn_with_kvcache

VOCABULARY, HEADS, HEADS_K, HEADDIM, PAGE_SIZE = 64, 4, 2, 32, 16


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        dim = HEADS * HEADDIM
        self.embed, self.head = nn.Embedding(VOCABULARY, dim), nn.Linear(dim, VOCABULARY)
        self.qkv = nn.Linear(dim, (HEADS + 2 * HEADS_K) * HEADDIM)

    def forward(self, tokens, attend):
        x = self.embed(tokens)
        qkv = self.qkv(x).unflatten(-1, (-1, HEADDIM))
        return self.head(x + attend(*qkv.split([HEADS, HEADS_K, HEADS_K], 2)).flatten(2))


@torch.inference_mode()
def generate(model, prompt, steps):
    batch, used = prompt.shape[0], 0
    pages = -(-(prompt.shape[1] + steps) // PAGE_SIZE)
    cache = [torch.zeros(batch * pages, PAGE_SIZE, HEADS_K, HEADDIM) for _ in range(2)]
    table = torch.randperm(batch * pages, dtype=torch.int32).view(batch, pages)

    def attend(q, k, v):
        return flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=used, block_table=table,
                                       causal=True)

    tokens = new = prompt
    for _ in range(steps):
        logits = model(new, attend)[:, -1]
        used, new = used + new.shape[1], logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, new], 1)
    return tokens


@torch.inference_mode()
def generate_without_cache(model, tokens, steps):
    for _ in range(steps):
        logits = model(tokens, lambda q, k, v: flash_attn_func(q, k, v, causal=True))[:, -1]
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens


if __name__ == "__main__":
    torch.manual_seed(0)
    model, prompt = Decoder(), torch.randint(VOCABULARY, (2, 21))
    tokens = generate(model, prompt, 24)
    assert torch.equal(tokens, generate_without_cache(model, prompt, 24))
    print("the same tokens as without a cache:", tokens[:, 21:].tolist())
