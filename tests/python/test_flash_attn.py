"""foveal.flash_attn beside attention in PyTorch in float64 (torch_attention.py)."""

import inspect
import math

import pytest
import torch

import foveal
from attention_cases import Built, Case
from foveal import flash_attn
from foveal.flash_attn import (flash_attn_func, flash_attn_kvpacked_func,
                               flash_attn_qkvpacked_func, flash_attn_varlen_func,
                               flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func,
                               flash_attn_with_kvcache)
from foveal.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from package_cases import DEVICES, randn
from torch_attention import TorchAttention

on_devices = pytest.mark.parametrize("device", DEVICES)


def int32(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def leaf(tensor, device):
    return tensor.detach().to(device).requires_grad_()


def compare(function, operands, device, options, order=("q", "k", "v"), **call_options):
    """`function(*q, k, v)` with gradients; `options` are TorchAttention's."""
    attention = TorchAttention(operands, **options)
    expected, lse_exact = attention.forward()
    leaves = [leaf(operands[name], device) for name in order]
    out = function(*leaves, **call_options)
    torch.testing.assert_close(out.double().cpu(), expected, rtol=1e-4, atol=2e-5)
    dout = randn(*expected.shape)
    gradients = torch.autograd.grad(out, leaves, dout.to(device))
    exact = attention.gradients(expected, lse_exact, dout)
    for name, gradient in zip(order, gradients):
        torch.testing.assert_close(gradient.double().cpu(), exact[f"d{name}"], rtol=1e-3, atol=1e-4)


FEATURES = (
    {}, dict(causal=True), dict(softmax_scale=0.2, softcap=4.0), dict(window=(3, 1)),
    dict(window=(-1, 2), causal=True), dict(sinks=True, alibi="heads"),
    dict(alibi="batch", causal=True),
)


def flash_options(built):
    """A Built's options and side operands by flash-attn's names."""
    names = ("causal", "softmax_scale", "softcap", "window")
    options = {n: built.options[n] for n in names if built.options.get(n) is not None}
    if (window := options.pop("window", None)) is not None:
        options["window_size"] = window
    names = ("sinks", "alibi_slopes")
    return options | {n: built.operands[n] for n in names if built.operands.get(n) is not None}


@on_devices
@pytest.mark.parametrize("features", FEATURES)
def test_dense(device, features):
    built = Built(Case(lens=((7, 11), (7, 11)), headdim=16, **features))
    extra = {n: t.to(device) if isinstance(t, torch.Tensor) else t
             for n, t in flash_options(built).items()}
    compare(flash_attn_func, built.operands, device, built.options, **extra)


@on_devices
@pytest.mark.parametrize("features", FEATURES)
def test_packed(device, features):
    built = Built(Case(lens=((5, 9), (0, 4), (7, 7), (3, 0)), q_form="packed", k_form="packed",
                       headdim=16, **features))
    extra = {n: t.to(device) if isinstance(t, torch.Tensor) else t
             for n, t in flash_options(built).items()}
    lengths = [built.operands[n].to(device) for n in ("cu_seqlens_q", "cu_seqlens_k")]
    compare(lambda q, k, v: flash_attn_varlen_func(q, k, v, *lengths, 7, 9, **extra),
            built.operands, device, built.options)


@on_devices
def test_packed_projections(device):
    qkv = randn(2, 6, 3, 4, 8, device=device, grad=True)
    options = dict(causal=True, window_size=(3, 0))
    expected = flash_attn_func(*qkv.unbind(2), **options)
    torch.testing.assert_close(flash_attn_qkvpacked_func(qkv, **options), expected)
    torch.testing.assert_close(flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], **options),
                               expected)
    (dqkv,) = torch.autograd.grad(flash_attn_qkvpacked_func(qkv, **options).sin().sum(), qkv)
    (exact,) = torch.autograd.grad(expected.sin().sum(), qkv)
    torch.testing.assert_close(dqkv, exact)

    flat, cu_seqlens = qkv.flatten(0, 1), int32(0, 6, 12, device=device)
    packed = flash_attn_varlen_qkvpacked_func(flat, cu_seqlens, 6, **options)
    torch.testing.assert_close(packed, expected.flatten(0, 1))
    packed = flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], cu_seqlens, cu_seqlens, 6, 6,
                                             **options, sinks=None)
    torch.testing.assert_close(packed, expected.flatten(0, 1))


@on_devices
def test_gradients_of_sinks_and_lse(device):
    q, k, v = (leaf(randn(2, n, h, 8), device) for n, h in ((5, 4), (6, 2), (6, 2)))
    sinks = leaf(randn(4).to(torch.bfloat16), device)
    out, lse, _ = flash_attn_func(q, k, v, sinks=sinks, return_attn_probs=True)
    loss = out.sin().sum() + lse.cos().sum()
    actual = torch.autograd.grad(loss, (q, k, v, sinks))
    exact_leaves = [t.detach().double().cpu().requires_grad_() for t in (q, k, v, sinks)]
    q64, k64, v64, sinks64 = exact_leaves
    k64, v64 = (t.repeat_interleave(2, 2) for t in (k64, v64))
    scores = torch.einsum("bihd,bjhd->bhij", q64, k64) / math.sqrt(8)
    column = sinks64[None, :, None, None].expand(2, -1, 5, 1)
    exact_lse = torch.logsumexp(torch.cat([scores, column], -1), -1)
    p = torch.exp(scores - exact_lse[..., None])
    exact_out = torch.einsum("bhij,bjhd->bihd", p, v64)
    expected = torch.autograd.grad(exact_out.sin().sum() + exact_lse.cos().sum(), exact_leaves)
    for name, a, e in zip(("dq", "dk", "dv", "dsinks"), actual, expected):
        tolerance = 1e-4 if a.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(a.double().cpu(), e, rtol=tolerance, atol=tolerance, msg=name)
    assert actual[3].dtype == torch.bfloat16


@on_devices
@pytest.mark.parametrize("dropout_p", (0.0, 0.4))
@pytest.mark.parametrize("packed", (False, True))
def test_probabilities(device, dropout_p, packed):
    q, k, v = (randn(2, n, h, 8, device=device) for n, h in ((5, 4), (19, 2), (19, 2)))
    options = dict(causal=True, softcap=3.0, return_attn_probs=True, dropout_p=dropout_p)
    torch.manual_seed(4)
    if packed:
        lengths = [int32(0, n, 2 * n, device=device) for n in (5, 19)]
        out, lse, p = flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), *lengths, 5, 19,
                                             **options)
        out, lse = out.unflatten(0, (2, 5)), lse.unflatten(1, (2, 5)).transpose(0, 1)
    else:
        out, lse, p = flash_attn_func(q, k, v, **options)
    assert p.shape == (2, 4, 5, 19) and lse.shape == (2, 4, 5)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) / math.sqrt(8)
    scores = 3.0 * torch.tanh(scores / 3.0)
    hidden = torch.ones(5, 19, dtype=torch.bool, device=device).triu(15)
    expected = scores.masked_fill(hidden, -math.inf).softmax(-1)
    torch.testing.assert_close(p.abs(), expected, rtol=1e-4, atol=1e-5)
    assert (p < 0).any() == (dropout_p > 0)
    dropped = p.clamp(min=0) / (1 - dropout_p)
    torch.testing.assert_close(torch.einsum("bhij,bjhd->bihd", dropped, v.repeat_interleave(2, 2)),
                               out, rtol=1e-4, atol=1e-5)


@on_devices
def test_window_may_be_any_pair(device):
    q, k, v = (randn(1, 6, 2, 8, device=device) for _ in range(3))
    expected = flash_attn_func(q, k, v, window_size=(2, -1))
    for window in ([2, -7], torch.tensor([2, -1]), (2, 100)):
        torch.testing.assert_close(flash_attn_func(q, k, v, window_size=window), expected)


@on_devices
def test_used_lengths(device):
    q, k, v = (randn(2, 6, 2, 8, device=device) for _ in range(3))
    k.data[0, 4:] = math.nan
    out = flash_attn_func(q, k, v, causal=True, seqused_q=int32(3, 6, device=device),
                          seqused_k=int32(4, 6, device=device))
    torch.testing.assert_close(out[:1, :3], flash_attn_func(q[:1, :3], k[:1, :4], v[:1, :4],
                                                            causal=True))
    assert (out[0, 3:] == 0).all()


@on_devices
def test_a_row_that_sees_nothing(device):
    q, k, v = (randn(1, n, 2, 8, device=device) for n in (4, 2, 2))
    out, lse, p = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (out[:, :2] == 0).all() and torch.isneginf(lse[:, :, :2]).all()
    assert (p[:, :, :2] == 0).all()


@on_devices
def test_batch_invariant(device):
    q, k, v = (randn(4, n, 2, 8, device=device) for n in (1, 300, 300))
    whole = flash_attn_func(q, k, v, batch_invariant=True)
    alone = flash_attn_func(q[2:3], k[2:3], v[2:3], batch_invariant=True)
    assert torch.equal(whole[2:3], alone)


# -- Caches ----------------------------------------------------------------------------------------

CACHES = (
    dict(k_form="cache"), dict(k_form="cache", leftpad=2),
    dict(k_form="cache", cache_batch_idx=True),
    dict(k_form="paged", page_size=4), dict(k_form="paged", page_size=16, softcap=2.0, sinks=True),
    dict(k_form="cache", window=(4, 0), alibi="heads"),
)


@on_devices
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("rows", (1, 3))
@pytest.mark.parametrize("append", (None, "halves", "interleaved", "plain"))
def test_kvcache(device, cache, rows, append):
    new = dict(seqlen_new=rows) if append else {}
    if append in ("halves", "interleaved"):
        new |= dict(rotary=append, rotary_pairs=3)
    built = Built(Case(lens=((rows, 9), (rows, 17)), headdim=8, causal=True, **cache, **new))
    attention = TorchAttention(built.operands, **built.options)
    expected, lse_exact = attention.forward()
    given = {n: t.clone().to(device) for n, t in built.operands.items()}
    names = dict(k_new="k", v_new="v", rotary_cos="rotary_cos", rotary_sin="rotary_sin",
                 seqused_k="cache_seqlens", cache_batch_idx="cache_batch_idx",
                 leftpad_k="cache_leftpad", block_table="block_table", sinks="sinks",
                 alibi_slopes="alibi_slopes")
    options = {theirs: given[ours] for ours, theirs in names.items() if given.get(ours) is not None}
    out, lse = flash_attn_with_kvcache(
        given["q"], given["k"], given["v"], **options, causal=True, return_softmax_lse=True,
        window_size=built.options.get("window") or (-1, -1),
        softcap=built.options.get("softcap", 0.0), num_splits=3,
        rotary_interleaved=append == "interleaved")
    torch.testing.assert_close(out.double().cpu(), expected.detach(), rtol=1e-4, atol=5e-5)
    torch.testing.assert_close(lse.double().cpu(), lse_exact.detach(), rtol=1e-4, atol=5e-5)
    if append:
        k_exact, v_exact = attention.cache_after_append()
        torch.testing.assert_close(given["k"].double().cpu(), k_exact.detach(), equal_nan=True,
                                   rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(given["v"].double().cpu(), v_exact.detach(), equal_nan=True)


@on_devices
def test_kvcache_with_one_length_for_all_and_without(device):
    q, k, v = (randn(2, n, 2, 8, device=device, grad=True) for n in (1, 12, 12))
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=7)
    assert not out.requires_grad
    torch.testing.assert_close(out, flash_attn_func(q, k[:, :7], v[:, :7]).detach())
    torch.testing.assert_close(flash_attn_with_kvcache(q, k, v), flash_attn_func(q, k, v).detach())


@on_devices
def test_kvcache_repeats_decode_steps(device):
    """Tokens one at a time into a cache give what one causal call gives."""
    q, k, v = (randn(2, 9, h, 8, device=device) for h in (4, 2, 2))
    expected = flash_attn_func(q, k, v, causal=True)
    k_cache, v_cache = (torch.full((2, 16, 2, 8), math.nan, device=device) for _ in range(2))
    steps = [flash_attn_with_kvcache(q[:, i:i + 1], k_cache, v_cache, k[:, i:i + 1], v[:, i:i + 1],
                                     cache_seqlens=i, causal=True) for i in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), expected)


@on_devices
def test_packed_queries_on_pages(device):
    k, v = (randn(5, 4, 2, 8, device=device) for _ in range(2))
    table = int32(4, 0, 2, 1, device=device).view(2, 2)
    q, cu_q, cu_k = randn(5, 4, 8, device=device), int32(0, 2, 5), int32(0, 6, 13)
    lengths = [t.to(device) for t in (cu_q, cu_k)]
    out = flash_attn_varlen_func(q, k, v, *lengths, 3, 7, causal=True, block_table=table)
    for b, (begin, end, used) in enumerate(((0, 2, 6), (2, 5, 7))):
        rows = [t[table[b].long()].flatten(0, 1)[None, :used] for t in (k, v)]
        torch.testing.assert_close(out[begin:end],
                                   flash_attn_func(q[None, begin:end], *rows, causal=True)[0])
    with pytest.raises(foveal.Unsupported, match="return_attn_probs with block_table"):
        flash_attn_varlen_func(q, k, v, *lengths, 3, 7, block_table=table, return_attn_probs=True)


def test_compile_of_cache_and_varlen():
    torch._dynamo.reset()
    q, k, v = (randn(2, n, 2, 8) for n in (1, 1, 1))
    caches = [[torch.zeros(2, 8, 2, 8) for _ in range(2)] for _ in range(2)]
    used = int32(3, 5)

    def step(q, k_cache, v_cache, k, v, used):
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used, causal=True)

    expected = step(q, *caches[0], k, v, used)
    actual = torch.compile(step, fullgraph=True, backend="aot_eager")(q, *caches[1], k, v, used)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(caches[1], caches[0])

    packed = [randn(7, 2, 8, grad=True) for _ in range(3)]
    lengths = int32(0, 3, 7)

    def loss(q, k, v, lengths):
        return flash_attn_varlen_func(q, k, v, lengths, lengths, 4, 4, causal=True).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*packed, lengths), packed),
                               torch.autograd.grad(loss(*packed, lengths), packed))


# -- Padding, names --------------------------------------------------------------------------------


def test_padding_there_and_back():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    x = randn(4, 4, 3, grad=True)
    tokens, indices, cu_seqlens, longest, used = unpad_input(x, mask)
    assert cu_seqlens.tolist() == [0, 2, 2, 6, 8] and cu_seqlens.dtype == torch.int32
    assert longest == 4 and used.tolist() == [2, 0, 4, 2]
    torch.testing.assert_close(tokens, x[mask.bool()])
    torch.testing.assert_close(tokens, index_first_axis(x.flatten(0, 1), indices))
    padded = pad_input(tokens, indices, 4, 4)
    torch.testing.assert_close(padded, x * mask[..., None])
    (gradient,) = torch.autograd.grad(padded.sum(), x)
    torch.testing.assert_close(gradient, mask[..., None].expand(x.shape).to(x.dtype))
    unused = torch.tensor([[0, 0, 1, 0], [0] * 4, [0] * 4, [0] * 4])
    _, _, cu_seqlens, longest, used = unpad_input(x, mask, unused)
    assert cu_seqlens.tolist() == [0, 3, 3, 7, 9] and used.tolist() == [2, 0, 4, 2]


COMMON = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes",
          "deterministic", "return_attn_probs"]
LENGTHS = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
SIGNATURES = {
    "flash_attn_func": ["q", "k", "v", *COMMON],
    "flash_attn_kvpacked_func": ["q", "kv", *COMMON],
    "flash_attn_qkvpacked_func": ["qkv", *COMMON],
    "flash_attn_varlen_func": ["q", "k", "v", *LENGTHS, *COMMON, "block_table"],
    "flash_attn_varlen_kvpacked_func": ["q", "kv", *LENGTHS, *COMMON],
    "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *COMMON],
    "flash_attn_with_kvcache": [
        "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens",
        "cache_batch_idx", "cache_leftpad", "block_table", "softmax_scale", "causal",
        "window_size", "softcap", "rotary_interleaved", "alibi_slopes", "num_splits",
        "return_softmax_lse"],
}
DEFAULTS = dict(dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                alibi_slopes=None, deterministic=False, return_attn_probs=False,
                rotary_interleaved=True, num_splits=0, return_softmax_lse=False, block_table=None)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_flash_attns(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    positional = [p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == SIGNATURES[name]
    for parameter in positional:
        if parameter.name in DEFAULTS:
            assert parameter.default == DEFAULTS[parameter.name], parameter


def test_errors():
    q = randn(1, 4, 2, 8)
    with pytest.raises(foveal.InvalidArgument, match="dropout_p 1.5: it must be between 0 and 1"):
        flash_attn_func(q, q, q, dropout_p=1.5)
    with pytest.raises(foveal.InvalidArgument, match="seqused_k"):
        flash_attn_with_kvcache(q, q, q, q, q)
    with pytest.raises(foveal.InvalidArgument, match="cu_seqlens_k must end at"):
        flash_attn_varlen_func(q[0], q[0], q[0], int32(0, 4), int32(0, 3), 4, 4)
    with pytest.raises(foveal.InvalidArgument, match="cu_seqlens_q has elements of type int64"):
        flash_attn_varlen_func(q[0], q[0], q[0], torch.tensor([0, 4]), int32(0, 4), 4, 4)
    with pytest.raises(foveal.InvalidArgument, match="q has elements of type float64"):
        flash_attn_func(q.double(), q.double(), q.double())
