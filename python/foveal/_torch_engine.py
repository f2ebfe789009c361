"""The functions of _api over PyTorch's tensors, and the recording of what a call would run."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from foveal import _torch_ops
from foveal._errors import InvalidArgument, translated
from foveal._torch_ops import Causal, ops


def _shared(causal=False, dropout_p=0.0, window_size=None, dropout_seed=None,
            dropout_offset=0, like=None, **options) -> tuple:
    if dropout_p and dropout_seed is not None:
        options["dropout_state"] = _state(dropout_seed, dropout_offset, like)
    elif dropout_p and options.get("dropout_state") is None:
        options["dropout_state"] = _torch_ops.dropout_state(like)
    return _torch_ops.options(
        causal=Causal.BOTTOM_RIGHT if causal else Causal.NO, dropout_p=dropout_p,
        window_size=(-1, -1) if window_size is None else window_size, **options)


def _state(seed: int, offset: int, like):
    import torch

    words = [word - (1 << 64) if word >> 63 else word for word in (seed, offset)]
    return torch.tensor(words, dtype=torch.int64, device=like.device)


def forward(q, k, v, out=None, return_lse=False, k_new=None, v_new=None, rotary_cos=None,
            rotary_sin=None, rotary_interleaved=False, **options):
    if out is not None:
        raise InvalidArgument("out: PyTorch's tensors get a new one, with its gradient")
    shared = _shared(like=q, **options)
    try:
        if k_new is None and rotary_cos is None:
            out, lse = _torch_ops.attend(q, k, v, shared, want_lse=return_lse)
        else:
            out, lse = _torch_ops.attend_appending(
                q, k, v, (k_new, v_new, rotary_cos, rotary_sin, bool(rotary_interleaved)), shared,
                want_lse=return_lse)
    except RuntimeError as error:
        raise translated(error) from None
    return (out, lse) if return_lse else out


def backward(dout, q, k, v, out, lse, dlse=None, **options) -> dict[str, Any]:
    bias, sinks = options.get("bias"), options.get("sinks")
    needs = (True, True, True, bias is not None and bias.is_floating_point(), sinks is not None)
    try:
        results = ops.backward.default(dout, dlse, q, k, v, out, lse, *_shared(like=q, **options),
                                       *needs)
    except RuntimeError as error:
        raise translated(error) from None
    names = ("dq", "dk", "dv", "dbias", "dsinks")
    return {name: result for name, result, needed in zip(names, results, needs) if needed}


def merge(out_a, lse_a, out_b, lse_b):
    try:
        return _torch_ops.merge(out_a, lse_a, out_b, lse_b)
    except RuntimeError as error:
        raise translated(error) from None


def append_kv(k, v, k_new, v_new, seqused_k, q=None, rotary_cos=None, rotary_sin=None,
              rotary_interleaved=False, leftpad_k=None, block_table=None, cache_batch_idx=None,
              causal=False):
    try:
        rotated = ops.append_kv.default(
            q, k, v, k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved, seqused_k,
            leftpad_k, block_table, cache_batch_idx, causal)
    except RuntimeError as error:
        raise translated(error) from None
    return None if q is None else rotated


# -- What would run --------------------------------------------------------------------------------

_library = ctypes.CDLL(str(_torch_ops.PATH))
_library.foveal_torch_record.argtypes = (ctypes.c_char_p,)
_library.foveal_torch_take_record.restype = ctypes.c_char_p


def start_recording(device: str | None) -> None:
    _library.foveal_torch_record(None if device is None else device.encode())


def take_recording() -> list[dict[str, Any]]:
    return json.loads(_library.foveal_torch_take_record())
