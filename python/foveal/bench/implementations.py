"""Who is timed. An implementation gives attention over a workload's inputs, differentiable where
the workload trains, or says why it can't."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import metadata

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.bench.inputs import Inputs, sequences
from foveal.bench.manifest import Workload


class Unsupported(Exception):
    """An implementation that can't compute a workload: the row is left out."""


Attend = Callable[[Inputs], Tensor]  # -> out, in the order of inputs.q


def _visible(rows: int, keys: int, workload: Workload, device) -> Tensor | None:
    """bool [rows, keys]; None where everything is seen."""
    left, right = workload.window
    right = 0 if workload.causal and (right < 0 or right > 0) else right
    if (left < 0 or left >= keys) and (right < 0 or rows == 1 and right == 0):
        return None
    distance = torch.arange(keys, device=device) - (
        torch.arange(rows, device=device)[:, None] + keys - rows)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    return seen & (distance <= right) if right >= 0 else seen


def _foveal(workload: Workload, device: str) -> Attend:
    import foveal

    options = dict(causal=workload.causal, window_size=workload.window, softcap=workload.softcap,
                   deterministic=workload.deterministic, batch_invariant=workload.batch_invariant)

    def attend(inputs: Inputs) -> Tensor:
        packed = dict(cu_seqlens_q=inputs.cu_seqlens, cu_seqlens_k=inputs.cu_seqlens,
                      max_seqlen_q=workload.seqlen_q, max_seqlen_k=workload.seqlen_k)
        return foveal.forward(inputs.q, inputs.k, inputs.v, sinks=inputs.sinks,
                              seqused_k=inputs.seqused_k, block_table=inputs.block_table,
                              **(packed if workload.layout == "thd" else {}), **options)

    return attend


def _torch(workload: Workload, device: str, backend: str | None = None) -> Attend:
    """F.scaled_dot_product_attention: the whole batch where the sequences are of one length, else
    one sequence after the other, without their padding."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if workload.softcap or workload.sinks:
        raise Unsupported("it has neither softcap nor sinks")
    if workload.batch_invariant:
        raise Unsupported("it does not promise batch invariance")
    lengths = workload.lengths()
    whole = workload.layout in ("bshd", "bhsd", "packed_qkv") and len(set(lengths)) == 1 and (
        lengths[0][1] == workload.seqlen_k)

    @functools.cache
    def masking(rows: int, keys: int) -> dict:
        if workload.causal and max(workload.window) < 0 and rows == keys:
            return dict(is_causal=True)
        return dict(attn_mask=_visible(rows, keys, workload, device))

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of BHSD tensors."""
        return F.scaled_dot_product_attention(q, k, v, **masking(q.shape[-2], k.shape[-2]),
                                              enable_gqa=q.shape[-3] != k.shape[-3])

    def attend(inputs: Inputs) -> Tensor:
        if whole:
            return one(*(t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))).transpose(1, 2)
        parts = [one(*(t.transpose(0, 1)[None] for t in part))[0].transpose(0, 1)
                 for part in sequences(workload, inputs)]
        return torch.cat(parts) if workload.layout == "thd" else torch.stack(parts)

    if backend is None:
        return attend
    chosen = getattr(SDPBackend, backend)

    def attend_by_backend(inputs: Inputs) -> Tensor:
        with sdpa_kernel(chosen):
            return attend(inputs)

    return attend_by_backend


def _flex(workload: Workload, device: str) -> Attend:
    """flex_attention, compiled: windows and documents as block masks, softcap as a score function,
    sinks by its lse."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if workload.layout == "paged" or workload.seqused_k or workload.batch_invariant:
        raise Unsupported("its peer here takes sequences of one length, or documents")
    left, right = workload.window
    right = 0 if workload.causal else right
    rows, keys = workload.seqlen_q, workload.seqlen_k
    document = None
    if workload.layout == "thd":
        lengths = torch.tensor(workload.doc_lens)
        document = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(device)
        rows = keys = int(lengths.sum())

    def visible(b, h, i, j):
        seen = j >= (i + keys - rows - left if left >= 0 else 0)
        if right >= 0:
            seen = seen & (j <= i + keys - rows + right)
        return seen if document is None else seen & (document[i] == document[j])

    def cap(score, b, h, i, j):
        return workload.softcap * torch.tanh(score / workload.softcap)

    plain = document is None and left < 0 and right < 0
    mask = None if plain else create_block_mask(visible, None, None, rows, keys, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(inputs: Inputs) -> Tensor:
        if document is None:
            q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
        else:
            q, k, v = (t.transpose(0, 1)[None] for t in (inputs.q, inputs.k, inputs.v))
        out = compiled(q, k, v, block_mask=mask, score_mod=cap if workload.softcap else None,
                       enable_gqa=q.shape[1] != k.shape[1], return_lse=workload.sinks)
        if workload.sinks:
            out, lse = out
            kept = torch.sigmoid(lse - inputs.sinks[:, None])
            out = (out * kept[..., None]).to(q.dtype)
        return out.transpose(1, 2) if document is None else out[0].transpose(0, 1)

    return attend


def _flash_attn(workload: Workload, device: str) -> Attend:
    try:
        import flash_attn
    except ImportError:
        raise Unsupported("flash_attn is not installed") from None
    if not hasattr(flash_attn, "flash_attn_varlen_func"):  # FlashAttention-4 alone has another
        raise Unsupported("flash_attn is installed without flash_attn 2's functions")
    if device == "cpu" or workload.dtype == "fp32" or workload.headdim > 256 or workload.sinks:
        raise Unsupported("it takes fp16 and bf16 on CUDA, headdim to 256, no sinks")
    if workload.batch_invariant:
        raise Unsupported("it does not promise batch invariance")
    options = dict(causal=workload.causal, window_size=workload.window, softcap=workload.softcap)

    def attend(inputs: Inputs) -> Tensor:
        q, k, v = inputs.q, inputs.k, inputs.v
        if workload.layout == "thd":
            return flash_attn.flash_attn_varlen_func(
                q, k, v, inputs.cu_seqlens, inputs.cu_seqlens, workload.seqlen_q,
                workload.seqlen_k, deterministic=workload.deterministic, **options)
        if inputs.seqused_k is not None or inputs.block_table is not None:
            return flash_attn.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=inputs.seqused_k if inputs.seqused_k is not None
                else workload.seqlen_k, block_table=inputs.block_table, **options)
        return flash_attn.flash_attn_func(q, k, v, deterministic=workload.deterministic, **options)

    return attend


def _backend(name: str) -> Callable[[Workload, str], Attend]:
    return lambda workload, device: _torch(workload, device, name)


IMPLEMENTATIONS: dict[str, Callable[[Workload, str], Attend]] = {
    "foveal": _foveal,
    "torch": _torch,
    "torch-math": _backend("MATH"),
    "torch-flash": _backend("FLASH_ATTENTION"),
    "torch-efficient": _backend("EFFICIENT_ATTENTION"),
    "torch-cudnn": _backend("CUDNN_ATTENTION"),
    "flex": _flex,
    "flash-attn": _flash_attn,
}


def version_of(name: str) -> str:
    if name == "foveal":
        import foveal

        return foveal.__version__
    if name == "flash-attn":
        try:
            return metadata.version("flash-attn")
        except metadata.PackageNotFoundError:
            return ""
    return f"torch {torch.__version__}"
