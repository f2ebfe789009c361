"""The operators torch.ops.foveal.*: shapes for tracing, gradients and batching rules. Their kernels
are in python/csrc."""

from __future__ import annotations

import torch

from foveal import _torch_vmap  # noqa: F401  (registers the batching rules)
from foveal._errors import InvalidArgument, Unsupported, translated
from foveal._explanation import is_listening, note_no_gradient
from foveal._sdpa_rules import engine_takes
from foveal._torch_library import (BHSD, BIAS, NUM_OPTIONS, NUM_TENSORS, PATH, SINKS, Causal, ops,
                                   options)

__all__ = ["PATH", "Causal", "attend", "attend_appending", "dropout_state", "merge", "needs_grad",
           "ops", "options"]


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def dropout_state(like: torch.Tensor) -> torch.Tensor:
    """Seed and offset of a call's dropout, from PyTorch's generator of that device."""
    info = torch.iinfo(torch.int64)
    return torch.randint(info.min, info.max, (2,), dtype=torch.int64, device=like.device)


# -- Shapes, for torch.compile and torch.export ----------------------------------------------------


def _empty_out(q, v, bhsd: bool, dtype=None):
    shape = (*q.shape[:-1], v.shape[-1])
    if bhsd and q.dim() == 4:
        batch, heads, rows, dim = shape
        return q.new_empty((batch, rows, heads, dim), dtype=dtype).transpose(1, 2)
    return q.new_empty(shape, dtype=dtype)


def _empty_lse(q, bhsd: bool, want_lse: bool):
    if not want_lse:
        shape = (0,)
    elif q.dim() == 3:
        shape = (q.shape[1], q.shape[0])
    else:
        shape = q.shape[:3] if bhsd else (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("foveal::sdpa")
def _(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    if not engine_takes(query, key, value, attn_mask, is_causal, enable_gqa):
        raise RuntimeError("foveal.NotTaken: ")
    return _empty_out(query, value, bhsd=True)


@torch.library.register_fake("foveal::forward")
def _(q, k, v, *rest):
    bhsd, (want_lse, fp32_out) = rest[BHSD], rest[NUM_OPTIONS:]
    return (_empty_out(q, v, bhsd, torch.float32 if fp32_out else None),
            _empty_lse(q, bhsd, want_lse))


@torch.library.register_fake("foveal::forward_append")
def _(q, k_cache, v_cache, k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved, *rest):
    return _empty_out(q, v_cache, False), _empty_lse(q, False, rest[NUM_OPTIONS])


@torch.library.register_fake("foveal::append_kv")
def _(q, k_cache, *rest):
    return k_cache.new_empty((0,), dtype=torch.float32) if q is None else q.new_empty(q.shape)


@torch.library.register_fake("foveal::merge")
def _(out_a, lse_a, out_b, lse_b):
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


def _empty_gradient(tensor, needed: bool):
    if not needed:
        return tensor.new_empty((0,))
    if tensor.dim() == 0 or tensor.stride(-1) == 1:
        return torch.empty_like(tensor)
    return tensor.new_empty(tensor.shape)


@torch.library.register_fake("foveal::backward")
def _(dout, dlse, q, k, v, out, lse, *rest):
    bias = q if rest[BIAS] is None else rest[BIAS]
    sinks = q if rest[SINKS] is None else rest[SINKS]
    return tuple(map(_empty_gradient, (q, k, v, bias, sinks), rest[NUM_OPTIONS:]))


# -- Gradients -------------------------------------------------------------------------------------

NUM_NEEDS = 5  # Of q, k, v, bias and sinks, in the order of the operators' arguments.


class _Attention(torch.autograd.Function):
    """forward with a gradient: (q, k, v, options..., fp32_out) -> (out, lse)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, *rest):
        *shared, fp32_out = rest
        return ops.forward.default(q, k, v, *shared, True, fp32_out)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        num_saved = 3 + NUM_TENSORS
        ctx.save_for_backward(*inputs[:num_saved], *output)
        ctx.numbers = inputs[num_saved:3 + NUM_OPTIONS]

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, *tensors, out, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        needs = ctx.needs_input_grad[:NUM_NEEDS]
        arguments = (dout, dlse, q, k, v, out, lse, *tensors, *ctx.numbers, *needs)
        if needs_grad(*arguments[:7]):
            gradients = _Gradient.apply(*arguments)
        else:
            gradients = ops.backward.default(*arguments)
        given = [gradient if needed else None for gradient, needed in zip(gradients, needs)]
        return (*given, *[None] * (3 + NUM_OPTIONS + 1 - NUM_NEEDS))


class _Gradient(torch.autograd.Function):
    """backward where a graph of the gradient is asked for: there is none, and it says so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments):
        return ops.backward.default(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        raise Unsupported(
            "the gradient of attention has no gradient in foveal: for a second derivative (double "
            "backward) use torch.nn.functional.scaled_dot_product_attention under "
            "sdpa_kernel(SDPBackend.MATH)")


def _distinct(arguments: tuple) -> list:
    """A tensor that comes twice (keys that are values, one cu_seqlens for both) as a view the
    second time: torch.compile takes each but once."""
    seen, distinct = [], []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if any(argument is other for other in seen):
                argument = argument.view_as(argument)
            seen.append(argument)
        distinct.append(argument)
    return distinct


def _explain_gradient(q, k, v, shared: tuple, out, lse) -> None:
    """Has the gradient's plan recorded, in the thread that records: on a GPU PyTorch computes
    gradients in another."""
    needs = [t is not None and t.requires_grad for t in (q, k, v, shared[BIAS], shared[SINKS])]
    try:
        with torch.no_grad():
            ops.backward.default(torch.empty_like(out), None, q, k, v, out, lse, *shared, *needs)
    except RuntimeError as error:
        note_no_gradient(str(translated(error)))


def attend(q, k, v, shared: tuple, want_lse=False, fp32_out=False):
    """(out, lse), by the operator alone where no gradient is needed."""
    if needs_grad(q, k, v, shared[BIAS], shared[SINKS]):
        arguments = (q, k, v, *shared)
        if torch.compiler.is_compiling():
            return _Attention.apply(*_distinct(arguments), fp32_out)
        out, lse = _Attention.apply(*arguments, fp32_out)
        if is_listening():
            _explain_gradient(q, k, v, shared, out, lse)
        return out, lse
    return ops.forward.default(q, k, v, *shared, want_lse, fp32_out)


def _per_row(lse):
    """lse [b, h, s] or packed [h, t] in the order of out's rows: [b, s, h, 1] or [t, h, 1]."""
    return lse.transpose(-1, -2).unsqueeze(-1)


def attend_appending(q, k_cache, v_cache, new_tokens: tuple, shared: tuple, want_lse=False):
    """(out, lse) after new_tokens (k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved) have
    been written into the caches."""
    if needs_grad(q, k_cache, v_cache, *new_tokens[:2], shared[BIAS], shared[SINKS]):
        raise InvalidArgument(
            "k_new is given and a tensor requires a gradient: appending to a cache has none; call "
            "it under torch.no_grad()")
    return ops.forward_append.default(q, k_cache, v_cache, *new_tokens, *shared, want_lse)


class _Merge(torch.autograd.Function):
    """out = sum of exp(lse_x - lse) * out_x, lse = log of the sum of exp(lse_x)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(out_a, lse_a, out_b, lse_b):
        return ops.merge.default(out_a, lse_a, out_b, lse_b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx, dout, dlse):
        out_a, lse_a, out_b, lse_b, out, lse = ctx.saved_tensors
        gradients = []
        for out_x, lse_x in ((out_a, lse_a), (out_b, lse_b)):
            share = torch.exp(lse_x - lse).masked_fill(torch.isneginf(lse_x), 0.0)
            dout_x, dlse_x = None, torch.zeros_like(lse)
            if dout is not None:
                dout_x = (dout * _per_row(share)).to(out_x.dtype)
                difference = ((out_x.float() - out.float()) * dout.float()).sum(-1)
                dlse_x = share * difference.transpose(-1, -2)
            if dlse is not None:
                dlse_x = dlse_x + share * dlse
            gradients += [dout_x, dlse_x]
        return tuple(gradients)


def merge(out_a, lse_a, out_b, lse_b):
    if needs_grad(out_a, lse_a, out_b, lse_b):
        return _Merge.apply(out_a, lse_a, out_b, lse_b)
    return ops.merge.default(out_a, lse_a, out_b, lse_b)
