"""What PyTorch does with operators: compile, export, vmap, checkpoint, autocast, inference mode,
double backward, opcheck."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import foveal
from foveal import _torch_ops
from foveal.flash_attn import flash_attn_func
from package_cases import DEVICES, randn

sdpa = foveal.scaled_dot_product_attention
on_devices = pytest.mark.parametrize("device", DEVICES)
ops = torch.ops.foveal


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


def qkv(rows=6, keys=9, heads_k=4, headdim=16, grad=False, device="cpu", dtype=torch.float32):
    return [randn(2, heads, n, headdim, grad=grad, device=device, dtype=dtype)
            for heads, n in ((4, rows), (heads_k, keys), (heads_k, keys))]


# -- opcheck ---------------------------------------------------------------------------------------

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor",
          "test_aot_dispatch_dynamic")


@on_devices
@pytest.mark.parametrize("masked", (False, True))
def test_opcheck_sdpa(device, masked):
    mask = randn(1, 4, 6, 9, device=device) if masked else None
    torch.library.opcheck(ops.sdpa.default, (*qkv(device=device), mask, not masked, 0.5, False),
                          test_utils=CHECKS)


@on_devices
@pytest.mark.parametrize("bhsd", (False, True))
@pytest.mark.parametrize("want_lse", (False, True))
def test_opcheck_forward(device, bhsd, want_lse):
    arguments = qkv(device=device) if bhsd else [t.transpose(1, 2) for t in qkv(device=device)]
    shared = _torch_ops.options(bhsd=bhsd, softcap=3.0, window_size=(4, 1),
                                sinks=randn(4, device=device))
    torch.library.opcheck(ops.forward.default, (*arguments, *shared, want_lse, False),
                          test_utils=CHECKS)


@on_devices
def test_opcheck_packed_and_backward(device):
    q, k, v = (randn(7, heads, 8, device=device) for heads in (4, 2, 2))
    cu_seqlens = torch.tensor([0, 3, 3, 7], dtype=torch.int32, device=device)
    shared = _torch_ops.options(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=4,
                                max_seqlen_k=4, causal=_torch_ops.Causal.BOTTOM_RIGHT)
    torch.library.opcheck(ops.forward.default, (q, k, v, *shared, True, True), test_utils=CHECKS)
    out, lse = ops.forward.default(q, k, v, *shared, True, False)
    needs = (True, False, True, False, False)
    torch.library.opcheck(ops.backward.default,
                          (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse, *shared,
                           *needs), test_utils=CHECKS)


@on_devices
def test_opcheck_caches(device):
    q, k_new, v_new = (randn(2, 1, heads, 8, device=device) for heads in (4, 2, 2))
    k_cache, v_cache = (randn(2, 16, 2, 8, device=device) for _ in range(2))
    used = torch.tensor([3, 9], dtype=torch.int32, device=device)
    shared = _torch_ops.options(seqused_k=used)
    cos, sin = (randn(16, 4, device=device) for _ in range(2))
    torch.library.opcheck(
        ops.forward_append.default,
        (q, k_cache, v_cache, k_new, v_new, cos, sin, True, *shared, True), test_utils=CHECKS)
    torch.library.opcheck(
        ops.append_kv.default,
        (q, k_cache, v_cache, k_new, v_new, cos, sin, False, used, None, None, None, True),
        test_utils=CHECKS)


@on_devices
def test_opcheck_merge(device):
    parts = [t for _ in range(2)
             for t in (randn(2, 5, 4, 8, device=device), randn(2, 4, 5, device=device))]
    torch.library.opcheck(ops.merge.default, tuple(parts), test_utils=CHECKS)


# -- Tracing ---------------------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("options", (
    {}, dict(is_causal=True, scale=0.2), dict(attn_mask="mask"), dict(dropout_p=0.3),
    dict(enable_gqa=True, heads_k=2)))
def test_compile_in_one_graph(device, options):
    options = dict(options)
    q, k, v = qkv(grad=True, device=device, heads_k=options.pop("heads_k", 4))
    if "attn_mask" in options:
        options["attn_mask"] = randn(6, 9, device=device, grad=True)

    def loss(q, k, v):
        return sdpa(q * 2, k, v, **options).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    torch.manual_seed(0)
    torch.testing.assert_close(torch.autograd.grad(compiled(q, k, v), (q, k, v)), expected)
    with torch.no_grad():
        torch.manual_seed(0)
        value = loss(q, k, v)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(q, k, v), value)


def test_compile_takes_one_tensor_three_times():
    x = randn(1, 2, 5, 8, grad=True)
    compiled = torch.compile(lambda x: sdpa(x, x, x).sin().sum(), fullgraph=True,
                             backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x),
                               torch.autograd.grad(sdpa(x, x, x).sin().sum(), x))


def test_compile_by_inductor_with_dynamic_shapes():
    compiled = torch.compile(lambda q, k, v: sdpa(q + 1, k, v, is_causal=True) * 2, fullgraph=True,
                             dynamic=True)
    with torch.no_grad():
        for keys in (9, 12, 5):
            q, k, v = qkv(keys=keys)
            torch.testing.assert_close(compiled(q, k, v), sdpa(q + 1, k, v, is_causal=True) * 2)


@pytest.mark.parametrize("strict", (False, True))
def test_export(strict):
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True)

    q, k, v = qkv()
    exported = torch.export.export(Attention(), (q, k, v), strict=strict)
    targets = {str(node.target) for node in exported.graph.nodes}
    assert any("foveal.sdpa" in target for target in targets), targets
    torch.testing.assert_close(exported.module()(q, k, v), sdpa(q, k, v, is_causal=True))


# -- Transforms ------------------------------------------------------------------------------------


@on_devices
def test_vmap_over_the_batch(device):
    q, k, v = (t.unflatten(0, (2, 1)) for t in qkv(device=device))
    mask = randn(2, 6, 9, device=device)
    torch.testing.assert_close(torch.vmap(sdpa)(q, k, v), sdpa(q, k, v))
    torch.testing.assert_close(torch.vmap(sdpa)(q[:, 0], k[:, 0], v[:, 0], mask),
                               sdpa(q, k, v, mask[:, None, None])[:, 0])
    torch.testing.assert_close(torch.vmap(sdpa, in_dims=(0, None, None))(q, k[0], v[0]),
                               sdpa(q, k[:1], v[:1]))
    moved = q.movedim(0, 2)
    torch.testing.assert_close(torch.vmap(sdpa, in_dims=(2, 0, 0))(moved, k, v), sdpa(q, k, v))


@on_devices
def test_vmap_of_grad(device):
    q, k, v = qkv(device=device)

    def loss(q, k, v):
        return sdpa(q, k, v, is_causal=True).sin().sum()

    each = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    whole = torch.func.grad(lambda *t: loss(*t), argnums=(0, 1, 2))(q, k, v)
    torch.testing.assert_close(each, whole)


@on_devices
def test_vmap_with_dropout_and_packed(device):
    q, k, v = (t.unsqueeze(1) for t in qkv(device=device))
    torch.manual_seed(1)
    out = torch.vmap(lambda *t: sdpa(*t, dropout_p=0.5), randomness="different")(q, k, v)
    assert out.shape == q.shape and not torch.equal(out, sdpa(q, k, v))
    packed = [randn(3, 7, 2, 8, device=device) for _ in range(3)]
    cu_seqlens = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)

    def attend(q, k, v):
        return foveal.forward(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)

    torch.testing.assert_close(torch.vmap(attend)(*packed),
                               torch.stack([attend(*row) for row in zip(*packed)]))


@on_devices
@pytest.mark.parametrize("use_reentrant", (False, True))
def test_checkpoint_repeats_its_dropout(device, use_reentrant):
    q, k, v = qkv(grad=True, device=device)

    def attend(q, k, v):
        return sdpa(q, k, v, dropout_p=0.3)

    torch.manual_seed(2)
    expected = torch.autograd.grad(attend(q, k, v).sin().sum(), (q, k, v))
    torch.manual_seed(2)
    checkpoint(attend, q, k, v, use_reentrant=use_reentrant).sin().sum().backward()
    torch.testing.assert_close((q.grad, k.grad, v.grad), expected, rtol=0, atol=0)


@on_devices
@pytest.mark.parametrize("grad", (False, True))
def test_autocast_casts_as_pytorch_does(device, grad):
    q, k, v = qkv(grad=grad, device=device)
    mask = randn(6, 9, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out, expected = sdpa(q, k.half(), v, mask), F.scaled_dot_product_attention(q, k, v, mask)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    if grad:
        out.sum().backward()
        assert q.grad.dtype == torch.float32


@on_devices
def test_inference_mode(device):
    q, k, v = qkv(device=device)
    expected = sdpa(q, k, v)
    with torch.inference_mode():
        out = sdpa(q.clone(), k.clone(), v.clone())
    assert out.is_inference()
    torch.testing.assert_close(out.clone(), expected)


def test_double_backward_is_refused_in_words():
    q, k, v = qkv(grad=True)
    (dq,) = torch.autograd.grad(sdpa(q, k, v).sin().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        dq.sum().backward()
    with pytest.raises(NotImplementedError, match="double backward"):
        first = torch.func.grad(lambda q: sdpa(q, k, v).sin().sum())
        torch.func.grad(lambda q: first(q).sum())(q)


@pytest.mark.parametrize("is_causal", (False, True))
def test_gradcheck(is_causal):
    """Numerical differentiation in fp32, with the step and the tolerance that fp32 leaves."""
    q, k, v = (randn(1, 2, n, 4, grad=True) for n in (3, 4, 4))
    mask = None if is_causal else randn(3, 4, grad=True)
    torch.autograd.gradcheck(
        lambda *t: sdpa(*t, is_causal=is_causal), (q, k, v) if mask is None else (q, k, v, mask),
        eps=1e-2, atol=2e-3, rtol=2e-2, fast_mode=False)


def test_meta_tensors():
    q, k, v = qkv(device="meta")
    assert sdpa(q, k, v).device.type == "meta" and sdpa(q, k, v, dropout_p=0.5).shape == q.shape
    assert flash_attn_func(q, k, v, causal=True).shape == q.shape


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(2, 4, n, 8) for n in (3, 5, 5))
        assert sdpa(q, k, v).shape == (2, 4, 3, 8)
        assert sdpa(q[0], k[0], v[0]).shape == (4, 3, 8)
        assert sdpa(q.double(), k.double(), v.double()).dtype == torch.float64


def test_no_python_frame_where_no_gradient_is_needed():
    """The operators have no kernel of Python's at the autograd keys, and no graph is made."""
    for name in ("sdpa", "forward", "backward"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"foveal::{name}", "AutogradCPU")
    q, k, v = qkv(grad=True)
    with torch.no_grad():
        assert sdpa(q, k, v).grad_fn is None
    assert sdpa(q, k, v).grad_fn is not None


# -- Threads ---------------------------------------------------------------------------------------


def test_many_threads_at_once():
    cases = [qkv(rows=5 + i, keys=40 + 3 * i, grad=True) for i in range(6)]

    def gradients(q, k, v):
        out = sdpa(q, k, v, is_causal=True)
        return (out, *torch.autograd.grad(out.sin().sum(), (q, k, v)))

    expected = [gradients(*case) for case in cases]
    failures = []

    def work(index):
        try:
            for turn in range(20):
                i = (index + turn) % len(cases)
                torch.testing.assert_close(gradients(*cases[i]), expected[i], rtol=0, atol=0)
        except Exception as error:  # Seen by the test's own thread.
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_number_of_threads_is_pytorchs():
    program = ("import torch, foveal; torch.set_num_threads(3)\n"
               "q = torch.randn(1, 8, 256, 64)\n"
               "print(foveal.explain(foveal.scaled_dot_product_attention, q, q, q).configuration)")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                            env=os.environ, check=True)
    assert "3 threads" in result.stdout
