"""The C++ tests' plain same-dtype baseline (tests/support/baseline.hpp) beside PyTorch's math path in
that dtype: two plain computations that round after every step are about as far from the truth."""

import ctypes
import math
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_size_t, c_void_p, sizeof

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import foveal_ctypes as foveal
from attention_cases import DTYPES
from math_path import rounding_math_path
from torch_attention import TorchAttention

SIZES = ("batch", "seqlen_q", "seqlen_k", "nheads_q", "nheads_k", "headdim", "headdim_v")
TENSORS = ("q", "k", "v", "dout", "bias", "sinks", "dlse", "keep", "out", "lse", "dq", "dk", "dv",
           "dbias", "dsinks")


class BaselineArgs(Structure):
    """foveal_baseline_args of tests/support/baseline_c.h."""

    _fields_ = ([("struct_size", c_size_t), ("dtype", c_int32), ("causal", c_int32)] +
                [(name, c_int64) for name in SIZES] +
                [("window_size_left", c_int64), ("window_size_right", c_int64),
                 ("softmax_scale", c_float), ("softcap", c_float), ("keep_scale", c_float)] +
                [(name, c_void_p) for name in TENSORS])


def load():
    path = foveal.library_path().with_name("libfoveal_baseline.so")
    function = ctypes.CDLL(str(path)).foveal_baseline
    function.restype, function.argtypes = ctypes.c_int, (POINTER(BaselineArgs),)
    return function


BASELINE = load()


def baseline(q, k, v, dout, *, causal=False, window=(-1, -1), softcap=0.0, bias=None, sinks=None):
    """{"out": ..., "lse": ..., "dq": ..., ...}; tensors as the C interface has them."""
    results = {"out": torch.empty_like(dout), "lse": foveal.empty_lse(q),
               "dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    if bias is not None:
        results["dbias"] = torch.empty_like(bias)
    if sinks is not None:
        results["dsinks"] = torch.empty_like(sinks)
    tensors = {"q": q, "k": k, "v": v, "dout": dout, "bias": bias, "sinks": sinks, **results}
    sizes = (q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    args = BaselineArgs(
        sizeof(BaselineArgs), list(DTYPES.values()).index(q.dtype) + 1, causal, *sizes, *window,
        0.0, softcap, 1.0,
        **{name: x.contiguous().data_ptr() for name, x in tensors.items() if x is not None})
    assert BASELINE(args) == 0
    return results


def problem(dtype, seed, seqlen_q=48, seqlen_k=80, heads=4, heads_k=2, headdim=32):
    random = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(shape, generator=random).to(DTYPES[dtype])
    return (make(2, seqlen_q, heads, headdim), make(2, seqlen_k, heads_k, headdim),
            make(2, seqlen_k, heads_k, headdim), make(2, seqlen_q, heads, headdim))


def errors(results, exact):
    return {name: (results[name].detach().double() - x.detach()).abs().max().item()
            for name, x in exact.items()}


def math_path(q, k, v, dout, causal, bias):
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    mask = bias
    if causal:
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, -math.inf)
    with rounding_math_path():
        out = scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=True)
        gradients = torch.autograd.grad(out, leaves, dout.transpose(1, 2))
    names = ("out", "dq", "dk", "dv")
    return {name: x.transpose(1, 2) for name, x in zip(names, (out, *gradients))}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [{}, {"seqlen_q": 7, "seqlen_k": 300, "headdim": 128},
                                   {"seqlen_q": 129, "seqlen_k": 129, "heads": 2, "headdim": 5}])
def test_errs_as_the_math_path_does(dtype, causal, sizes):
    q, k, v, dout = problem(dtype, seed=1, **sizes)
    whole = TorchAttention({"q": q, "k": k, "v": v}, causal=causal)
    out, lse = whole.forward()
    exact = {"out": out, **whole.gradients(out, lse, dout)}
    ours = errors(baseline(q, k, v, dout, causal=causal), exact)
    theirs = errors(math_path(q, k, v, dout, causal, None), exact)
    for name, error in ours.items():
        assert theirs[name] / 4 <= error <= 3 * theirs[name], (name, error, theirs[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [{"window": (9, 3)}, {"softcap": 2.0}, {"sinks": True},
                                      {"bias": True}, {"bias": True, "sinks": True,
                                                       "softcap": 3.0, "causal": True}])
def test_errs_as_a_plain_computation_with_every_feature(dtype, features):
    """Beside this folder's own attention in the dtype, for what PyTorch's function lacks."""
    q, k, v, dout = problem(dtype, seed=2)
    random = torch.Generator().manual_seed(3)
    features, operands = dict(features), {"q": q, "k": k, "v": v}
    if features.pop("bias", False):
        bias = torch.randn(2, 4, q.shape[1], k.shape[1], generator=random)
        operands["bias"] = bias.to(DTYPES[dtype]).float()
    if features.pop("sinks", False):
        operands["sinks"] = torch.randn(4, generator=random)
    sides = {name: operands.get(name) for name in ("bias", "sinks")}
    exact, plain = {}, {}
    for results, precision in ((exact, torch.float64), (plain, DTYPES[dtype])):
        attention = TorchAttention(operands, dtype=precision, **features)
        out, lse = attention.forward()
        results |= {"out": out, **attention.gradients(out, lse, dout)}
    ours, theirs = errors(baseline(q, k, v, dout, **sides, **features), exact), errors(plain, exact)
    assert ours.keys() == theirs.keys()
    for name, error in ours.items():
        # Four sinks are too few for their largest error to say more than its order.
        low, high = (10, 10) if name == "dsinks" else (4, 3)
        assert theirs[name] / low <= error <= high * theirs[name], (name, error, theirs[name])
