"""foveal.forward, backward, merge, append_kv, explain and devices, over NumPy's arrays, PyTorch's
tensors and whatever has __dlpack__."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import foveal
from foveal._explanation import is_listening
from attention_cases import Built, append_grid, can_run_backward, case_id, grid
from test_kernels_against_torch import assert_close, assert_lse_close
from torch_attention import TorchAttention

OPTIONS = dict(softcap=5.0, causal=True)


class OnlyDLPack:
    """An array that shows nothing but the protocol, and makes its own kind."""

    def __init__(self, array):
        self._array = array
        self.dtype, self.device = array.dtype, "cpu"

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __array_namespace__(self):
        return OnlyDLPack

    float32 = np.float32

    @staticmethod
    def empty(shape, dtype, device):
        return OnlyDLPack(np.empty(shape, dtype))

    def numpy(self):
        return self._array


def operands(dtype=np.float32):
    random = np.random.default_rng(0)
    return [random.standard_normal((2, n, heads, 16)).astype(dtype)
            for n, heads in ((5, 4), (9, 2), (9, 2))]


def exact(q, k, v, **options):
    tensors = map(torch.from_numpy, (q, k, v))
    attention = TorchAttention(dict(zip("qkv", tensors)), **options)
    return attention, *attention.forward()


@pytest.mark.parametrize("kind", (np.asarray, torch.from_numpy, OnlyDLPack))
def test_every_kind_of_array(kind):
    q, k, v = operands()
    attention, out_exact, lse_exact = exact(q, k, v, **OPTIONS)
    out, lse = foveal.forward(kind(q), kind(k), kind(v), return_lse=True, **OPTIONS)
    assert type(out) is type(kind(q)) and type(lse) is type(out)
    plain = out.numpy() if hasattr(out, "numpy") else out
    np.testing.assert_allclose(plain, out_exact.detach().numpy(), rtol=1e-4, atol=1e-5)
    dout = np.random.default_rng(1).standard_normal(out_exact.shape).astype(np.float32)
    gradients = foveal.backward(kind(dout), kind(q), kind(k), kind(v), out, lse, **OPTIONS)
    expected = attention.gradients(out_exact, lse_exact, torch.from_numpy(dout))
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        gradient = gradient.numpy() if hasattr(gradient, "numpy") else gradient
        np.testing.assert_allclose(gradient, expected[name].numpy(), rtol=1e-3, atol=1e-4)


def test_numpy_strides_half_and_given_out():
    q, k, v = operands(np.float16)
    _, out_exact, _ = exact(q, k, v)
    wide = np.zeros((2, 5, 4, 40), np.float16)
    assert foveal.forward(q[:, ::-1], k, v, out=wide[..., 3:19]) .base is wide
    np.testing.assert_allclose(wide[:, ::-1, :, 3:19], out_exact.detach().numpy(), rtol=0.01,
                               atol=0.01)
    assert (wide[..., 19:] == 0).all()
    q.flags.writeable = False
    assert foveal.forward(q, k, v).dtype == np.float16


def test_merge_of_two_parts_is_the_whole():
    q, k, v = operands()
    whole, lse = foveal.forward(q, k, v, return_lse=True)
    parts = [foveal.forward(q, k[:, part], v[:, part], return_lse=True)
             for part in (slice(0, 4), slice(4, 9))]
    for kind in (np.asarray, torch.from_numpy):
        merged, merged_lse = foveal.merge(*(kind(t) for part in parts for t in part))
        np.testing.assert_allclose(merged, whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(merged_lse, lse, rtol=1e-5, atol=1e-6)


def test_merge_has_the_gradient_of_the_whole():
    q, k, v = (torch.from_numpy(t).requires_grad_() for t in operands())

    def loss(out, lse):
        return (out.sin() * 2).sum() + lse.cos().sum()

    expected = torch.autograd.grad(loss(*foveal.forward(q, k, v, return_lse=True)), (q, k, v))
    parts = [foveal.forward(q, k[:, part], v[:, part], return_lse=True)
             for part in (slice(0, 4), slice(4, 9))]
    actual = torch.autograd.grad(loss(*foveal.merge(*parts[0], *parts[1])), (q, k, v))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", (np.asarray, torch.from_numpy))
def test_append_then_attend(kind):
    random = np.random.default_rng(2)
    q, k_new, v_new = (random.standard_normal((2, 1, h, 8)).astype(np.float32) for h in (4, 2, 2))
    k, v = (random.standard_normal((2, 8, 2, 8)).astype(np.float32) for _ in range(2))
    angles = random.standard_normal((8, 3))
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    used = np.array([2, 5], np.int32)
    k_given = k.copy()
    rotated = foveal.append_kv(kind(k), kind(v), kind(k_new), kind(v_new), kind(used), q=kind(q),
                               rotary_cos=kind(cos), rotary_sin=kind(sin))
    assert (k[0, 2] != k_given[0, 2]).any() and (v[1, 5] == v_new[1, 0]).all()
    k_given[[0, 1], used] = k[[0, 1], used]
    np.testing.assert_array_equal(k, k_given)  # Nothing else was written.
    np.testing.assert_allclose(np.asarray(rotated)[..., 6:], q[..., 6:])
    assert not np.allclose(np.asarray(rotated)[..., :6], q[..., :6])
    assert foveal.append_kv(kind(k), kind(v), kind(k_new), kind(v_new), kind(used)) is None


# -- The operators over the grid of features -------------------------------------------------------


def torch_options(built):
    options = dict(built.options)
    options["window_size"] = options.pop("window", None)
    extra = {n: t for n, t in built.operands.items() if n not in "qkv"}
    if (bias := extra.get("bias")) is not None and bias.dtype == torch.uint8:
        extra["bias"] = bias.bool()
    return extra | options


@pytest.mark.parametrize("case", append_grid()[::3], ids=case_id)
def test_operators_append(case):
    built = Built(case)
    exact = TorchAttention(built.operands, **built.options)
    plain = TorchAttention(built.operands, dtype=built.dtype, **built.options)
    out, lse = foveal.forward(*(built.operands[name] for name in "qkv"), return_lse=True,
                              **torch_options(built))
    assert_close("out", case.dtype, out, exact.forward()[0], plain.forward()[0].detach())


@pytest.mark.parametrize("case", [c for c in grid() if c.dtype == "fp32"][::4], ids=case_id)
def test_operators_over_the_grid(case):
    built = Built(case)
    given = {name: built.operands[name].detach().clone() for name in "qkv"}
    options = torch_options(built)
    attention = TorchAttention(built.operands, **built.options)
    expected, lse_exact = attention.forward()
    learned = [n for n in ("bias", "sinks") if (t := options.get(n)) is not None
               and t.is_floating_point()]
    backward = can_run_backward(case)
    if backward:
        for leaf in (*given.values(), *(options[n] for n in learned)):
            leaf.requires_grad_()
    out, lse = foveal.forward(**given, return_lse=True, **options)
    assert_close("out", "fp32", out.detach(), expected, expected.float())
    assert_lse_close(lse.detach(), lse_exact)
    if backward:
        upstream = built.gradient_inputs()
        finite = torch.isfinite(lse)
        loss = (out * upstream["dout"]).sum()
        if upstream.get("dlse") is not None:
            loss = loss + (lse[finite] * upstream["dlse"][finite]).sum()
        loss.backward()
        leaves = given | {n: options[n] for n in learned}
        for name, gradient in attention.gradients(expected, lse_exact, **upstream).items():
            torch.testing.assert_close(leaves[name[1:]].grad.double(), gradient, rtol=1e-3,
                                       atol=1e-4 * max(1.0, gradient.abs().max().item()))


# -- Errors, explanations, devices -----------------------------------------------------------------


def _read_only(array):
    array.flags.writeable = False
    return array


def _unaligned(array):
    records = np.zeros(array.shape, [("value", array.dtype), ("rest", "i1")])
    records["value"] = array
    return records["value"]


@pytest.mark.parametrize("change,message", (
    (dict(out=_read_only(np.zeros((2, 5, 4, 16), np.float32))), "out is read-only"),
    (dict(q=operands(">f4")[0]), "q is >f4: the byte order of another machine"),
    (dict(seqused_k=np.array([9, 9], ">i4")), "seqused_k is >i4: the byte order"),
    (dict(k=_unaligned(operands()[1])), "k has strides .* its elements of 4 don't divide them"),
    (dict(v=np.ma.masked_array(operands()[2])), "v is a masked array"),
    (dict(seqused_k=np.array([9, 9])), "seqused_k has elements of type int64: .* int32 for lengths"),
    (dict(q=None), "q is None: it is needed"),
    (dict(k=None), "k is missing"),
    (dict(window_size=3), r"window_size 3: a pair \(left, right\) is needed"),
    (dict(window_size=(1, 2, 3)), r"a pair \(left, right\) is needed"),
    (dict(window_size=(None, 0)), "window_size_left is a NoneType: an integer is needed"),
    (dict(window_size=((1 << 64) - 1, 0)), r"window_size_left 18446744073709551615: .* below 2\^63"),
    (dict(dropout_seed=-1), r"dropout_seed -1: at least 0 and below 2\^64"),
    (dict(dropout_seed=1 << 64), "dropout_seed 18446744073709551616"),
    (dict(max_seqlen_q=1 << 64), "max_seqlen_q 18446744073709551616"),
))
def test_what_numpy_may_hold_and_the_engine_not(change, message):
    with pytest.raises(foveal.InvalidArgument, match=message):
        foveal.forward(**dict(zip("qkv", operands())) | change)


@pytest.mark.parametrize("change,message", (
    (dict(cu_seqlens_q=[0, 8]), "cu_seqlens_q is a list: a tensor is needed"),
    (dict(max_seqlen_q=8.0), "max_seqlen_q is a float: an integer is needed"),
))
def test_what_the_dispatcher_refuses(change, message):
    lengths = torch.tensor([0, 8], dtype=torch.int32)
    packed = dict(cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=8, max_seqlen_k=8)
    q = torch.zeros(8, 2, 16)
    with pytest.raises(foveal.InvalidArgument) as caught:
        foveal.forward(q, q, q, **packed | change)
    assert str(caught.value) == message


def test_a_mapped_cache_is_not_appended_to(tmp_path):
    np.save(tmp_path / "cache.npy", np.zeros((2, 8, 2, 16), np.float32))
    cache = np.load(tmp_path / "cache.npy", mmap_mode="r")
    new = np.zeros((2, 1, 2, 16), np.float32)
    with pytest.raises(foveal.InvalidArgument, match="k is read-only"):
        foveal.append_kv(cache, cache, new, new, np.zeros(2, np.int32))


@pytest.mark.parametrize("kind", (np.asarray, torch.from_numpy))
@pytest.mark.parametrize("change,message", (
    (dict(k=np.zeros((2, 9, 3, 16), np.float32), v=np.zeros((2, 9, 3, 16), np.float32)),
     "nheads_q 4: it must be a multiple of nheads_k 3"),
    (dict(softcap=-1.0), "softcap -1: it must be finite and at least 0, which is off"),
    (dict(q=np.zeros((2, 5, 4, 520), np.float32), k=np.zeros((2, 9, 2, 520), np.float32),
          v=np.zeros((2, 9, 2, 520), np.float32)), "headdim 520: at most 512"),
    (dict(window_size=(-2, 0)), "window_size_left -2: at least -1, which is unbounded"),
    (dict(cu_seqlens_q=np.array([0, 5], np.int32)), "cu_seqlens_q"),
))
def test_errors_are_the_engines(kind, change, message):
    arguments = dict(zip("qkv", operands())) | change
    arguments = {n: kind(a) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
    with pytest.raises(foveal.InvalidArgument, match=message) as caught:
        foveal.forward(**arguments)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("kind", (np.asarray, torch.from_numpy))
def test_unsupported_is_an_error_of_its_own(kind, monkeypatch):
    monkeypatch.setenv("FOVEAL_FORCE_KERNEL", "cpu_merge,no_such_kernel")
    with pytest.raises((foveal.Unsupported, foveal.InvalidArgument)):
        foveal.forward(*(kind(t) for t in operands()))
    assert issubclass(foveal.Unsupported, (NotImplementedError, RuntimeError))


def test_bias_with_packed_keys_is_unsupported():
    q, k, v = (torch.zeros(6, 2, 8) for _ in range(3))
    cu_seqlens = torch.tensor([0, 6], dtype=torch.int32)
    with pytest.raises(foveal.Unsupported, match="bias takes dense q and k"):
        foveal.forward(q, k, v, bias=torch.zeros(1, 1, 6, 6), cu_seqlens_q=cu_seqlens,
                       cu_seqlens_k=cu_seqlens)


def test_wrong_kinds_of_arguments():
    q, k, v = operands()
    with pytest.raises(foveal.InvalidArgument, match="q is a list"):
        foveal.forward([1.0], k, v)
    with pytest.raises(foveal.InvalidArgument, match="q is complex128"):
        foveal.forward(q.astype(complex), k, v)
    with pytest.raises(TypeError, match="softcapp"):
        foveal.forward(q, k, v, softcapp=1.0)
    with pytest.raises(TypeError):
        foveal.explain()


def test_explanation():
    q, k, v = operands()
    explained = foveal.explain(q, k, v, causal=True)
    assert explained.kernel in {v["name"] for v in explained.verdicts}
    text, table = repr(explained), explained._repr_html_()
    assert explained.kernel in text and explained.problem in text
    assert table.count("<table") == table.count("</table>") == 2
    assert all(verdict["name"] in table for verdict in explained.verdicts)
    assert explained.roofline_time_us > 0 and explained.predicted_time_us > 0
    tensors = [torch.from_numpy(t) for t in (q, k, v)]
    assert foveal.explain(*tensors, causal=True).kernel == explained.kernel
    far = foveal.explain(q, k, v, device="sm_90")
    assert "sm_90" in far.device
    assert foveal.explain(*tensors, device="sm_90").device == far.device


def by_the_drop_in(*operands):
    heads_first = (x.transpose(1, 2) for x in operands)
    return foveal.scaled_dot_product_attention(*heads_first, enable_gqa=True)


@pytest.mark.parametrize("function", (foveal.forward, foveal.flash_attn.flash_attn_func,
                                      by_the_drop_in))
def test_explanation_of_a_gradient(function):
    q, k, v = (torch.from_numpy(t) for t in operands())
    assert foveal.explain(function, q, k, v).backward is None
    k.requires_grad_()
    explained = foveal.explain(function, q, k, v)
    gradient = explained.backward
    assert explained.problem.startswith("forward ") and gradient.problem.startswith("backward ")
    assert gradient.kernel and gradient.kernel != explained.kernel
    assert repr(explained).endswith(repr(gradient))
    assert explained._repr_html_().count("<table") == 4
    with torch.no_grad():
        assert foveal.explain(function, q, k, v).backward is None
    far = foveal.explain(function, q, k, v, device="sm_90")
    assert "sm_90" in far.backward.device
    assert k.grad is None


@pytest.mark.parametrize("options", (
    dict(deterministic=True), dict(softcap=3.0, window_size=(2, 0)), dict(dropout_p=0.5),
    dict(sinks=torch.zeros(4, requires_grad=True)),
    dict(bias=torch.zeros(1, 1, 5, 9, requires_grad=True), softmax_scale=2.0),
), ids=lambda options: next(iter(options)))
def test_explanation_of_a_gradient_with(options):
    q, k, v = (torch.from_numpy(t) for t in operands())
    for leaf in ("q", "option"):
        q.requires_grad_(leaf == "q" or not any(torch.is_tensor(x) for x in options.values()))
        assert "bwd" in foveal.explain(q, k, v, **options).backward.kernel


def test_explanation_without_a_gradient():
    q, k, v = (torch.from_numpy(t).requires_grad_() for t in operands())
    cached = dict(seqused_k=torch.tensor([9, 5], dtype=torch.int32),
                  cache_batch_idx=torch.tensor([1, 0], dtype=torch.int32))
    explained = foveal.explain(q, k, v, **cached)
    assert explained.kernel and not explained.backward.kernel
    assert "backward doesn't take it" in explained.backward.notes[0]
    with torch.no_grad():
        twice = foveal.explain(lambda: (foveal.forward(q, k, v), foveal.forward(k, k, v)))
    assert twice.backward is None
    other = foveal.explain(lambda: (foveal.forward(q.detach(), k.detach(), v.detach(), causal=True),
                                    foveal.forward(q, k, v)))
    assert other.backward is None, "the gradient is that of another call"


def test_explaining_that_fails_ends():
    q, k, v = (torch.from_numpy(t).requires_grad_() for t in operands())
    with pytest.raises(foveal.InvalidArgument, match="device"):
        foveal.explain(q, k, v, device="nowhere")
    with pytest.raises(TypeError, match="calls explain"):
        foveal.explain(lambda: foveal.explain(q, k, v))
    assert not is_listening()
    assert foveal.explain(q, k, v, device=torch.device("cpu")).backward.kernel
    out = foveal.forward(q, k, v)
    assert out.abs().sum() > 0 and torch.autograd.grad(out.sum(), v)[0].abs().sum() > 0


def test_explaining_computes_nothing_and_ends():
    q, k, v = (torch.from_numpy(t) for t in operands())
    with pytest.raises(foveal.InvalidArgument):
        foveal.explain(q, k[:, :, :1], v)
    with pytest.raises(TypeError, match="ran nothing"):
        foveal.explain(torch.add, q, q)
    assert torch.equal(foveal.forward(q, k, v), foveal.forward(q, k, v))
    assert foveal.forward(q, k, v).abs().sum() > 0


def test_devices():
    cpu = foveal.devices()[0]
    assert cpu["type"] == "cpu" and cpu["num_threads"] > 0


# -- The package -----------------------------------------------------------------------------------


def run_python(program, **environment):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=os.environ | environment)


def test_works_without_pytorch():
    result = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, foveal\n"
        "q = np.ones((1, 2, 2, 8), np.float32)\n"
        "print(foveal.forward(q, q, q).sum(), foveal.explain(q, q, q).kernel)\n"
        "try: foveal.scaled_dot_product_attention\n"
        "except ImportError: print('needs torch')\n")
    assert result.returncode == 0, result.stderr
    assert "32.0" in result.stdout and "needs torch" in result.stdout


def test_importing_does_not_load_pytorch():
    result = run_python("import sys, foveal; print('torch' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_command_line():
    result = subprocess.run([sys.executable, "-m", "foveal", "devices", "--json"],
                            capture_output=True, text=True, env=os.environ)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)
    bad = subprocess.run([sys.executable, "-m", "foveal", "no-such-command"], capture_output=True)
    assert bad.returncode == 2


def test_version_and_headers():
    assert foveal.__version__.count(".") == 2
    assert (foveal.__all__) == sorted(foveal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        foveal.nothing
