"""The library of the operators torch.ops.foveal.*: loading, and the arguments that they share."""

from __future__ import annotations

import enum

import torch

from foveal._library import FOLDER

PATH = FOLDER / "lib" / "libfoveal_torch.so"
if not PATH.exists():
    raise ImportError(
        "this foveal was built without its operators for PyTorch (FOVEAL_PYTHON_TORCH=off): "
        "install it anew where torch is installed")
torch.ops.load_library(str(PATH))

ops = torch.ops.foveal


class Causal(enum.IntEnum):
    """How a causal mask is aligned; the numbers are those of csrc/options.hpp."""

    NO = 0
    BOTTOM_RIGHT = 1
    TOP_LEFT = 2


def options(bias=None, sinks=None, alibi_slopes=None, cu_seqlens_q=None, cu_seqlens_k=None,
            seqused_q=None, seqused_k=None, leftpad_k=None, block_table=None,
            cache_batch_idx=None, dropout_state=None, max_seqlen_q=0, max_seqlen_k=0,
            softmax_scale=None, softcap=0.0, dropout_p=0.0, window_size=(-1, -1),
            causal=Causal.NO, bhsd=False, deterministic=False, batch_invariant=False) -> tuple:
    """The arguments that the operators share, in the order of their schemas."""
    left, right = window_size
    return (bias, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k,
            block_table, cache_batch_idx, dropout_state, max_seqlen_q, max_seqlen_k, softmax_scale,
            float(softcap), float(dropout_p), left, right, int(causal), bhsd, deterministic,
            batch_invariant)


# Positions in options().
BIAS, SINKS, ALIBI_SLOPES = 0, 1, 2
NUM_TENSORS, NUM_OPTIONS = 11, 22
DROPOUT_P, BHSD = 15, 19
