"""Between padded [batch, seqlen, ...] and packed [total, ...] tensors, as flash_attn.bert_padding.
Everything is differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """The rows of `input` that `indices` [total] names."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros [first_axis_dim, ...] with `values` in the rows that `indices` names."""
    zeros = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return zeros.index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens whose mask [batch, seqlen] is not 0, one sequence after the other.

    Gives (tokens [total, ...], their indices in the flattened input, cu_seqlens int32 [batch + 1],
    the longest length, the lengths that are used int32 [batch]). Tokens of `unused_mask` are kept
    too, but not counted as used.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, cu_seqlens, longest, attention_mask.sum(-1, dtype=torch.int32)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The way back: [batch, seqlen, ...] with zeros where no token is."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))
