"""The kernels that the planner chooses beside PyTorch in fp64, by the accuracy rule of
docs/numerics.md. The plain computation in the same dtype, whose error bounds a kernel's, is
PyTorch's here: a judge that shares no code with foveal."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveal_ctypes as foveal
import torch_attention
from attention_cases import DTYPES, Built, append_grid, can_run_backward, case_id, grid
from random_cases import random_cases
from torch_attention import TorchAttention

RELATIVE = {"fp16": 0.005, "bf16": 0.01, "fp32": 1e-5}
# bf16 kernels of matrix units round weights to bf16. In few numbers those roundings need not
# average out, and the plain computation's may happen to. fp16 is multiplied in fp32.
ROUNDING = {"fp16": 0.0, "bf16": 2**-8, "fp32": 0.0}
FEW_NUMBERS = 1024


def assert_close(name, dtype, actual, expected, plain, absolute=math.inf, relative=True,
                 slack=0.0):
    """`plain` is what the same-dtype computation gives. `relative` is for results whose terms don't
    cancel; `slack` is allowed beyond the plain computation's error."""
    assert torch.isfinite(actual).all(), f"{name} has NaN or inf"
    expected = expected.detach()
    error, plain_error = (actual.double() - expected).abs(), (plain.double() - expected).abs()
    if expected.numel() == 0:
        return
    norm = expected.norm()
    few = ROUNDING[dtype] if expected.numel() < FEW_NUMBERS else 0.0
    floor = (1e-6 + few) * math.sqrt(expected.numel())  # of results that are 0
    assert not relative or error.norm() <= RELATIVE[dtype] * norm + floor, (
        f"{name}: relative error {error.norm() / norm:.3g}")
    floor = (1e-5 + few) * max(1.0, expected.abs().max().item())
    limit = min(2 * plain_error.max().item() + floor + slack, absolute)
    assert error.max() <= limit, (f"{name}: off by {error.max():.3g} at {error.argmax()}, "
                                  f"the plain computation by {plain_error.max():.3g}")


def assert_lse_close(actual, expected, slack=0.0):
    """Scores and sums are fp32 whatever the inputs are."""
    expected = expected.detach()
    finite = torch.isfinite(expected)
    torch.testing.assert_close(actual[~finite].double(), expected[~finite], rtol=0, atol=0)
    torch.testing.assert_close(actual[finite].double(), expected[finite], rtol=1e-5,
                               atol=2e-5 + slack)


def largest_error(plain, expected):
    finite = torch.isfinite(expected)
    error = (plain.detach().double() - expected.detach())[finite].abs()
    return error.max().item() if error.numel() else 0.0


def compare(case, num_threads=0):
    built = Built(case)
    exact = TorchAttention(built.operands, **built.options)
    plain = TorchAttention(built.operands, dtype=DTYPES[case.dtype], **built.options)
    out, lse = exact.forward()
    plain_out, plain_lse = plain.forward()
    results = built.forward_outputs()
    foveal.Call("forward", **built.operands, **results, **built.options).run(num_threads)
    assert_close("out", case.dtype, results["out"], out, plain_out.detach(), absolute=0.05)
    # A rotated key is rounded when it is put into the cache.
    assert_lse_close(results["lse"], lse, 2 * largest_error(plain_lse, lse) if case.rotary else 0.0)
    if not can_run_backward(case):
        return
    upstream, outputs = built.gradient_inputs(), built.gradient_outputs()
    expected = exact.gradients(out, lse, **upstream)
    rough = plain.gradients(plain_out, plain_lse, **upstream)
    foveal.Call("backward", **built.operands, **results, **upstream, **outputs,
                **built.options).run(num_threads)
    moved = exact.gradients(out, lse, upstream["dout"], dlse_of_rounding(out, **upstream))
    for name, gradient in outputs.items():
        # The gradient of a row's scores sums up to 0.
        cancels = name == "dbias" and "k" not in case.bias_shape
        assert_close(name, case.dtype, gradient, expected[name], rough[name],
                     relative=not cancels, slack=2 * largest_error(moved[name], expected[name]))


def dlse_of_rounding(out, dout, dlse=None):
    """A backward pass takes delta = rowsum(dout * out) from an out that was rounded. That moves its
    gradients as this dlse does, which a plain computation that keeps its weights does not feel."""
    out, dout = out.detach(), torch.nan_to_num(dout)
    change = (dout.double() * (out.to(dout.dtype).double() - out)).sum(-1)
    change = change.transpose(-1, -2)
    return -change if dlse is None else dlse.double() - change


def turns(cases):
    """The dtypes turn by turn."""
    return [replace(case, dtype=list(DTYPES)[i % 3]) for i, case in enumerate(cases)]


@pytest.mark.parametrize("case", turns(grid()), ids=case_id)
def test_grid(case):
    compare(case)


LONG = ((70, 200), (0, 130), (257, 64), (1, 300), (129, 129))


@pytest.mark.parametrize("case", turns(grid(lens=LONG, headdim=24))[::5], ids=case_id)
def test_more_than_one_tile(case):
    compare(case)


@pytest.mark.parametrize("headdim", [64, 72, 128, 200, 256, 512])
@pytest.mark.parametrize("dtype", DTYPES)
def test_headdim(headdim, dtype):
    for case in (grid(headdim=headdim, lens=((33, 70), (5, 5)), dtype=dtype)[i] for i in (1, 40)):
        compare(case)


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(random_cases(max_len=90, dtypes=tuple(DTYPES)), st.integers(1, 3))
def test_random(case, num_threads):
    compare(case, num_threads)


@pytest.mark.parametrize("case", turns(append_grid()), ids=case_id)
def test_append_then_attend(case):
    compare(case)
    built = Built(case)
    expected = TorchAttention(built.operands, **built.options).cache_after_append()
    foveal.Call("forward", **built.operands, **built.forward_outputs(), **built.options).run()
    for name, after in zip("kv", expected):
        assert_same_cache(name, built.operands[name], after)


@pytest.mark.parametrize("case", turns(append_grid()), ids=case_id)
def test_append_alone(case):
    built = Built(case)
    reference = TorchAttention(built.operands, **built.options)
    operands = dict(built.operands)
    if case.rotary:
        operands["q_rotated"] = torch.full_like(operands["q"], math.nan)
    else:
        for name in ("q", "cu_seqlens_q", "seqused_q"):
            operands.pop(name, None)
    expected = reference.cache_after_append()
    foveal.Call("append", **operands, **built.options).run()
    for name, after in zip("kv", expected):
        assert_same_cache(name, operands[name], after)
    if case.rotary:
        used = built.query_is_used
        assert_rounded("q_rotated", operands["q_rotated"][used], reference.rotated_q()[used])


def assert_rounded(name, actual, expected):
    """A few fp32 operations and one rounding away."""
    ulp = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), expected.detach(), rtol=ulp, atol=2e-6,
                               msg=lambda text: f"{name}: {text}")


def assert_same_cache(name, actual, expected):
    empty = torch.isnan(expected)
    assert torch.equal(torch.isnan(actual), empty), f"{name}: slots without a token were written"
    assert_rounded(name, actual[~empty], expected[~empty])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_in_two_parts_merge_to_the_whole(dtype):
    """merge() of two calls, and the two parts' backward with the merged out and lse."""
    random = torch.Generator().manual_seed(11)
    make = lambda *shape: torch.randn(shape, generator=random).to(DTYPES[dtype])
    q, dout = make(2, 40, 6, 32), make(2, 40, 6, 32)
    k, v = make(2, 90, 2, 32), make(2, 90, 2, 32)
    whole, plain = (TorchAttention({"q": q, "k": k, "v": v}, dtype=t)
                    for t in (torch.float64, DTYPES[dtype]))
    (out, lse), (plain_out, plain_lse) = whole.forward(), plain.forward()
    expected, rough = whole.gradients(out, lse, dout), plain.gradients(plain_out, plain_lse, dout)

    parts = [(k[:, :33], v[:, :33]), (k[:, 33:], v[:, 33:])]
    results = [foveal.forward(q, *part, lse=True) for part in parts]
    merged, merged_lse = foveal.merge(*results[0], *results[1])
    assert_close("out", dtype, merged, out, plain_out.detach(), absolute=0.05)
    assert_lse_close(merged_lse, lse)

    gradients = [foveal.backward(dout, q, *part, merged, merged_lse) for part in parts]
    assert_close("dq", dtype, sum(g["dq"].float() for g in gradients), expected["dq"], rough["dq"])
    for name in ("dk", "dv"):
        assert_close(name, dtype, torch.cat([g[name] for g in gradients], 1), expected[name],
                     rough[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_of_empty_parts(dtype):
    out, lse = torch.randn(1, 4, 2, 8).to(DTYPES[dtype]), torch.randn(1, 2, 4)
    nothing, minus_inf = torch.zeros_like(out), torch.full_like(lse, -math.inf)
    for parts in ((out, lse, nothing, minus_inf), (nothing, minus_inf, out, lse)):
        merged, merged_lse = foveal.merge(*parts)
        torch.testing.assert_close(merged, out, rtol=0, atol=0)
        torch.testing.assert_close(merged_lse, lse, rtol=0, atol=0)
    merged, merged_lse = foveal.merge(nothing, minus_inf, nothing, minus_inf)
    assert not merged.any() and torch.isneginf(merged_lse).all()
    one = torch_attention.merge(out.double(), lse.double(), nothing.double(), minus_inf.double())
    torch.testing.assert_close(one[0], out.double())


def test_plan_is_used_again():
    """A plan runs on other tensors of the same layout and refuses any others."""
    random = torch.Generator().manual_seed(7)
    make = lambda *shape: torch.randn(shape, generator=random)
    q, k, v, out = make(2, 8, 4, 16), make(2, 12, 2, 16), make(2, 12, 2, 16), make(2, 8, 4, 16)
    plan = foveal.Call("forward", q=q, k=k, v=v, out=out, causal=True).plan()
    assert plan.kernel == plan.explain()["kernel"]
    for _ in range(3):
        q, k, v, out = make(2, 8, 4, 16), make(2, 12, 2, 16), make(2, 12, 2, 16), make(2, 8, 4, 16)
        plan(q=q, k=k, v=v, out=out)
        expected, _ = TorchAttention({"q": q, "k": k, "v": v}, causal=True).forward()
        torch.testing.assert_close(out.double(), expected.detach(), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="was planned"):
        plan(q=make(2, 9, 4, 16))
    with pytest.raises(ValueError, match="was planned"):
        plan(q=q.half())
    with pytest.raises(foveal.FovealError, match="headdim 600: at most 512") as failure:
        foveal.forward(make(1, 1, 1, 600), make(1, 1, 1, 600), make(1, 1, 1, 600))
    assert failure.value.status == "invalid argument"
