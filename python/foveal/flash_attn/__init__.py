"""flash_attn's functions, computed by foveal: a program changes its import line.

    from foveal.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
    from foveal.flash_attn.bert_padding import pad_input, unpad_input

Argument names, their order, defaults and results are those of flash-attn 2.8. Beyond it: float32,
head sizes to 512, CPU tensors, `sinks`, `batch_invariant`, `seqused_q` and `seqused_k`, and a
gradient of the returned lse. Different: the lse of a row that sees no key is -inf.
"""

from foveal.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]
