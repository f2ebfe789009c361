"""A pytest plugin that points fetched copies of other projects' tests at foveal; see README.md.

    PYTHONPATH=tests/peers pytest -p foveal_peers --peers-sample 100 FETCHED/test_flash_attn.py
"""

import importlib.util
import random
import sys
import types

import pytest
import torch
from torch.overrides import TorchFunctionMode

import foveal
import foveal.flash_attn
import foveal.flash_attn.bert_padding
import foveal.flash_attn.flash_attn_interface


def pytest_addoption(parser):
    parser.addoption("--peers-sample", type=int, default=0,
                     help="run so many tests of those collected, chosen by --peers-seed; 0: all")
    parser.addoption("--peers-seed", type=int, default=0)


# -- flash-attn ------------------------------------------------------------------------------------


def apply_rotary_emb(x, cos, sin, interleaved=False, seqlen_offsets=0):
    """What flash-attn's tests compare the cache's rotary embedding with, in plain PyTorch:
    x [batch, seqlen, heads, headdim], cos and sin [positions, rotary_dim / 2]."""
    batch, seqlen = x.shape[:2]
    offset = torch.as_tensor(seqlen_offsets, device=x.device).expand(batch)
    position = offset[:, None] + torch.arange(seqlen, device=x.device)
    cos, sin = (t[position][:, :, None].float() for t in (cos, sin))
    rotary_dim = 2 * cos.shape[-1]
    turned, rest = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


def _module(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    sys.modules[name] = module


def install_flash_attn():
    package = foveal.flash_attn
    interface = {**vars(package.flash_attn_interface), "USE_TRITON_ROCM": False,
                 "_get_block_size_n": lambda *shape: 128}
    _module("flash_attn", **{name: getattr(package, name) for name in package.__all__})
    _module("flash_attn.flash_attn_interface", **interface)
    _module("flash_attn.bert_padding", **vars(package.bert_padding))
    _module("flash_attn.layers")
    _module("flash_attn.layers.rotary", apply_rotary_emb=apply_rotary_emb)


# -- A GPU's tests on the CPU ----------------------------------------------------------------------


class OnCpu(TorchFunctionMode):
    """Tensors asked for on CUDA are made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args = tuple("cpu" if str(arg).startswith("cuda") and isinstance(arg, (str, torch.device))
                     else arg for arg in args)
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def stand_in_for_cuda():
    torch.cuda.get_device_capability = lambda *device: (9, 0)
    for name in ("synchronize", "empty_cache", "manual_seed", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *arguments: None)


# -- PyTorch ---------------------------------------------------------------------------------------


def install_sdpa():
    torch.nn.functional.scaled_dot_product_attention = foveal.scaled_dot_product_attention


# -- The hooks -------------------------------------------------------------------------------------

install_flash_attn()
install_sdpa()
_on_cpu = None if torch.cuda.is_available() else OnCpu()
if _on_cpu is not None:
    stand_in_for_cuda()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if _on_cpu is None:
        return (yield)
    with _on_cpu:
        return (yield)


def pytest_collection_modifyitems(config, items):
    for module in {item.module for item in items}:
        if hasattr(module, "normalize_flash_attn_S"):
            # foveal's probabilities are normalised already.
            module.normalize_flash_attn_S = lambda probabilities, *rest, **options: probabilities
    if 0 < (count := config.getoption("--peers-sample")) < len(items):
        items[:] = random.Random(config.getoption("--peers-seed")).sample(items, count)
