"""foveal: attention, forward and backward, on CPU and GPU.

    import foveal
    out = foveal.forward(q, k, v, causal=True)               # NumPy, PyTorch, anything with DLPack
    print(foveal.explain(q, k, v, causal=True))              # which kernel, and why

Drop-ins, by changing an import: foveal.scaled_dot_product_attention for PyTorch's,
foveal.flash_attn for flash_attn, foveal.transformers.register() for Hugging Face transformers.
Importing foveal needs no PyTorch; the drop-ins do, and load it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foveal._api import append_kv, backward, explain, forward, merge
from foveal._errors import InvalidArgument, Unsupported
from foveal._explanation import Explanation
from foveal._library import FOLDER as _FOLDER
from foveal._library import devices
from foveal._library import version as _version

if TYPE_CHECKING:
    from foveal import flash_attn, transformers
    from foveal._sdpa import scaled_dot_product_attention

__version__ = _version()
__all__ = [
    "Explanation", "InvalidArgument", "Unsupported", "append_kv", "backward", "devices", "explain",
    "flash_attn", "forward", "get_include", "merge", "scaled_dot_product_attention",
    "transformers",
]


def get_include() -> str:
    """The folder with foveal's headers, for C and C++ beside Python."""
    return str(_FOLDER / "include")


def __getattr__(name: str):
    """What needs PyTorch, when it is asked for."""
    if name == "scaled_dot_product_attention":
        from foveal._sdpa import scaled_dot_product_attention as value
    elif name in ("flash_attn", "transformers"):
        import importlib

        value = importlib.import_module(f"foveal.{name}")
    else:
        raise AttributeError(f"module 'foveal' has no attribute {name!r}")
    globals()[name] = value
    return value
