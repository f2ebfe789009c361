"""Batching rules for torch.func.vmap: a batch of dense problems is one problem with a larger batch;
anything else is computed one after the other."""

from __future__ import annotations

import torch

from foveal import _torch_library as defined
from foveal._torch_library import ops


def _one_by_one(op, info, in_dims, args):
    results = []
    for i in range(info.batch_size):
        row = [arg if dim is None else arg.select(dim, i) for arg, dim in zip(args, in_dims)]
        results.append(op(*row))
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])


def _folded(tensor, dim, size: int):
    """The mapped dimension joined with the batch dimension after it."""
    if tensor is None:
        return None
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(size, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _unfolded(tensor, size: int):
    if tensor.numel() == 0 and tensor.dim() == 1:
        return tensor.unsqueeze(0).expand(size, 0)
    return tensor.unflatten(0, (size, tensor.shape[0] // size))


def _rank(tensor, dim) -> int:
    return tensor.dim() - (dim is not None)


def _foldable_options(shared, dims) -> bool:
    """Dense, without dropout (its mask counts the batch), and a bias at most beside q, k and v."""
    tensors = shared[:defined.NUM_TENSORS]
    others = [t for i, t in enumerate(tensors) if t is not None and i not in (
        defined.BIAS, defined.SINKS)]
    return not others and dims[defined.SINKS] is None and shared[defined.DROPOUT_P] == 0


def _folded_bias(bias, dim, size: int):
    if bias is None or (dim is None and bias.shape[0] == 1):
        return bias
    return _folded(bias, dim, size)


def _forward_rule(info, in_dims, q, k, v, *rest):
    op, size = ops.forward.default, info.batch_size
    shared, dims = rest[:defined.NUM_OPTIONS], in_dims[3:]
    if _rank(q, in_dims[0]) != 4 or not _foldable_options(shared, dims):
        return _one_by_one(op, info, in_dims, (q, k, v, *rest))
    q, k, v = (_folded(t, d, size) for t, d in zip((q, k, v), in_dims))
    bias = _folded_bias(shared[defined.BIAS], dims[defined.BIAS], size)
    out, lse = op(q, k, v, bias, *rest[1:])
    return (_unfolded(out, size), _unfolded(lse, size)), (0, 0)


def _backward_rule(info, in_dims, *args):
    op, size = ops.backward.default, info.batch_size
    rows, rest, dims = args[:7], args[7:], in_dims[7:]
    *_, need_dbias, need_dsinks = rest
    shared = rest[:defined.NUM_OPTIONS]
    if (_rank(rows[2], in_dims[2]) != 4 or not _foldable_options(shared, dims) or need_dbias
            or need_dsinks):
        return _one_by_one(op, info, in_dims, args)
    rows = [_folded(t, d, size) for t, d in zip(rows, in_dims)]
    bias = _folded_bias(shared[defined.BIAS], dims[defined.BIAS], size)
    results = op(*rows, bias, *rest[1:])
    return tuple(_unfolded(t, size) for t in results), (0,) * len(results)


def _sdpa_rule(info, in_dims, query, key, value, attn_mask, is_causal, scale, enable_gqa):
    size = info.batch_size
    if any(_rank(t, d) != 4 for t, d in zip((query, key, value), in_dims)):
        raise RuntimeError("foveal.NotTaken: ")
    if attn_mask is not None:
        rank = _rank(attn_mask, in_dims[3])
        if rank != 4 and in_dims[3] is not None:
            raise RuntimeError("foveal.NotTaken: ")
        if rank == 4:
            attn_mask = _folded_bias(attn_mask, in_dims[3], size)
    query, key, value = (_folded(t, d, size) for t, d in zip((query, key, value), in_dims))
    out = ops.sdpa.default(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _unfolded(out, size), 0


def _merge_rule(info, in_dims, *args):
    return _one_by_one(ops.merge.default, info, in_dims, args)


torch.library.register_vmap("foveal::sdpa", _sdpa_rule)
torch.library.register_vmap("foveal::forward", _forward_rule)
torch.library.register_vmap("foveal::backward", _backward_rule)
torch.library.register_vmap("foveal::merge", _merge_rule)
