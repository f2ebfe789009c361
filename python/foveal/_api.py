"""The functions over arrays. Tensors of PyTorch go to its operators, with gradients, its threads
and its current stream; all others to the C interface."""

from __future__ import annotations

import sys
from typing import Any

from foveal import _engine
from foveal._explanation import (Explanation, is_listening, left_to_pytorch, listen, of_recorded,
                                 stop_listening)


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def forward(q: Any, k: Any, v: Any, *, out: Any = None, return_lse: bool = False, **options: Any):
    """Attention: out [batch, seqlen_q, nheads_q, headdim_v], or (out, lse) with `return_lse`.

        out = foveal.forward(q, k, v, causal=True)
        out, lse = foveal.forward(q, k_cache, v_cache, seqused_k=used, return_lse=True)

    q, k and v are NumPy arrays, tensors of PyTorch, or any with `__dlpack__`, all of one library:
    [batch, seqlen, heads, headdim] in any strides, packed [total, heads, headdim] with
    cu_seqlens_q/k, k and v paged [num_pages, page_size, nheads_k, headdim] with block_table.

    Options, all optional: causal (aligned bottom right), window_size (left, right), softmax_scale,
    softcap, bias (added to the scores, or a bool mask), sinks, alibi_slopes, cu_seqlens_q,
    cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, leftpad_k, block_table,
    cache_batch_idx, dropout_p with dropout_seed and dropout_offset (PyTorch's tensors take them
    from its generator where they are not given), deterministic, batch_invariant; and k_new, v_new,
    rotary_cos, rotary_sin, rotary_interleaved, which append to the caches k and v first.
    """
    if _is_torch(q):
        from foveal import _torch_engine

        return _torch_engine.forward(q, k, v, out=out, return_lse=return_lse, **options)
    return _engine.forward(q, k, v, out=out, return_lse=return_lse, **options)


def backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **options: Any) -> dict:
    """The gradients {"dq": ..., "dk": ..., "dv": ...}, and "dbias" and "dsinks" where bias (no
    mask) and sinks are given. Options as of forward, and dlse, the gradient of the lse. out and lse
    may be those of more keys than k and v: what merge() gave."""
    if _is_torch(q):
        from foveal import _torch_engine

        return _torch_engine.backward(dout, q, k, v, out, lse, **options)
    return _engine.backward(dout, q, k, v, out, lse, **options)


def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """(out, lse) over the union of two disjoint sets of keys, from the results over each."""
    if _is_torch(out_a):
        from foveal import _torch_engine

        return _torch_engine.merge(out_a, lse_a, out_b, lse_b)
    return _engine.merge(out_a, lse_a, out_b, lse_b)


def append_kv(k: Any, v: Any, k_new: Any, v_new: Any, seqused_k: Any, *, q: Any = None,
              **options: Any) -> Any:
    """Writes k_new and v_new [batch, seqlen_new, nheads_k, headdim] into the caches k and v, at the
    end of each sequence: at seqused_k[b], which stays as it is. Gives the rotated q where there is
    a q. Options: rotary_cos, rotary_sin, rotary_interleaved, leftpad_k, block_table,
    cache_batch_idx, causal (of the attention to come: it says at which positions the rows of q
    stand)."""
    if _is_torch(k):
        from foveal import _torch_engine

        return _torch_engine.append_kv(k, v, k_new, v_new, seqused_k, q=q, **options)
    return _engine.append_kv(k, v, k_new, v_new, seqused_k, q=q, **options)


def explain(*arguments: Any, device: str | None = None, **options: Any) -> Explanation:
    """What would run, and why; nothing is computed.

        foveal.explain(q, k, v, causal=True)                                      # as forward
        foveal.explain(foveal.scaled_dot_product_attention, query, key, value)    # as the drop-in
        foveal.explain(foveal.flash_attn.flash_attn_func, q, k, v, device="sm_90")

    Where a tensor of PyTorch's requires a gradient, `.backward` explains that too, of out alone
    (not within torch.compile or a reentrant checkpoint, nor where PyTorch computes the call). A
    function that calls backward() itself would fill gradients with what nobody computed.
    `device` is another device than the arguments': "cpu", "cpu:4" (threads), "cuda:1", or a GPU
    family that need not be here ("sm_120")."""
    device = None if device is None else str(device)
    if not arguments:
        raise TypeError("explain() takes q, k, v, or one of foveal's functions and its arguments")
    if callable(arguments[0]):
        function, *arguments = arguments
        return _explain_call(function, tuple(arguments), options, device)
    if _is_torch(arguments[0]):
        return _explain_call(forward, arguments, options, device)
    return Explanation(_engine.explain_forward(device, *arguments, **options))


def _explain_call(function, arguments, options, device: str | None) -> Explanation:
    from foveal import _torch_engine

    if is_listening():
        raise TypeError("explain() is given a function that calls explain()")
    listen()
    try:
        _torch_engine.start_recording(device)
        try:
            function(*arguments, **options)
        finally:
            recorded = _torch_engine.take_recording()
    finally:
        reasons, refusals = stop_listening()
    if recorded:
        return of_recorded(recorded, refusals)
    if reasons:
        return left_to_pytorch(reasons[0])
    raise TypeError(f"{getattr(function, '__name__', function)} ran nothing of foveal's")
