"""foveal.scaled_dot_product_attention beside PyTorch's own in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import foveal
from package_cases import DEVICES, compare_sdpa, exact_sdpa, randn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
sdpa = foveal.scaled_dot_product_attention
on_devices = pytest.mark.parametrize("device", DEVICES)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", (False, True))
@pytest.mark.parametrize("rows", ((7, 7), (7, 12), (12, 7), (1, 9), (9, 1), (70, 130)))
def test_lengths_and_causal(device, dtype, is_causal, rows):
    q, k, v = (randn(2, 3, n, 16, dtype=dtype, device=device) for n in (rows[0], rows[1], rows[1]))
    compare_sdpa(q, k, v, is_causal=is_causal)


@on_devices
@pytest.mark.parametrize("headdim", (1, 3, 17, 64, 80, 96, 192, 256, 512))
def test_headdim(device, headdim):
    compare_sdpa(*(randn(1, 2, 6, headdim, device=device) for _ in range(3)), is_causal=True)


@on_devices
@pytest.mark.parametrize("mask_shape", (
    (5, 8), (1, 8), (5, 1), (3, 5, 8), (1, 1, 1, 8), (2, 1, 5, 8), (2, 3, 5, 8), (1, 3, 1, 1),
    (8,)))
@pytest.mark.parametrize("kind", ("bool", "float", "same"))
def test_attn_mask(device, mask_shape, kind):
    dtype = torch.bfloat16 if kind == "same" else torch.float32
    q, k, v = (randn(2, 3, n, 16, dtype=dtype, device=device) for n in (5, 8, 8))
    mask = randn(*mask_shape, dtype=dtype, device=device)
    compare_sdpa(q, k, v, mask > 0 if kind == "bool" else mask)


@on_devices
def test_mask_alone_has_a_gradient(device):
    q, k, v = (randn(1, 2, 4, 8, device=device) for _ in range(3))
    mask = randn(4, 4, device=device, grad=True)
    out = sdpa(q, k, v, mask)
    expected, (*_, exact_mask) = exact_sdpa(q, k, v, mask)
    dout = torch.randn_like(out)
    (dmask,) = torch.autograd.grad(out, mask, dout)
    (exact,) = torch.autograd.grad(expected, exact_mask, dout.double())
    torch.testing.assert_close(dmask.double(), exact, rtol=1e-4, atol=1e-5)


@on_devices
@pytest.mark.parametrize("lead", ((), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)))
@pytest.mark.parametrize("is_causal", (False, True))
def test_leading_dimensions(device, lead, is_causal):
    q, k, v = (randn(*lead, n, 8, device=device) for n in (4, 6, 6))
    compare_sdpa(q, k, v, is_causal=is_causal)


@on_devices
@pytest.mark.parametrize("shapes", (((2, 3), (1, 3), (1, 1)), ((1, 3), (2, 3), (2, 3)),
                                    ((2, 1), (2, 3), (1, 3)), ((2, 4, 3), (4, 3), (1, 1, 3))))
def test_broadcast_dimensions(device, shapes):
    q, k, v = (randn(*lead, n, 8, device=device) for lead, n in zip(shapes, (4, 6, 6)))
    compare_sdpa(q, k, v)


@on_devices
@pytest.mark.parametrize("mask_lead", ((), (1, 1), (2, 2, 1), (2, 1, 3), (1, 2, 3)))
def test_mask_of_five_dimensions(device, mask_lead):
    q, k, v = (randn(2, 2, 3, n, 8, device=device) for n in (4, 6, 6))
    compare_sdpa(q, k, v, randn(*mask_lead, 4, 6, device=device))


@on_devices
@pytest.mark.parametrize("heads", ((4, 2), (6, 1), (3, 3)))
@pytest.mark.parametrize("dims", (3, 4, 5))
def test_grouped_heads(device, heads, dims):
    lead = (2, 2)[:dims - 3]
    q, k, v = (randn(*lead, h, 5, 8, device=device) for h in (heads[0], heads[1], heads[1]))
    compare_sdpa(q, k, v, enable_gqa=True, is_causal=True)


@on_devices
@pytest.mark.parametrize("scale", (0.3, -0.5, 0.0, 2))
def test_scale(device, scale):
    compare_sdpa(*(randn(1, 2, 5, 16, device=device) for _ in range(3)), scale=scale)


@on_devices
def test_strided_and_expanded_inputs(device):
    qkv = randn(2, 6, 3, 2, 16, device=device)  # batch, rows, q k v, heads, headdim
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    compare_sdpa(q, k, v)
    compare_sdpa(q, k[:1].expand(2, -1, -1, -1), v[:, :1].expand(-1, 2, -1, -1))
    compare_sdpa(q.transpose(2, 3).contiguous().transpose(2, 3), k, v)  # Gaps between elements.
    compare_sdpa(q[:, :, ::2], k.flip(2), v)


@on_devices
@pytest.mark.parametrize("sizes", ((0, 2, 4, 4), (2, 0, 4, 4), (2, 2, 0, 4), (2, 2, 4, 0)))
def test_empty_dimensions(device, sizes):
    batch, heads, rows, keys = sizes
    q, k, v = (randn(batch, heads, n, 8, device=device) for n in (rows, keys, keys))
    compare_sdpa(q, k, v)


@on_devices
def test_rows_that_see_nothing_are_zero(device):
    q, k, v = (randn(1, 2, 4, 8, device=device, grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool, device=device)
    mask[1] = False
    out = sdpa(q, k, v, mask)
    assert (out[:, :, 1] == 0).all()
    out.sum().backward()
    assert (q.grad[:, :, 1] == 0).all() and q.grad.isfinite().all() and k.grad.isfinite().all()
    compare_sdpa(q, k, v, torch.where(mask, 0.0, -math.inf))


@on_devices
@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_masks_with_nan_and_inf_act_as_in_pytorch(device, value):
    q, k, v = (randn(1, 2, 4, 8, device=device) for _ in range(3))
    mask = torch.zeros(4, 4, device=device)
    mask[2, 1] = value
    expected, _ = exact_sdpa(q, k, v, mask)
    out = sdpa(q, k, v, mask).double()
    assert torch.equal(out.isnan(), expected.isnan())
    torch.testing.assert_close(out, expected.detach(), equal_nan=True, rtol=1e-5, atol=1e-5)


@on_devices
@pytest.mark.parametrize("grad", (False, True))
def test_dropout_takes_the_generator_of_pytorch(device, grad):
    q, k = (randn(2, 2, 64, 8, device=device, grad=grad) for _ in range(2))
    v = torch.ones(2, 2, 64, 8, device=device)
    torch.manual_seed(3)
    first, second = sdpa(q, k, v, dropout_p=0.4), sdpa(q, k, v, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(first, sdpa(q, k, v, dropout_p=0.4))
    assert not torch.equal(first, second)
    # Every row of the probabilities sums up to 1, and dropout keeps that on average.
    assert abs(first.mean().item() - 1) < 0.05
    assert (sdpa(q, k, v, dropout_p=1.0) == 0).all()


def test_dropout_gradient_is_that_of_its_mask():
    """With one-hot values, out is the dropped probabilities, and so is the linear map to them."""
    q, k = (randn(1, 1, 8, 8) for _ in range(2))
    v = torch.eye(8).reshape(1, 1, 8, 8).requires_grad_()
    torch.manual_seed(5)
    dropped = sdpa(q, k, v, dropout_p=0.5)
    dout = randn(1, 1, 8, 8)
    (dv,) = torch.autograd.grad(dropped, v, dout)
    torch.testing.assert_close(dv, dropped.detach().transpose(-1, -2) @ dout)
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[kept], 2 * sdpa(q, k, v)[kept])


@pytest.mark.parametrize("case", (
    dict(query=randn(1, 2, 4, 8, dtype=torch.float64), key=randn(1, 2, 4, 8, dtype=torch.float64),
         value=randn(1, 2, 4, 8, dtype=torch.float64)),
    dict(query=randn(1, 2, 4, 8), key=randn(1, 2, 6, 8), value=randn(1, 2, 6, 5)),
    dict(query=randn(1, 2, 4, 520), key=randn(1, 2, 6, 520), value=randn(1, 2, 6, 520)),
    dict(query=randn(1, 2, 4, 0), key=randn(1, 2, 6, 0), value=randn(1, 2, 6, 0)),
    dict(query=randn(1, 2, 6, 8), key=randn(1, 2, 6, 8), value=randn(1, 2, 6, 8),
         attn_mask=randn(6, 6), is_causal=True),
))
def test_what_is_left_to_pytorch(case):
    torch.testing.assert_close(sdpa(**case), F.scaled_dot_product_attention(**case),
                               equal_nan=True)
    explained = foveal.explain(sdpa, **case)
    assert explained.kernel == "torch"
    assert "PyTorch's own function" in repr(explained)


@pytest.mark.parametrize("case", (
    dict(key=randn(1, 2, 4, 9)),  # headdim
    dict(key=randn(2, 2, 4, 8), value=randn(3, 2, 4, 8)),
    dict(query=randn(1, 4, 4, 8)),  # heads without enable_gqa
    dict(query=randn(1, 3, 4, 8), enable_gqa=True),
    dict(key=randn(1, 2, 4, 8, dtype=torch.float16)),
    dict(attn_mask=randn(3, 2, 4, 4)),
    dict(attn_mask=randn(4, 4, dtype=torch.float64)),
    dict(attn_mask=randn(4, 5)),
    dict(attn_mask=torch.ones(4, 4, dtype=torch.int32)),
    dict(query=randn(8)),
    dict(dropout_p=1.5),
    dict(scale="a"),
    dict(query=[1.0]),
    dict(attn_mask=3),
    dict(key=torch.empty(1, 2, 4, 8, device="meta")),
))
def test_pytorch_refuses_what_it_refuses(case):
    arguments = {name: randn(1, 2, 4, 8) for name in ("query", "key", "value")} | case
    with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)) as expected:
        F.scaled_dot_product_attention(**arguments)
    with pytest.raises(type(expected.value)):
        sdpa(**arguments)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_problems(data):
    draw = data.draw
    batch, heads_k, group = (draw(st.integers(1, 3)) for _ in range(3))
    rows, keys, headdim = (draw(st.integers(1, most)) for most in (40, 70, 40))
    dtype = draw(st.sampled_from(DTYPES))
    torch.manual_seed(draw(st.integers(0, 1000)))
    q = randn(batch, heads_k * group, rows, headdim, dtype=dtype)
    k, v = (randn(batch, heads_k, keys, headdim, dtype=dtype) for _ in range(2))
    mask, is_causal = None, draw(st.booleans())
    if not is_causal and draw(st.booleans()):
        shape = [draw(st.sampled_from((1, n))) for n in (batch, heads_k * group, rows, keys)]
        mask = randn(*shape, dtype=draw(st.sampled_from((dtype, torch.float32))))
        mask = mask > -1 if draw(st.booleans()) else mask
    scale = draw(st.sampled_from((None, 0.2)))
    compare_sdpa(q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=group > 1)
