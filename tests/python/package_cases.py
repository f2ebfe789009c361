"""What the tests of the Python package share: the devices that have kernels, and comparison with
PyTorch's own attention in float64."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import foveal
from math_path import rounding_math_path

RELATIVE = {torch.float16: 0.005, torch.bfloat16: 0.01, torch.float32: 1e-5}


def _has_kernels(device: str) -> bool:
    q = torch.empty(1, 1, 1, 8, device=device, dtype=torch.float16)
    return bool(foveal.explain(q, q, q).kernel)


DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and _has_kernels("cuda") else [])


def randn(*shape, dtype=torch.float32, device="cpu", grad=False):
    return torch.randn(*shape).to(dtype).to(device).requires_grad_(grad)


def exact_sdpa(query, key, value, attn_mask=None, **options):
    """PyTorch's math path in float64, with leaves of its own: (out, leaves)."""
    leaves = [None if t is None else
              t.detach().double().requires_grad_() if t.is_floating_point() else t
              for t in (query, key, value, attn_mask)]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*leaves, **options), leaves


# Kernels of 16-bit matrix units round weights to the inputs' type. In few numbers those roundings
# need not average out, and the plain computation's may happen to.
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 0.0}
FEW_NUMBERS = 1024


def assert_close(name, actual, expected, plain=None, cancels=False, dtype=None):
    """By the accuracy rule of docs/numerics.md; `plain` is the plain computation in the same dtype.
    Gradients, whose terms cancel, have no relative bound, and may be off by the rounding of the out
    that they are computed from."""
    dtype = dtype or actual.dtype
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, {expected.shape} expected"
    actual_64, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    if expected.numel() == 0:
        return
    error = (actual_64 - expected).abs()
    assert not error.isnan().any(), f"{name} has NaN"
    # CPUs multiply fp16 in fp32.
    rounds = dtype == torch.bfloat16 or actual.device.type != "cpu"
    few = ROUNDING[dtype] if rounds and expected.numel() < FEW_NUMBERS else 0.0
    norm, floor = expected.norm(), (2e-6 + few) * math.sqrt(expected.numel())
    if not cancels:
        assert error.norm() <= RELATIVE[dtype] * norm + floor, (
            f"{name}: relative error {error.norm() / norm:.3g}")
    if plain is not None:
        limit = 2 * (plain.detach().double().cpu() - expected).abs().max() + (2e-5 + few) * max(
            1.0, expected.abs().max().item())
        if cancels and dtype != torch.float32:
            limit += 4 * RELATIVE[dtype] * max(1.0, expected.abs().max().item())
        assert error.max() <= limit, f"{name}: off by {error.max():.3g}, {limit:.3g} allowed"


def compare_sdpa(query, key, value, attn_mask=None, grad=True, **options):
    """foveal's function beside PyTorch's in float64, with gradients of every floating input."""
    inputs = (query, key, value, attn_mask)
    leaves = [t if t is None or not t.is_floating_point() else t.detach().requires_grad_(grad)
              for t in inputs]
    out = foveal.scaled_dot_product_attention(*leaves, **options)
    expected, exact_leaves = exact_sdpa(*inputs, **options)
    with rounding_math_path():
        plain_leaves = [t if t is None or not t.is_floating_point() else
                        t.detach().clone().requires_grad_() for t in inputs]
        plain = F.scaled_dot_product_attention(*plain_leaves, **options)
    assert out.dtype == query.dtype
    assert_close("out", out, expected, plain)
    if not grad:
        return
    dout = torch.randn_like(expected)
    chosen = [i for i, t in enumerate(leaves) if t is not None and t.is_floating_point()]
    trees = ((out, leaves), (expected, exact_leaves), (plain, plain_leaves))
    gradients = [torch.autograd.grad(result, [tree[i] for i in chosen], dout.to(result.dtype),
                                     allow_unused=True) for result, tree in trees]
    for i, actual, exact, rough in zip(chosen, *gradients):
        name = ("dquery", "dkey", "dvalue", "dattn_mask")[i]
        assert (actual is None) == (exact is None), name
        if actual is not None:
            assert actual.dtype == inputs[i].dtype
            assert_close(name, actual, exact, rough, cancels=True, dtype=query.dtype)
