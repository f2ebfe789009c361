"""Which calls of scaled_dot_product_attention foveal computes, and which are left to PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_HEADDIM = 512
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda", "meta")


def rank_of(*tensors) -> int:
    """The rank that all are brought to: heads, rows and elements at least."""
    return max(3, *(t.dim() for t in tensors))


def pad_rank(tensor, rank: int):
    for _ in range(rank - tensor.dim()):
        tensor = tensor.unsqueeze(0)
    return tensor


def broadcast(*shapes) -> tuple | None:
    """The common shape of shapes of one length; None where there is none."""
    common = []
    for extents in zip(*shapes):
        extent = 1
        for candidate in extents:
            if candidate != 1:
                if extent not in (1, candidate):
                    return None
                extent = candidate
        common.append(extent)
    return tuple(common)


def why_pytorch(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) -> str:
    """Why a call is left to PyTorch's own function; empty where foveal computes it."""
    tensors = (query, key, value)
    if not all(isinstance(t, Tensor) and t.layout == torch.strided and not t.is_nested
               for t in tensors):
        return "query, key and value are not all dense tensors"
    if query.device.type not in DEVICES or any(t.device != query.device for t in tensors):
        return f"tensors on {', '.join(sorted({str(t.device) for t in tensors}))}"
    if query.dtype not in DTYPES or any(t.dtype != query.dtype for t in tensors):
        return (f"{', '.join(str(t.dtype).removeprefix('torch.') for t in tensors)}: foveal takes "
                "float16, bfloat16 or float32, all alike")
    if any(t.dim() < 2 for t in tensors):
        return "fewer than 2 dimensions"
    return (_headdim_reason(query, key, value) or _shape_reason(query, key, value, enable_gqa)
            or _mask_reason(query, key, value, attn_mask, is_causal)
            or ("" if 0 <= dropout_p <= 1 else f"dropout_p {dropout_p}"))


def _headdim_reason(query, key, value) -> str:
    headdim, headdim_v = query.shape[-1], value.shape[-1]
    if headdim == 0 or headdim > MAX_HEADDIM:
        return f"headdim {headdim}: foveal takes 1 to {MAX_HEADDIM}"
    if key.shape[-1] != headdim:
        return f"query has headdim {headdim} and key {key.shape[-1]}"
    if headdim_v != headdim:
        return f"headdim_v {headdim_v} is not headdim {headdim}"
    return ""


def _shape_reason(query, key, value, enable_gqa: bool) -> str:
    if key.shape[-2] != value.shape[-2]:
        return f"key has {key.shape[-2]} rows and value {value.shape[-2]}"
    rank = rank_of(query, key, value)
    shapes = [pad_rank(t, rank).shape for t in (query, key, value)]
    if broadcast(*(shape[:-3] for shape in shapes)) is None:
        return "batch dimensions that do not broadcast"
    heads, heads_k, heads_v = (shape[-3] for shape in shapes)
    if not enable_gqa:
        if broadcast(*((h,) for h in (heads, heads_k, heads_v))) is None:
            return f"{heads} heads on {heads_k} without enable_gqa"
    elif heads_k != heads_v or heads_k == 0 or heads % heads_k != 0:
        return f"{heads} query heads on {heads_k} key and {heads_v} value heads"
    return ""


def _mask_reason(query, key, value, attn_mask, is_causal) -> str:
    if attn_mask is None:
        return ""
    if is_causal:
        return "attn_mask and is_causal together"
    if not isinstance(attn_mask, Tensor) or attn_mask.device != query.device:
        return "attn_mask is no tensor of query's device"
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"attn_mask of {attn_mask.dtype}"
    rank = rank_of(query, key, value)
    if attn_mask.dim() > rank:
        return f"attn_mask has {attn_mask.dim()} dimensions"
    lead = broadcast(*(pad_rank(t, rank).shape[:-2] for t in (query, value)))
    full = (*(lead or query.shape[:-2]), query.shape[-2], key.shape[-2])
    if any(have != 1 and have != want
           for have, want in zip(pad_rank(attn_mask, rank).shape, full)):
        return f"attn_mask {tuple(attn_mask.shape)} does not broadcast to the scores {full}"
    return ""


def engine_takes(query, key, value, attn_mask, is_causal, enable_gqa) -> bool:
    """Whether the bare operator computes a call itself, as csrc/sdpa.cpp decides it."""
    tensors = (query, key, value)
    same_batch = all(t.dim() == 4 and t.shape[0] == query.shape[0] for t in tensors)
    return (same_batch and (enable_gqa or key.shape[1] == query.shape[1])
            and not why_pytorch(*tensors, attn_mask, 0.0, is_causal, enable_gqa))
