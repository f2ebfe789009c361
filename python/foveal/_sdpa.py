"""scaled_dot_product_attention in the place of PyTorch's."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal import _torch_ops
from foveal._errors import is_not_taken, translated
from foveal._explanation import note_pytorch

MAX_HEADDIM = 512
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda", "meta")

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
    batch = _broadcast(*(_padded(t, _rank(query, key, value)).shape[:-3]
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
    if _rank(query, key, value) == 4:
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


# -- Shapes ----------------------------------------------------------------------------------------


def _rank(*tensors) -> int:
    """The rank that all are brought to: heads, rows and elements at least."""
    return max(3, *(t.dim() for t in tensors))


def _padded(tensor, rank: int):
    for _ in range(rank - tensor.dim()):
        tensor = tensor.unsqueeze(0)
    return tensor


def _broadcast(*shapes) -> tuple | None:
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


def _four_dimensional(query, key, value, batch, enable_gqa: bool):
    rank = _rank(query, key, value)
    padded = [_padded(t, rank) for t in (query, key, value)]
    heads = [t.shape[-3] for t in padded]
    if not enable_gqa:
        heads = [_broadcast(*((h,) for h in heads))[0]] * 3
    return [t if t.dim() == 4 and t.shape[0] == batch[0] and t.shape[1] == h
            else t.expand(*batch, h, *t.shape[-2:]).reshape(-1, h, *t.shape[-2:])
            if math.prod(batch) > 0 else t.new_empty((0, h, *t.shape[-2:]))
            for t, h in zip(padded, heads)]


def _four_dimensional_mask(mask, batch):
    mask = _padded(mask, len(batch) + 3)
    lead = mask.shape[:-3]
    if all(extent == 1 for extent in lead):
        return mask.reshape(1, *mask.shape[-3:])
    if len(batch) == 1:
        return mask
    return mask.expand(*batch, *mask.shape[-3:]).reshape(math.prod(batch), *mask.shape[-3:])


# -- What is PyTorch's -----------------------------------------------------------------------------


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
    rank = _rank(query, key, value)
    shapes = [_padded(t, rank).shape for t in (query, key, value)]
    if _broadcast(*(shape[:-3] for shape in shapes)) is None:
        return "batch dimensions that do not broadcast"
    heads, heads_k, heads_v = (shape[-3] for shape in shapes)
    if not enable_gqa:
        if _broadcast(*((h,) for h in (heads, heads_k, heads_v))) is None:
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
    rank = _rank(query, key, value)
    if attn_mask.dim() > rank:
        return f"attn_mask has {attn_mask.dim()} dimensions"
    lead = _broadcast(*(_padded(t, rank).shape[:-2] for t in (query, value)))
    full = (*(lead or query.shape[:-2]), query.shape[-2], key.shape[-2])
    if any(have != 1 and have != want
           for have, want in zip(_padded(attn_mask, rank).shape, full)):
        return f"attn_mask {tuple(attn_mask.shape)} does not broadcast to the scores {full}"
    return ""


def engine_takes(query, key, value, attn_mask, is_causal, enable_gqa) -> bool:
    """Whether the bare operator computes a call itself, as csrc/sdpa.cpp decides it."""
    tensors = (query, key, value)
    same_batch = all(t.dim() == 4 and t.shape[0] == query.shape[0] for t in tensors)
    return (same_batch and (enable_gqa or key.shape[1] == query.shape[1])
            and not why_pytorch(*tensors, attn_mask, 0.0, is_causal, enable_gqa))
