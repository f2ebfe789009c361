"""scaled_dot_product_attention in the place of PyTorch's."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal import _torch_ops
from foveal._errors import is_not_taken, translated
from foveal._explanation import note_pytorch
from foveal._sdpa_rules import broadcast, pad_rank, rank_of, why_pytorch

# The bare operator, without the Python frame of OpOverload.__call__.
_sdpa = _torch_ops.ops.sdpa.default._op
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled = torch._C._is_any_autocast_enabled


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor,
                                 attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by foveal.

    What foveal has no kernel for by its nature (float64, a head size of 0, above 512, or other in
    value than in key) and what PyTorch refuses is left to PyTorch's own function;
    `foveal.explain(foveal.scaled_dot_product_attention, query, key, value, ...)` says which.
    """
    try:
        if not (_is_compiling() or dropout_p or _is_autocast_enabled() or (_is_grad_enabled() and (
                query.requires_grad or key.requires_grad or value.requires_grad
                or (attn_mask is not None and attn_mask.requires_grad)))):
            return _sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    except AttributeError:  # Not tensors: PyTorch has the message.
        pass
    except RuntimeError as error:
        if not is_not_taken(error):
            raise translated(error) from None
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """The same for any arguments: casts, broadcasts, folds dimensions, differentiates."""
    given = (query, key, value, attn_mask)
    query, key, value, attn_mask = _autocast(*given)
    if reason := why_pytorch(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        note_pytorch(reason)
        return _by_pytorch(*given, dropout_p, is_causal, scale, enable_gqa)
    batch = broadcast(*(pad_rank(t, rank_of(query, key, value)).shape[:-3]
                        for t in (query, key, value)))
    q, k, v = _four_dimensional(query, key, value, batch, enable_gqa)
    mask = None if attn_mask is None else _four_dimensional_mask(attn_mask, batch)
    try:
        if dropout_p or _torch_ops.needs_grad(q, k, v, mask):
            out, _ = _torch_ops.attend(q, k, v, _torch_ops.options(
                bias=mask, softmax_scale=scale, dropout_p=dropout_p, bhsd=True,
                dropout_state=_torch_ops.dropout_state(q) if dropout_p else None,
                causal=_torch_ops.Causal.TOP_LEFT if is_causal else _torch_ops.Causal.NO))
        else:
            out = _torch_ops.ops.sdpa.default(q, k, v, mask, is_causal, scale, enable_gqa)
    except RuntimeError as error:
        if is_not_taken(error):
            return _by_pytorch(*given, dropout_p, is_causal, scale, enable_gqa)
        raise translated(error) from None
    if rank_of(query, key, value) == 4:
        return out
    out = out.reshape(*batch, *out.shape[1:])
    return out if max(t.dim() for t in (query, key, value)) > 2 else out[0]


def _by_pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                          scale=scale, enable_gqa=enable_gqa)


def _autocast(query, *others):
    """Under autocast every floating tensor but float64 in its type, as for PyTorch's function."""
    tensors = (query, *others)
    if not (isinstance(query, Tensor) and query.device.type in ("cpu", "cuda")
            and torch.is_autocast_enabled(query.device.type)):
        return tensors
    dtype = torch.get_autocast_dtype(query.device.type)
    return tuple(t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point()
                 and t.dtype != torch.float64 else t for t in tensors)


def _four_dimensional(query, key, value, batch, enable_gqa: bool):
    rank = rank_of(query, key, value)
    padded = [pad_rank(t, rank) for t in (query, key, value)]
    heads = [t.shape[-3] for t in padded]
    if not enable_gqa:
        heads = [broadcast(*((h,) for h in heads))[0]] * 3
    return [t if t.dim() == 4 and t.shape[0] == batch[0] and t.shape[1] == h
            else t.expand(*batch, h, *t.shape[-2:]).reshape(-1, h, *t.shape[-2:])
            if math.prod(batch) > 0 else t.new_empty((0, h, *t.shape[-2:]))
            for t, h in zip(padded, heads)]


def _four_dimensional_mask(mask, batch):
    mask = pad_rank(mask, len(batch) + 3)
    lead = mask.shape[:-3]
    if all(extent == 1 for extent in lead):
        return mask.reshape(1, *mask.shape[-3:])
    if len(batch) == 1:
        return mask
    return mask.expand(*batch, *mask.shape[-3:]).reshape(math.prod(batch), *mask.shape[-3:])
