"""PyTorch's plain attention, with scores, weights and products each rounded to the inputs' dtype: by
default its math path computes fp16 and bf16 in fp32 inside."""

import contextlib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def rounding_math_path():
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
