"""Training on documents of different lengths, packed: no padding is computed, and no document sees
another.

    python examples/python/varlen_training.py
"""

import torch
from torch import nn

from foveal.flash_attn import flash_attn_func, flash_attn_varlen_qkvpacked_func
from foveal.flash_attn.bert_padding import pad_input, unpad_input

HEADS, DIM = 4, 64


def attend_packed(qkv, cu_seqlens, longest):
    return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, longest, causal=True)


def attend_padded(qkv, lengths):
    return flash_attn_func(*qkv.unbind(2), causal=True, seqused_q=lengths, seqused_k=lengths)


def main():
    torch.manual_seed(0)
    mask = torch.arange(96) < torch.tensor([96, 17, 55, 3])[:, None]
    tokens = torch.randint(32, mask.shape)
    model = nn.ModuleDict({"embed": nn.Embedding(32, DIM), "qkv": nn.Linear(DIM, 3 * DIM),
                           "head": nn.Linear(DIM, 32)})
    loss_of = nn.CrossEntropyLoss()

    def logits(x, attend):
        qkv = model["qkv"](x).unflatten(-1, (3, HEADS, DIM // HEADS))
        return model["head"](x + attend(qkv).flatten(-2))

    packed, indices, cu_seqlens, longest, lengths = unpad_input(model["embed"](tokens), mask)
    out = logits(packed, lambda qkv: attend_packed(qkv, cu_seqlens, longest))
    padded = logits(model["embed"](tokens), lambda qkv: attend_padded(qkv, lengths))
    difference = (pad_input(out, indices, *mask.shape) - padded)[mask].abs().max().item()
    print(f"{mask.numel()} places, {len(indices)} tokens; packed and padded differ by {difference}")
    assert difference < 1e-4

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    targets = tokens[mask].roll(1)
    for step in range(8):
        x = unpad_input(model["embed"](tokens), mask)[0]
        loss = loss_of(logits(x, lambda qkv: attend_packed(qkv, cu_seqlens, longest)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    assert main() < 3.5
