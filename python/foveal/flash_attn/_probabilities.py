"""The probabilities of a call, for tests: attention to one-hot values gives them column by column,
so that masks, softcap, sinks and dropout are the engine's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveal._errors import Unsupported


def _token_positions(v: Tensor, cu_seqlens_k: Tensor | None) -> tuple[Tensor, int]:
    """The position of each token of v within its sequence, and the largest number of positions."""
    if cu_seqlens_k is None:
        positions = torch.arange(v.shape[1], device=v.device).expand(v.shape[:2])
        return positions, v.shape[1]
    starts = cu_seqlens_k.long()
    tokens = torch.arange(v.shape[0], device=v.device)
    sequence = torch.bucketize(tokens, starts[1:], right=True).clamp(max=len(starts) - 2)
    return tokens - starts[sequence], int((starts[1:] - starts[:-1]).max())


def _matrix(attend: Callable[[Tensor], Tensor], v: Tensor, cu_seqlens_k: Tensor | None) -> Tensor:
    """out for one-hot values, a slice of keys at a time: [..., nheads_q, keys] in fp32."""
    positions, count = _token_positions(v, cu_seqlens_k)
    width, columns = v.shape[-1], []
    for start in range(0, count, width):
        places = torch.arange(start, start + width, device=v.device)
        one_hot = (positions[..., None] == places).to(v.dtype)
        columns.append(attend(one_hot.unsqueeze(-2).expand(v.shape)))
    return torch.cat(columns, -1)[..., :count]


def _by_sequence(matrix: Tensor, cu_seqlens_q: Tensor | None) -> Tensor:
    """[batch, nheads, seqlen_q, keys], zeros after the end of shorter sequences."""
    if cu_seqlens_q is None:
        return matrix.transpose(1, 2)
    bounds = cu_seqlens_q.tolist()
    rows = [matrix[begin:end] for begin, end in zip(bounds, bounds[1:])]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)


@torch.no_grad()
def signed_probabilities(attend: Callable[[Tensor, float], Tensor], v: Tensor, dropout_p: float,
                         cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
                         paged: bool = False) -> Tensor:
    """p [batch, nheads_q, seqlen_q, seqlen_k] in fp32, negative where dropout drops it. `attend`
    gives the call's out for other values and another dropout probability."""
    if paged:
        raise Unsupported("return_attn_probs with block_table: it takes keys in one piece")
    p = _matrix(lambda values: attend(values, 0.0), v, cu_seqlens_k)
    if dropout_p > 0:
        kept = _matrix(lambda values: attend(values, dropout_p), v, cu_seqlens_k)
        p = torch.where(kept == 0, -p, p)
    return _by_sequence(p, cu_seqlens_q)
