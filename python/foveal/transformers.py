"""foveal among the attention implementations of Hugging Face transformers.

    import foveal.transformers
    foveal.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="foveal")

Masks that are padding, a causal or sliding window, or packed documents reach the engine as lengths,
so that keys outside of them are never read; any other mask is handed over as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foveal import _torch_ops
from foveal._errors import translated
from foveal._torch_ops import Causal
from foveal._transformers_masks import Documents, Lengths, lengths_or_mask, read_mask

__all__ = ["attention_forward", "attention_mask", "register"]


def register(name: str = "foveal") -> None:
    """Makes `attn_implementation=name` known to transformers. May be called again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                   kv_offset: int = 0, **arguments: Any) -> Tensor | None:
    """What transformers' mask interface calls once a forward pass. None: causal, top left."""
    return lengths_or_mask(batch_size, q_length, kv_length, q_offset, kv_offset, arguments)


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Tensor | None, dropout: float = 0.0,
                      scaling: float | None = None, is_causal: bool | None = None,
                      softcap: float | None = None, s_aux: Tensor | None = None,
                      position_bias: Tensor | None = None,
                      **kwargs: Any) -> tuple[Tensor, None]:
    """What transformers' attention interface calls: query, key and value are [batch, heads, seqlen,
    headdim], the result is [batch, seqlen, heads, headdim]."""
    shared = dict(softmax_scale=scaling, softcap=softcap or 0.0, dropout_p=dropout,
                  sinks=None if s_aux is None else s_aux.float(),
                  dropout_state=_torch_ops.dropout_state(query) if dropout else None)
    mask = read_mask(attention_mask)
    if kwargs.get("cu_seq_lens_q") is not None and not isinstance(mask, Tensor):
        window = None if mask is None else mask.window
        mask = Documents(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"], window)
    try:
        if isinstance(mask, Documents):
            return _packed(query, key, value, mask, shared), None
        if isinstance(mask, Lengths):
            shared |= mask.options()
        elif mask is None:
            causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
            shared["causal"] = Causal.TOP_LEFT if causal and query.shape[2] > 1 else Causal.NO
        shared["bias"] = _bias(mask, position_bias, query)
        out, _ = _torch_ops.attend(query, key, value, _torch_ops.options(**shared, bhsd=True))
    except RuntimeError as error:
        raise translated(error) from None
    return out.transpose(1, 2).contiguous(), None


def _packed(query, key, value, documents: Documents, shared: dict) -> Tensor:
    """Documents one after the other, the batch too."""
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    out, _ = _torch_ops.attend(q, k, v, _torch_ops.options(**shared, **documents.options()))
    return out.unflatten(0, (query.shape[0], query.shape[2]))


def _bias(mask: Tensor | Lengths | None, position_bias: Tensor | None, query: Tensor):
    """A mask over all scores (bool or added to them), with a learned bias of positions."""
    mask = mask if isinstance(mask, Tensor) else None
    if position_bias is None or mask is None:
        bias = mask if position_bias is None else position_bias
    elif mask.dtype == torch.bool:
        bias = torch.where(mask, position_bias, float("-inf"))
    else:
        bias = position_bias + mask
    if bias is not None and bias.dtype not in (torch.bool, query.dtype):
        bias = bias.float()
    return bias
