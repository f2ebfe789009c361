"""foveal from Python through its C interface, by ctypes alone.

    import foveal_ctypes as foveal
    out = foveal.forward(q, k, v, causal=True)                    # torch CPU tensors or NumPy arrays
    out, lse = foveal.forward(q, k, v, causal=True, lse=True)

    call = foveal.Call("forward", q=q, k=k, v=v, out=out, causal=True)
    plan = call.plan()                                            # checks and chooses once
    plan(q=q2, k=k2, v=v2, out=out2)                              # only launches
    exact = call.oracle("out")["out"]                             # attention in float64

Dimensions are in the C header's order ([batch, seqlen, heads, dim], packed [total, heads, dim]); a
tensor that lies otherwise is a view: `q.transpose(1, 2)`. The library is the file named by
FOVEAL_LIBRARY, else lib/libfoveal.so in FOVEAL_BUILD_DIR, build/release or build/cpu.
"""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint8, c_uint16, c_uint64, c_void_p, sizeof
from pathlib import Path

import numpy as np

PASSES = ("forward", "backward", "append", "merge")
OPERANDS = (
    "q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv", "bias", "dbias", "sinks",
    "dsinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
    "leftpad_k", "block_table", "cache_batch_idx", "k_new", "v_new", "rotary_cos", "rotary_sin",
    "q_rotated", "out_a", "lse_a", "out_b", "lse_b",
)
RESULTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "k", "v", "q_rotated")
ALIGNMENT = 256  # FOVEAL_WORKSPACE_ALIGNMENT


class FovealError(RuntimeError):
    """A call failed; `status` is its name, the text is foveal_last_error()."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


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
    _fields_ = [
        ("struct_size", c_size_t), ("pass_", c_int32), ("causal", c_int32),
        ("rotary_interleaved", c_int32), ("deterministic", c_int32), ("batch_invariant", c_int32),
        ("has_softmax_scale", c_int32), ("softmax_scale", c_float), ("softcap", c_float),
        ("dropout_p", c_float), ("has_window", c_int32), ("window_size_left", c_int64),
        ("window_size_right", c_int64), ("max_seqlen_q", c_int64), ("max_seqlen_k", c_int64),
        ("dropout_seed", c_uint64), ("dropout_offset", c_uint64),
        ("dropout_seed_ptr", POINTER(c_uint64)), ("dropout_offset_ptr", POINTER(c_uint64)),
    ] + [(name, POINTER(DLTensor)) for name in OPERANDS]


class Device(Structure):
    _fields_ = [("struct_size", c_size_t), ("device", DLDevice), ("num_threads", c_int32),
                ("reserved", c_int32)]


class OracleOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("rows", POINTER(c_int64)), ("num_rows", c_int64),
                ("use_given_out_and_lse", c_int32), ("num_threads", c_int32)]


class OracleResults(Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, POINTER(DLTensor)) for name in RESULTS]


def library_path() -> Path:
    if named := os.environ.get("FOVEAL_LIBRARY"):
        return Path(named)
    root = Path(__file__).resolve().parents[2]
    folders = [os.environ.get("FOVEAL_BUILD_DIR"), "build/release", "build/cpu"]
    paths = [root / folder / "lib" / "libfoveal.so" for folder in folders if folder]
    for path in paths:
        if path.exists():
            return path
    raise FileNotFoundError(f"no libfoveal.so at {', '.join(map(str, paths))}; set FOVEAL_LIBRARY")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    attention, tensor_text = POINTER(Attention), POINTER(c_void_p)
    signatures = {
        "foveal_last_error": (c_char_p, ()),
        "foveal_version": (c_char_p, ()),
        "foveal_status_name": (c_char_p, (c_int32,)),
        "foveal_attention_run": (c_int32, (attention, POINTER(Device), c_void_p)),
        "foveal_plan_create": (c_int32, (attention, POINTER(Device), POINTER(c_void_p))),
        "foveal_plan_run": (c_int32, (c_void_p, attention, c_void_p, c_size_t, c_void_p)),
        "foveal_plan_release": (None, (c_void_p,)),
        "foveal_plan_workspace_bytes": (c_size_t, (c_void_p,)),
        "foveal_plan_kernel": (c_char_p, (c_void_p,)),
        "foveal_plan_predicted_time_us": (c_double, (c_void_p,)),
        "foveal_plan_explain_json": (c_int32, (c_void_p, tensor_text)),
        "foveal_explain_json": (c_int32, (attention, c_char_p, tensor_text)),
        "foveal_devices_json": (c_int32, (tensor_text,)),
        "foveal_string_free": (None, (c_void_p,)),
        "foveal_oracle": (c_int32, (attention, POINTER(OracleOptions), POINTER(OracleResults))),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def _check(status: int) -> None:
    if status:
        name = LIBRARY.foveal_status_name(status).decode()
        raise FovealError(name, LIBRARY.foveal_last_error().decode())


def _take_json(function, *arguments):
    text = c_void_p()
    _check(function(*arguments, byref(text)))
    try:
        return json.loads(ctypes.string_at(text.value))
    finally:
        LIBRARY.foveal_string_free(text)


# DLPack's codes: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool.
_DTYPES = {
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
    "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "bool": (6, 8),
}


def _dtype_name(tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _address(tensor) -> int:
    if hasattr(tensor, "data_ptr"):
        return tensor.data_ptr()
    return tensor.__array_interface__["data"][0]


def _strides(tensor) -> tuple[int, ...]:
    """In elements."""
    if hasattr(tensor, "data_ptr"):
        return tensor.stride()
    return tuple(stride // tensor.itemsize for stride in tensor.strides)


class View:
    """A tensor as the C interface takes it."""

    def __init__(self, tensor):
        self._is_torch = hasattr(tensor, "data_ptr")
        if self._is_torch and tensor.device.type != "cpu":
            raise ValueError(f"a tensor on {tensor.device}: this adapter takes CPU tensors")
        name = _dtype_name(tensor)
        if name not in _DTYPES:
            raise ValueError(f"{name}: {', '.join(_DTYPES)} are allowed")
        self.tensor = tensor
        self._dtype, self._size, self._stride = tensor.dtype, tensor.shape, _strides(tensor)
        ndim = len(tensor.shape)
        self._shape_memory = (c_int64 * ndim)(*self._size)
        self._stride_memory = (c_int64 * ndim)(*self._stride)
        self.dl = DLTensor(_address(tensor), DLDevice(1, 0), ndim, DLDataType(*_DTYPES[name], 1),
                           self._shape_memory, self._stride_memory, 0)

    def replace(self, tensor) -> None:
        """Another tensor of the same layout takes this one's place, by its address alone."""
        stride = tensor.stride() if self._is_torch else _strides(tensor)
        if tensor.dtype != self._dtype or tensor.shape != self._size or stride != self._stride:
            raise ValueError(f"{tensor.dtype} {tuple(tensor.shape)} strides {stride}: {self._dtype} "
                             f"{tuple(self._size)} strides {self._stride} was planned")
        self.tensor = tensor
        self.dl.data = tensor.data_ptr() if self._is_torch else _address(tensor)


class Call:
    """A problem with its operands. Options: causal, softmax_scale, softcap, window (left, right),
    dropout_p, dropout_seed, dropout_offset, max_seqlen_q, max_seqlen_k, rotary_interleaved,
    deterministic, batch_invariant. Operands that are None are absent."""

    def __init__(self, pass_name: str, *, causal=False, softmax_scale=None, softcap=0.0,
                 window=None, dropout_p=0.0, dropout_seed=0, dropout_offset=0, max_seqlen_q=0,
                 max_seqlen_k=0, rotary_interleaved=False, deterministic=False,
                 batch_invariant=False, **operands):
        left, right = window if window is not None else (0, 0)
        self.struct = Attention(
            struct_size=sizeof(Attention), pass_=PASSES.index(pass_name), causal=causal,
            rotary_interleaved=rotary_interleaved, deterministic=deterministic,
            batch_invariant=batch_invariant, has_softmax_scale=softmax_scale is not None,
            softmax_scale=softmax_scale or 0.0, softcap=softcap, dropout_p=dropout_p,
            has_window=window is not None, window_size_left=left, window_size_right=right,
            max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, dropout_seed=dropout_seed,
            dropout_offset=dropout_offset)
        self.views: dict[str, View] = {}
        for name, tensor in operands.items():
            if name not in OPERANDS:
                raise TypeError(f"{name}: neither an operand nor an option")
            if tensor is not None:
                view = self.views[name] = View(tensor)
                setattr(self.struct, name, ctypes.pointer(view.dl))

    def run(self, num_threads: int = 0) -> None:
        _check(LIBRARY.foveal_attention_run(self.struct, _device(num_threads), None))

    def plan(self, num_threads: int = 0) -> "Plan":
        return Plan(self, num_threads)

    def explain(self, device: str = "cpu") -> dict:
        return _take_json(LIBRARY.foveal_explain_json, self.struct, device.encode())

    def oracle(self, *names: str, rows=None, use_given_out_and_lse=False,
               num_threads=0) -> dict[str, np.ndarray]:
        """The results of these names in float64; the operands stay as they are."""
        options = OracleOptions(struct_size=sizeof(OracleOptions), num_threads=num_threads,
                                use_given_out_and_lse=use_given_out_and_lse)
        if rows is not None:
            flat = np.ascontiguousarray(rows, dtype=np.int64)
            options.num_rows = flat.size
            options.rows = flat.ctypes.data_as(POINTER(c_int64))
        results = OracleResults(struct_size=sizeof(OracleResults))
        arrays, views = {}, []
        for name in names:
            arrays[name] = np.empty(tuple(self.views[name].tensor.shape), np.float64)
            views.append(View(arrays[name]))
            setattr(results, name, ctypes.pointer(views[-1].dl))
        _check(LIBRARY.foveal_oracle(self.struct, options, results))
        return arrays


class Plan:
    """A planned call. Calling it runs it, with other tensors of the same layout where given."""

    def __init__(self, call: Call, num_threads: int = 0):
        self._handle = c_void_p()
        self.call = call
        _check(LIBRARY.foveal_plan_create(call.struct, _device(num_threads), byref(self._handle)))
        self.workspace_bytes = LIBRARY.foveal_plan_workspace_bytes(self._handle)
        self.kernel = LIBRARY.foveal_plan_kernel(self._handle).decode()
        self._storage = ctypes.create_string_buffer(self.workspace_bytes + ALIGNMENT)
        start = ctypes.addressof(self._storage)
        self._workspace = start + (-start) % ALIGNMENT
        self._run = LIBRARY.foveal_plan_run
        self._arguments = (self._handle, byref(call.struct), self._workspace, self.workspace_bytes,
                           None)

    def __call__(self, **operands) -> None:
        views = self.call.views
        for name, tensor in operands.items():
            views[name].replace(tensor)
        if status := self._run(*self._arguments):
            _check(status)

    def explain(self) -> dict:
        return _take_json(LIBRARY.foveal_plan_explain_json, self._handle)

    def __del__(self):
        if self._handle:
            LIBRARY.foveal_plan_release(self._handle)


def _device(num_threads: int):
    if num_threads == 0:
        return None
    return Device(struct_size=sizeof(Device), num_threads=num_threads)


def devices() -> list[dict]:
    return _take_json(LIBRARY.foveal_devices_json)


def empty(like, shape, dtype: str | None = None):
    """Memory of the same library (torch or NumPy) and, unless said otherwise, the same dtype."""
    if hasattr(like, "data_ptr"):
        import torch
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype)
    return np.empty(shape, np.dtype(dtype) if dtype else like.dtype)


def empty_lse(q):
    packed = len(q.shape) == 3
    shape = (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])
    return empty(q, shape, "float32")


def _empty_out(q, v):
    return empty(q, (*q.shape[:-1], v.shape[-1]))


def forward(q, k, v, *, out=None, lse=False, num_threads=0, **rest):
    """out, or (out, lse)."""
    out = out if out is not None else _empty_out(q, v)
    lse_out = empty_lse(q) if lse else None
    Call("forward", q=q, k=k, v=v, out=out, lse=lse_out, **rest).run(num_threads)
    return (out, lse_out) if lse else out


def backward(dout, q, k, v, out, lse, *, num_threads=0, **rest) -> dict:
    """dq, dk, dv, and dbias and dsinks where bias (no mask) and sinks are given."""
    gradients = {"dq": empty(q, q.shape), "dk": empty(k, k.shape), "dv": empty(v, v.shape)}
    bias, sinks = rest.get("bias"), rest.get("sinks")
    if bias is not None and _dtype_name(bias) not in ("bool", "uint8"):
        gradients["dbias"] = empty(bias, bias.shape)
    if sinks is not None:
        gradients["dsinks"] = empty(sinks, sinks.shape)
    Call("backward", dout=dout, q=q, k=k, v=v, out=out, lse=lse, **gradients,
         **rest).run(num_threads)
    return gradients


def append(k, v, k_new, v_new, seqused_k, *, q=None, num_threads=0, **rest):
    """Writes k_new and v_new into k and v; gives the rotated q where there is a q."""
    q_rotated = empty(q, q.shape) if q is not None else None
    Call("append", k=k, v=v, k_new=k_new, v_new=v_new, seqused_k=seqused_k, q=q,
         q_rotated=q_rotated, **rest).run(num_threads)
    return q_rotated


def merge(out_a, lse_a, out_b, lse_b, *, num_threads=0):
    """(out, lse) of the union of two disjoint sets of keys."""
    out, lse = empty(out_a, out_a.shape), empty(lse_a, lse_a.shape)
    Call("merge", out=out, lse=lse, out_a=out_a, lse_a=lse_a, out_b=out_b,
         lse_b=lse_b).run(num_threads)
    return out, lse
