"""The functions of flash-attn 2.8 over foveal's operators. Nothing is checked here: the engine has
the messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foveal import _torch_ops
from foveal._errors import translated
from foveal._torch_ops import Causal, needs_grad
from foveal.flash_attn._probabilities import signed_probabilities

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]

Result = Tensor | tuple[Tensor, Tensor, Tensor]


def _window(window_size: Sequence[int] | Tensor) -> tuple[int, int]:
    """Any negative size is unbounded."""
    if isinstance(window_size, Tensor):
        window_size = window_size.tolist()
    left, right = window_size
    return max(left, -1), max(right, -1)


def _length(max_seqlen: int | Tensor) -> int:
    return int(max_seqlen) if isinstance(max_seqlen, Tensor) else max_seqlen


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _attend(q: Tensor, k: Tensor, v: Tensor, return_attn_probs: bool, *, dropout_p: float,
            sinks: Tensor | None, causal: bool, window_size, **rest) -> Result:
    shared = dict(rest, sinks=_float(sinks), window_size=_window(window_size),
                  causal=Causal.BOTTOM_RIGHT if causal else Causal.NO,
                  dropout_state=_torch_ops.dropout_state(q) if dropout_p else None)

    def attend(values: Tensor, p: float) -> Tensor:
        options = _torch_ops.options(**shared, dropout_p=p)
        return _torch_ops.ops.forward.default(q, k, values, *options, False, True)[0]

    try:
        out, lse = _torch_ops.attend(
            q, k, v, _torch_ops.options(**shared, dropout_p=dropout_p), want_lse=return_attn_probs)
        if not return_attn_probs:
            return out
        return out, lse, signed_probabilities(
            attend, v, dropout_p, rest.get("cu_seqlens_q"), rest.get("cu_seqlens_k"),
            rest.get("block_table") is not None)
    except RuntimeError as error:
        raise translated(error) from None


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False,
                    window_size: Sequence[int] | Tensor = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False, *, sinks: Tensor | None = None,
                    batch_invariant: bool = False, seqused_q: Tensor | None = None,
                    seqused_k: Tensor | None = None) -> Result:
    """Attention of q [batch, seqlen_q, nheads, headdim] to k, v [batch, seqlen_k, nheads_k, ...].

    `causal` is aligned bottom right. `window_size` (left, right) counts keys beside the diagonal,
    negative is unbounded. `alibi_slopes` fp32 [nheads] or [batch, nheads]. `sinks` [nheads] are
    logits that take mass and add no value. `seqused_q` and `seqused_k` int32 [batch] are the rows
    and keys in use.

    Gives out; with `return_attn_probs` (out, lse [batch, nheads, seqlen_q], S_dmask): the
    probabilities, negative where they were dropped, by a slow path that is meant for tests.
    """
    return _attend(q, k, v, return_attn_probs, dropout_p=dropout_p, softmax_scale=softmax_scale,
                   causal=causal, window_size=window_size, softcap=softcap,
                   alibi_slopes=alibi_slopes, deterministic=deterministic, sinks=sinks,
                   batch_invariant=batch_invariant, seqused_q=seqused_q, seqused_k=seqused_k)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: float | None = None, causal: bool = False,
                             window_size: Sequence[int] | Tensor = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False, **beyond) -> Result:
    """flash_attn_func with k and v in kv [batch, seqlen_k, 2, nheads_k, headdim]."""
    k, v = kv.unbind(-3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, **beyond)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: float | None = None, causal: bool = False,
                              window_size: Sequence[int] | Tensor = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False, **beyond) -> Result:
    """flash_attn_func with q, k and v in qkv [batch, seqlen, 3, nheads, headdim]."""
    q, k, v = qkv.unbind(-3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, **beyond)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: Sequence[int] | Tensor = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: Tensor | None = None, *, sinks: Tensor | None = None,
                           batch_invariant: bool = False, seqused_q: Tensor | None = None,
                           seqused_k: Tensor | None = None) -> Result:
    """Attention of documents packed one after the other: q [total_q, nheads, headdim], k and v
    [total_k, nheads_k, headdim], or pages [num_pages, page_size, nheads_k, headdim] with
    block_table int32 [batch, max_pages]. cu_seqlens int32 [batch + 1] say where documents begin;
    none sees another. lse is [nheads, total_q]. The rest as in flash_attn_func."""
    max_seqlen_q, max_seqlen_k = _length(max_seqlen_q), _length(max_seqlen_k)
    if block_table is not None:  # The pages have no packed order: the lengths are what is used.
        if seqused_k is None:
            seqused_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        cu_seqlens_k, max_seqlen_k = None, 0
    return _attend(q, k, v, return_attn_probs, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, dropout_p=dropout_p,
                   softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                   softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
                   sinks=sinks, batch_invariant=batch_invariant, seqused_q=seqused_q,
                   seqused_k=seqused_k, block_table=block_table)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: float | None = None,
                                    causal: bool = False,
                                    window_size: Sequence[int] | Tensor = (-1, -1),
                                    softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                    deterministic: bool = False, return_attn_probs: bool = False,
                                    **beyond) -> Result:
    """flash_attn_varlen_func with k and v in kv [total_k, 2, nheads_k, headdim]."""
    k, v = kv.unbind(-3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, **beyond)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: float | None = None,
                                     causal: bool = False,
                                     window_size: Sequence[int] | Tensor = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                     deterministic: bool = False, return_attn_probs: bool = False,
                                     **beyond) -> Result:
    """flash_attn_varlen_func with q, k and v in qkv [total, 3, nheads, headdim]."""
    q, k, v = qkv.unbind(-3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs, **beyond)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None,
                            cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None,
                            cache_leftpad: Tensor | None = None,
                            block_table: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: Sequence[int] | Tensor = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None,
                            num_splits: int = 0, return_softmax_lse: bool = False, *,
                            sinks: Tensor | None = None, batch_invariant: bool = False,
                            ) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q [batch, seqlen_q, nheads, headdim] to a cache, and before it, where k and v
    [batch, seqlen_new, nheads_k, headdim] are given, their rotary embedding and append, in place,
    at cache_seqlens.

    The cache is [batch_cache, capacity, nheads_k, headdim], of which `cache_batch_idx` int32
    [batch] may choose rows, or pages [num_pages, page_size, nheads_k, headdim] with `block_table`
    int32 [batch, max_pages]. `cache_seqlens` int32 [batch], or one number for all, is what is in use
    before the call; without it the whole cache is. `cache_leftpad` int32 [batch] keys at the front
    are skipped. `rotary_cos` and `rotary_sin` are [positions, rotary_dim / 2]. The planner chooses
    its splits by itself: `num_splits` is taken and not needed. There is no gradient.

    Gives out; with `return_softmax_lse` (out, lse [batch, nheads, seqlen_q]).
    """
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32,
                                   device=q.device)
    shared = _torch_ops.options(
        sinks=_float(sinks), alibi_slopes=alibi_slopes, seqused_k=cache_seqlens,
        leftpad_k=cache_leftpad, block_table=block_table, cache_batch_idx=cache_batch_idx,
        softmax_scale=softmax_scale, softcap=softcap, window_size=_window(window_size),
        causal=Causal.BOTTOM_RIGHT if causal else Causal.NO, batch_invariant=batch_invariant)
    try:
        if needs_grad(q, k_cache, v_cache, k, v, sinks):
            with torch.no_grad():
                out, lse = _with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin,
                                       rotary_interleaved, shared, return_softmax_lse)
        else:
            out, lse = _with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin,
                                   rotary_interleaved, shared, return_softmax_lse)
    except RuntimeError as error:
        raise translated(error) from None
    return (out, lse) if return_softmax_lse else out


def _with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, rotary_interleaved, shared,
                want_lse):
    if k is None and v is None and rotary_cos is None and rotary_sin is None:
        return _torch_ops.ops.forward.default(q, k_cache, v_cache, *shared, want_lse, False)
    new_tokens = (k, v, rotary_cos, rotary_sin, rotary_interleaved)
    return _torch_ops.ops.forward_append.default(q, k_cache, v_cache, *new_tokens, *shared,
                                                 want_lse)
