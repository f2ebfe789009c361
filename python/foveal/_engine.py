"""The engine over arrays of any library, through the C interface. Arguments are named as there, and
dimensions come in its order: [batch, seqlen, heads, dim], packed [total, heads, dim]."""

from __future__ import annotations

import operator
from ctypes import sizeof
from typing import Any

from foveal._arrays import View, empty_like
from foveal._errors import InvalidArgument
from foveal._library import LIBRARY, OPERANDS, PASSES, Attention, check, take_json


def _integer(name: str, value: Any, least: int, bits: int) -> int:
    """ctypes would take of larger ones what fits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is a {type(value).__name__}: an integer is needed") from None
    if not least <= number < 1 << bits:
        raise InvalidArgument(f"{name} {number}: at least {least} and below 2^{bits}")
    return number


def _window(window_size: Any) -> tuple[int, int]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"window_size {window_size!r}: a pair (left, right) is needed") from None
    return (_integer("window_size_left", left, -(1 << 63), 63),
            _integer("window_size_right", right, -(1 << 63), 63))


class Call:
    """A problem with its operands. Operands that are None are absent."""

    def __init__(self, pass_name: str, *, causal=False, softmax_scale=None, softcap=0.0,
                 window_size=None, dropout_p=0.0, dropout_seed=0, dropout_offset=0, max_seqlen_q=0,
                 max_seqlen_k=0, rotary_interleaved=False, deterministic=False,
                 batch_invariant=False, **operands: Any):
        left, right = (0, 0) if window_size is None else _window(window_size)
        self.struct = Attention(
            struct_size=sizeof(Attention), pass_=PASSES.index(pass_name), causal=bool(causal),
            rotary_interleaved=bool(rotary_interleaved), deterministic=bool(deterministic),
            batch_invariant=bool(batch_invariant), has_softmax_scale=softmax_scale is not None,
            softmax_scale=softmax_scale or 0.0, softcap=softcap, dropout_p=dropout_p,
            has_window=window_size is not None, window_size_left=left, window_size_right=right,
            max_seqlen_q=_integer("max_seqlen_q", max_seqlen_q, 0, 63),
            max_seqlen_k=_integer("max_seqlen_k", max_seqlen_k, 0, 63),
            dropout_seed=_integer("dropout_seed", dropout_seed, 0, 64),
            dropout_offset=_integer("dropout_offset", dropout_offset, 0, 64))
        self.views: dict[str, View] = {}
        for name, array in operands.items():
            if name not in OPERANDS:
                raise TypeError(f"{name}: neither an operand nor an option of {pass_name}")
            if array is not None:
                self.add(name, array)
        if "k_new" in self.views:
            for cache in ("k", "v"):
                self.view(cache).check_writable(cache)

    def view(self, name: str) -> View:
        """Of an operand by which a result is shaped."""
        if name not in self.views:
            raise InvalidArgument(f"{name} is None: it is needed")
        return self.views[name]

    def add(self, name: str, array: Any) -> Any:
        view = self.views[name] = View(name, array)
        setattr(self.struct, name, view.pointer())
        return array

    def add_empty(self, name: str, like: str, shape=None, dtype: str | None = None) -> Any:
        """A new array for a result."""
        view = self.view(like)
        return self.add(name, empty_like(view, view.shape if shape is None else shape, dtype))

    def run(self) -> None:
        check(LIBRARY.foveal_attention_run(self.struct, None, None))

    def explain(self, device: str) -> dict[str, Any]:
        return take_json(LIBRARY.foveal_explain_json, self.struct, device.encode())


def _out_shape(call: Call) -> tuple[int, ...]:
    q, v = call.view("q").shape, call.view("v").shape
    return (*q[:-1], *v[-1:])


def _lse_shape(call: Call) -> tuple[int, ...]:
    shape = call.view("q").shape
    if len(shape) == 3:
        return (shape[1], shape[0])
    if len(shape) == 4:
        return (shape[0], shape[2], shape[1])
    raise InvalidArgument(f"q has {len(shape)} dimensions: 3 or 4 needed")


def _with_result(call: Call, name: str, given: Any, like: str, shape, dtype=None) -> Any:
    if given is None:
        return call.add_empty(name, like, shape, dtype)
    call.add(name, given)
    call.views[name].check_writable(name)
    return given


def _forward_call(q, k, v, out, return_lse, options) -> tuple[Call, Any, Any]:
    call = Call("forward", q=q, k=k, v=v, **options)
    out = _with_result(call, "out", out, "q", _out_shape(call))
    lse = call.add_empty("lse", "q", _lse_shape(call), "float32") if return_lse else None
    return call, out, lse


def forward(q, k, v, out=None, return_lse=False, **options):
    call, out, lse = _forward_call(q, k, v, out, return_lse, options)
    call.run()
    return (out, lse) if return_lse else out


def backward(dout, q, k, v, out, lse, **options) -> dict[str, Any]:
    call = Call("backward", dout=dout, q=q, k=k, v=v, out=out, lse=lse, **options)
    wanted = ["q", "k", "v"]
    if "bias" in call.views and call.views["bias"].dtype_name not in ("bool", "uint8"):
        wanted.append("bias")
    if "sinks" in call.views:
        wanted.append("sinks")
    gradients = {f"d{name}": call.add_empty(f"d{name}", name) for name in wanted}
    call.run()
    return gradients


def merge(out_a, lse_a, out_b, lse_b):
    call = Call("merge", out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    out, lse = call.add_empty("out", "out_a"), call.add_empty("lse", "lse_a")
    call.run()
    return out, lse


def append_kv(k, v, k_new, v_new, seqused_k, q=None, **options):
    call = Call("append", k=k, v=v, k_new=k_new, v_new=v_new, seqused_k=seqused_k, q=q, **options)
    q_rotated = call.add_empty("q_rotated", "q") if q is not None else None
    call.run()
    return q_rotated


def explain_forward(device: str | None, q, k, v, return_lse=False, **options) -> dict[str, Any]:
    call, _, _ = _forward_call(q, k, v, None, return_lse, options)
    on_cuda = call.views["q"].dl.device.device_type == 2
    index = call.views["q"].dl.device.device_id
    return call.explain(device or (f"cuda:{index}" if on_cuda else "cpu"))
