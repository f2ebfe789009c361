"""foveal's fp64 oracle beside PyTorch in fp64, every feature with every other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import foveal_ctypes as foveal
import torch_attention
from attention_cases import Built, append_grid, can_run_backward, case_id, grid
from philox_dropout import philox4x32
from random_cases import random_cases
from torch_attention import TorchAttention

TOLERANCE = 1e-9


def assert_equal(name: str, actual: np.ndarray, expected: torch.Tensor) -> None:
    """Relative to the largest element; infinities in the same places."""
    expected = expected.detach().numpy()
    assert actual.shape == expected.shape, name
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=name)
    if finite.any():
        limit = TOLERANCE * max(1.0, np.abs(expected[finite]).max())
        worst = np.abs(actual[finite] - expected[finite])
        assert worst.max() <= limit, f"{name}: off by {worst.max():.3g} at {worst.argmax()}"


def compare_forward(built: Built) -> tuple[TorchAttention, torch.Tensor, torch.Tensor]:
    reference = TorchAttention(built.operands, **built.options)
    out, lse = reference.forward()
    call = foveal.Call("forward", **built.operands, **built.forward_outputs(), **built.options)
    actual = call.oracle("out", "lse", num_threads=1)
    assert_equal("out", actual["out"], out)
    assert_equal("lse", actual["lse"], lse)
    return reference, out, lse


def compare_backward(built: Built, reference, out, lse) -> None:
    upstream, outputs = built.gradient_inputs(), built.gradient_outputs()
    expected = reference.gradients(out, lse, **upstream)
    call = foveal.Call("backward", **built.operands, **built.forward_outputs(), **upstream,
                       **outputs, **built.options)
    for name, gradient in call.oracle(*outputs, num_threads=1).items():
        assert_equal(name, gradient, expected[name])


@pytest.mark.parametrize("case", grid(), ids=case_id)
def test_grid(case):
    built = Built(case)
    computed = compare_forward(built)
    if can_run_backward(case):
        compare_backward(built, *computed)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_narrow_inputs_are_read_exactly(dtype):
    for case in grid(dtype=dtype)[::23]:
        built = Built(case)
        computed = compare_forward(built)
        if can_run_backward(case):
            compare_backward(built, *computed)


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(random_cases())
def test_random(case):
    built = Built(case)
    computed = compare_forward(built)
    if can_run_backward(case):
        compare_backward(built, *computed)


def test_headdim_v_of_its_own():
    for case in grid(headdim=6, headdim_v=11)[::31]:
        built = Built(case)
        computed = compare_forward(built)
        if can_run_backward(case):
            compare_backward(built, *computed)


@pytest.mark.parametrize("case", append_grid(), ids=case_id)
def test_append_then_attend(case):
    built = Built(case)
    reference, _, _ = compare_forward(built)
    k, v = reference.cache_after_append()
    call = foveal.Call("forward", **built.operands, **built.forward_outputs(), **built.options)
    actual = call.oracle("k", "v")
    assert_equal_cache("k", actual["k"], k)
    assert_equal_cache("v", actual["v"], v)


@pytest.mark.parametrize("case", append_grid(), ids=case_id)
def test_append_alone(case):
    built = Built(case)
    reference = TorchAttention(built.operands, **built.options)
    operands, names = dict(built.operands), ["k", "v"]
    if case.rotary:
        operands["q_rotated"] = torch.full_like(operands["q"], math.nan)
        names.append("q_rotated")
    else:
        for name in ("q", "cu_seqlens_q", "seqused_q"):
            operands.pop(name, None)
    actual = foveal.Call("append", **operands, **built.options).oracle(*names)
    for name, expected in zip("kv", reference.cache_after_append()):
        assert_equal_cache(name, actual[name], expected)
    if case.rotary:
        used = built.query_is_used.numpy()
        rotated = reference.rotated_q().detach()
        assert_equal("q_rotated", actual["q_rotated"][used], rotated[built.query_is_used])


def assert_equal_cache(name, actual, expected):
    """Slots that nothing was put in keep their NaN."""
    empty = torch.isnan(expected).numpy()
    np.testing.assert_array_equal(np.isnan(actual), empty, err_msg=name)
    assert_equal(name, actual[~empty], expected[~torch.from_numpy(empty)])


@pytest.mark.parametrize("empty_a", [False, True])
@pytest.mark.parametrize("empty_b", [False, True])
def test_merge(empty_a, empty_b):
    random = torch.Generator().manual_seed(3)
    parts = {}
    for part, empty in (("a", empty_a), ("b", empty_b)):
        out = torch.randn(2, 5, 3, 4, generator=random)
        lse = torch.randn(2, 3, 5, generator=random) * 20
        if empty:  # the first rows of this part see no key
            out[:, :3], lse[..., :3] = 0.0, -math.inf
        parts |= {f"out_{part}": out, f"lse_{part}": lse}
    out, lse = torch_attention.merge(**{name: x.double() for name, x in parts.items()})
    call = foveal.Call("merge", **parts, out=torch.empty(2, 5, 3, 4), lse=torch.empty(2, 3, 5))
    actual = call.oracle("out", "lse")
    assert_equal("out", actual["out"], out)
    assert_equal("lse", actual["lse"], lse)


def test_chosen_rows_and_given_out_and_lse():
    """The keys of one problem in two parts: each part's backward takes the merged out and lse."""
    random = torch.Generator().manual_seed(5)
    q, dout = (torch.randn(1, 6, 4, 8, generator=random) for _ in range(2))
    k, v = (torch.randn(1, 10, 2, 8, generator=random) for _ in range(2))
    whole = TorchAttention({"q": q, "k": k, "v": v})
    out, lse = whole.forward()
    expected = whole.gradients(out, lse, dout)

    rows = foveal.Call("forward", q=q, k=k, v=v, out=torch.empty_like(q)).oracle(
        "out", rows=[4, 1])["out"]
    assert_equal("out", rows[:, [1, 4]], out[:, [1, 4]])
    assert np.isnan(rows[:, [0, 2, 3, 5]]).all()

    # out and lse are passed as fp32, so what comes back is as exact as they are.
    given_out, given_lse = out.detach().float(), lse.detach().float()
    dq = np.zeros(q.shape)
    for part in (slice(0, 3), slice(3, 10)):
        keys, values = k[:, part], v[:, part]
        call = foveal.Call("backward", q=q, k=keys, v=values, out=given_out, lse=given_lse,
                           dout=dout, dq=torch.empty_like(q), dk=torch.empty_like(keys),
                           dv=torch.empty_like(values))
        actual = call.oracle("dq", "dk", "dv", use_given_out_and_lse=True)
        dq += actual["dq"]
        np.testing.assert_allclose(actual["dk"], expected["dk"][:, part].numpy(), atol=1e-5)
        np.testing.assert_allclose(actual["dv"], expected["dv"][:, part].numpy(), atol=1e-5)
    np.testing.assert_allclose(dq, expected["dq"].numpy(), atol=1e-5)


def test_philox_known_answers():
    """The vectors that the authors of Philox publish with their code hold for our own second one."""
    words = philox4x32(np.zeros((1, 4)), (0, 0))[0]
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = np.full((1, 4), 0xFFFFFFFF)
    words = philox4x32(ones, (0xFFFFFFFF, 0xFFFFFFFF))[0]
    assert [f"{word:08x}" for word in words] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
