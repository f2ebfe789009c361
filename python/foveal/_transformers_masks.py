"""The masks of transformers as lengths, where they are that.

transformers describes a mask by a function of (batch, head, query, key) and makes it once for all
layers. A candidate of lengths is read off a few of its values, then compared with all of them, a
block of rows at a time: it is taken only where it says the same. It travels to the layers in the
mask's place, as an int32 tensor of four dimensions, which transformers passes on untouched:

    [batch, kind, 3, 1 + window]         keys to skip at the front, keys in use, queries in use
    [1, 4, documents + 1, 1 + window]    cu_seqlens

`kind` is 1 for causal lengths and 2 for those of full attention; a window of 0 is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveal._torch_ops import Causal

KIND_CAUSAL, KIND_FULL, KIND_DOCUMENTS = 1, 2, 4
BLOCK_ELEMENTS = 1 << 24  # Of a mask that are compared at once.


@dataclass(frozen=True)
class Lengths:
    """Each sequence attends to keys [leftpad_k, seqused_k), the last query to the last of them."""

    leftpad_k: Tensor
    seqused_k: Tensor
    seqused_q: Tensor
    causal: bool
    window: int | None  # Keys that a query sees, its own included.

    def options(self) -> dict[str, Any]:
        return dict(leftpad_k=self.leftpad_k, seqused_k=self.seqused_k, seqused_q=self.seqused_q,
                    causal=Causal.BOTTOM_RIGHT if self.causal else Causal.NO,
                    window_size=_window_size(self.window))


@dataclass(frozen=True)
class Documents:
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    window: int | None

    def options(self) -> dict[str, Any]:
        return dict(cu_seqlens_q=self.cu_seqlens_q, cu_seqlens_k=self.cu_seqlens_k,
                    causal=Causal.BOTTOM_RIGHT, window_size=_window_size(self.window))


def _window_size(window: int | None) -> tuple[int, int]:
    return (-1 if window is None else window - 1, -1)


# -- In a mask's place -----------------------------------------------------------------------------


def _as_mask(rows: Tensor, batch: int, kind: int, window: int | None) -> Tensor:
    """`rows` [fields, batch] as described above; each field stays contiguous."""
    return rows.t()[:, None, :, None].expand(batch, kind, rows.shape[0], 1 + (window or 0))


def read_mask(mask: Tensor | None) -> Tensor | Lengths | Documents | None:
    """What a layer was given: lengths, a mask over all scores, or nothing."""
    if mask is None or mask.dtype != torch.int32 or mask.dim() != 4:
        return mask
    kind, window = mask.shape[1], mask.shape[3] - 1 or None
    if kind == KIND_DOCUMENTS:
        cu_seqlens = mask[0, 0, :, 0].contiguous()
        return Documents(cu_seqlens, cu_seqlens, window)
    leftpad_k, seqused_k, seqused_q = (mask[:, 0, field, 0].contiguous() for field in range(3))
    return Lengths(leftpad_k, seqused_k, seqused_q, kind == KIND_CAUSAL, window)


# -- From transformers' description ----------------------------------------------------------------


@dataclass(frozen=True)
class _Description:
    """A mask as transformers describes it; positions count from the start of the sequence."""

    batch: int
    rows: Tensor  # Positions of the queries.
    keys: Tensor  # Positions of the keys.
    function: Any
    padding: Tensor | None  # bool [batch, keys]

    def values(self, rows: Tensor, keys: Tensor) -> Tensor:
        """The function alone at rows x keys: bool [batch, rows, keys]."""
        batch = torch.arange(self.batch, device=rows.device)[:, None, None, None]
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=rows.device)
        seen = self.function(batch, head, rows[None, None, :, None], keys[None, None, None, :])
        return seen.expand(self.batch, 1, len(rows), len(keys))[:, 0]

    def equals(self, predicted, last_row: Tensor | None = None) -> bool:
        """Whether `predicted(rows, keys)`, bool [batch, rows, keys], is the mask; of each sequence
        only the queries before last_row[b] are compared."""
        step = max(1, BLOCK_ELEMENTS // max(1, self.batch * len(self.keys)))
        for rows in self.rows.split(step):
            actual = self.values(rows, self.keys)
            if self.padding is not None:
                actual = actual & self.padding[:, None]
            same = actual == predicted(rows, self.keys)
            if last_row is not None:
                same = same | (rows[None, :, None] >= last_row[:, None, None])
            if not bool(same.all()):
                return False
        return True


def _describe(batch_size, q_length, kv_length, q_offset, kv_offset, arguments) -> _Description:
    device = arguments.get("device", "cpu")
    mask = arguments.get("attention_mask")
    padding = None
    if mask is not None:
        missing = max(0, kv_length + kv_offset - mask.shape[-1])
        padding = torch.nn.functional.pad(mask, (0, missing))[:, kv_offset:kv_offset + kv_length]
        padding = None if bool(padding.all()) else padding.bool()
    start = int(q_offset)
    return _Description(batch_size, torch.arange(start, start + q_length, device=device),
                        torch.arange(kv_offset, kv_offset + kv_length, device=device),
                        arguments["mask_function"], padding)


def _run_of_keys(description: _Description, end: int) -> tuple[Tensor, Tensor] | None:
    """First and past-the-last key that padding leaves of the first `end` ones; None where they are
    not one run."""
    batch, device = description.batch, description.keys.device
    if description.padding is None:
        return (torch.zeros(batch, dtype=torch.int32, device=device),
                torch.full((batch,), end, dtype=torch.int32, device=device))
    kept = description.padding[:, :end]
    position = torch.arange(end, device=device)
    first = torch.where(kept, position, end).amin(-1)
    last = torch.where(kept, position + 1, 0).amax(-1)
    first = torch.minimum(first, last)
    if not bool((kept.sum(-1) == last - first).all()):
        return None
    return first.int(), last.int()


def _as_lengths(description: _Description, window: int | None, is_full: bool) -> Tensor | None:
    rows, keys = description.rows, description.keys
    first_key = int(keys[0])
    end = len(keys) if is_full else min(len(keys), int(rows[-1]) + 1 - first_key)
    run = _run_of_keys(description, end)
    if run is None:
        return None
    leftpad, used = run
    used_q = torch.full_like(used, len(rows))
    last_row = None
    if not is_full and bool((used < end).any()):
        # Padding on the right: the last query in use stands at the last key in use.
        if int(rows[0]) != first_key or len(rows) != end:
            return None
        used_q, last_row = used, used + first_key

    def predicted(rows, keys):
        key = (keys - first_key)[None, None]
        seen = (key >= leftpad[:, None, None]) & (key < used[:, None, None])
        seen = seen.expand(description.batch, len(rows), len(keys))
        if is_full:
            return seen
        seen = seen & (keys[None, None] <= rows[None, :, None])
        return seen if window is None else seen & (keys[None, None] > rows[None, :, None] - window)

    if not description.equals(predicted, last_row):
        return None
    kind = KIND_FULL if is_full else KIND_CAUSAL
    return _as_mask(torch.stack([leftpad, used, used_q]), description.batch, kind, window)


def _as_documents(description: _Description, window: int | None) -> Tensor | None:
    """Packed documents in each row of the batch: a token that does not see the one before it begins
    a document."""
    rows, keys, batch = description.rows, description.keys, description.batch
    if description.padding is not None or len(rows) != len(keys) or len(rows) < 2:
        return None
    neighbours = description.function(
        torch.arange(batch, device=rows.device)[:, None], torch.zeros_like(rows[1:])[None],
        rows[None, 1:], keys[None, :-1]).expand(batch, len(rows) - 1)
    begins = torch.nn.functional.pad(~neighbours, (1, 0), value=True)
    document = begins.int().cumsum(-1)

    def predicted(some_rows, keys):
        of_rows = document[:, some_rows - rows[0]]
        seen = (of_rows[:, :, None] == document[:, None]) & (
            keys[None, None] <= some_rows[None, :, None])
        if window is None:
            return seen
        return seen & (keys[None, None] > some_rows[None, :, None] - window)

    if not description.equals(predicted):
        return None
    starts = begins.flatten().nonzero().flatten()
    end = starts.new_full((1,), begins.numel())
    return _as_mask(torch.cat([starts, end]).int()[:, None], 1, KIND_DOCUMENTS, window)


def lengths_or_mask(batch_size, q_length, kv_length, q_offset, kv_offset, arguments):
    """Lengths where they say all, else what transformers makes for "sdpa": a bool mask, or None."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
    from transformers.utils.import_utils import is_tracing

    def mask():
        return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length,
                         q_offset=q_offset, kv_offset=kv_offset, **arguments)

    tensors = [t for t in (arguments.get("attention_mask"), q_offset) if isinstance(t, Tensor)]
    if (arguments.get("use_vmap") or torch.compiler.is_compiling()
            or any(is_tracing(t) for t in tensors) or min(batch_size, q_length, kv_length) < 1):
        return mask()
    window = arguments.get("local_size")
    description = _describe(batch_size, q_length, kv_length, q_offset, kv_offset, arguments)
    if arguments.get("allow_is_bidirectional_skip"):
        if description.padding is None and window is None:
            return mask()
        is_full = arguments["mask_function"] is bidirectional_mask_function
        found = _as_lengths(description, None, True) if is_full and window is None else None
        return mask() if found is None else found
    # Where transformers wants the mask itself (to join it with another) it forbids the skip; packed
    # documents and a static cache, whose offset is a tensor, forbid it too and want no mask.
    found = None
    if arguments.get("allow_is_causal_skip", True) or isinstance(q_offset, Tensor):
        if description.padding is None and q_length == kv_length and window is None:
            return mask()
        found = _as_lengths(description, window, False)
    elif arguments.get("attention_mask") is None:
        found = _as_documents(description, window)
    return mask() if found is None else found
