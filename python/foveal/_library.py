"""libfoveal by its C interface: the structs of foveal.h and the functions, with ctypes."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint8, c_uint16, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from foveal._errors import from_status

FOLDER = Path(__file__).parent
PASSES = ("forward", "backward", "append", "merge")
OPERANDS = (
    "q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv", "bias", "dbias", "sinks",
    "dsinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
    "leftpad_k", "block_table", "cache_batch_idx", "k_new", "v_new", "rotary_cos", "rotary_sin",
    "q_rotated", "out_a", "lse_a", "out_b", "lse_b",
)


class DLDevice(Structure):
    _fields_ = [("device_type", c_int), ("device_id", c_int)]


class DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device", DLDevice), ("ndim", c_int), ("dtype", DLDataType),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]


class Attention(Structure):
    """foveal_attention: 0 is always the default."""

    _fields_ = [
        ("struct_size", c_size_t), ("pass_", c_int32), ("causal", c_int32),
        ("rotary_interleaved", c_int32), ("deterministic", c_int32), ("batch_invariant", c_int32),
        ("has_softmax_scale", c_int32), ("softmax_scale", c_float), ("softcap", c_float),
        ("dropout_p", c_float), ("has_window", c_int32), ("window_size_left", c_int64),
        ("window_size_right", c_int64), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
        ("dropout_seed", c_uint64), ("dropout_offset", c_uint64),
        ("dropout_seed_ptr", POINTER(c_uint64)), ("dropout_offset_ptr", POINTER(c_uint64)),
        *((name, POINTER(DLTensor)) for name in OPERANDS),
    ]


def _load() -> ctypes.CDLL:
    path = os.environ.get("FOVEAL_LIBRARY") or FOLDER / "lib" / "libfoveal.so.0"
    library = ctypes.CDLL(str(path))
    attention, text = POINTER(Attention), POINTER(c_void_p)
    signatures = {
        "foveal_last_error": (c_char_p, ()),
        "foveal_version": (c_char_p, ()),
        "foveal_attention_run": (c_int32, (attention, c_void_p, c_void_p)),
        "foveal_explain_json": (c_int32, (attention, c_char_p, text)),
        "foveal_devices_json": (c_int32, (text,)),
        "foveal_string_free": (None, (c_void_p,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def check(status: int) -> None:
    if status:
        raise from_status(status, LIBRARY.foveal_last_error().decode())


def take_json(function, *arguments) -> Any:
    """The value of a function that gives a JSON text through its last argument."""
    text = c_void_p()
    check(function(*arguments, byref(text)))
    try:
        return json.loads(ctypes.string_at(text.value))
    finally:
        LIBRARY.foveal_string_free(text)


def version() -> str:
    return LIBRARY.foveal_version().decode()


def devices() -> list[dict[str, Any]]:
    """The devices of this machine with their features and limits, the CPU first."""
    return take_json(LIBRARY.foveal_devices_json)
