"""The tensors of a workload, by its seed, with NaN wherever no result may depend on what lies
there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foveal.bench.manifest import Workload

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Inputs:
    """q, k and v in the order [batch, seqlen, heads, headdim] whatever the layout in memory, packed
    [total, heads, headdim], or k and v in pages."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None
    sinks: Tensor | None
    cu_seqlens: Tensor | None
    seqused_k: Tensor | None
    block_table: Tensor | None

    def tensors(self) -> list[Tensor]:
        return [t for t in vars(self).values() if t is not None]

    def bytes(self) -> int:
        """Of the memory behind all tensors: slices of one are counted once."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in self.tensors()}
        return sum(storage.nbytes() for storage in storages.values())

    def copy(self) -> Inputs:
        return replace(self, **{name: t.detach().clone().requires_grad_(t.requires_grad)
                                for name, t in vars(self).items() if t is not None})


class _Builder:
    def __init__(self, workload: Workload, device: str):
        self.workload, self.device = workload, device
        self.random = torch.Generator().manual_seed(workload.seed)
        self.dtype = DTYPES[workload.dtype]

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        drawn = torch.randn(*shape, generator=self.random)
        return drawn.to(dtype or self.dtype).to(self.device)

    def integers(self, values) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=self.device)

    def like_q(self) -> Tensor:
        w = self.workload
        if w.layout == "thd":
            return self.normal(sum(w.doc_lens), w.nheads_q, w.headdim)
        return self.dense(w.seqlen_q, w.nheads_q)

    def dense(self, rows: int, heads: int) -> Tensor:
        w = self.workload
        if w.layout == "bhsd":
            return self.normal(w.batch, heads, rows, w.headdim).transpose(1, 2)
        return self.normal(w.batch, rows, heads, w.headdim)

    def queries_and_keys(self) -> tuple[Tensor, Tensor, Tensor]:
        w = self.workload
        if w.layout == "packed_qkv":
            qkv = self.normal(w.batch, w.seqlen_q, w.nheads_q + 2 * w.nheads_k, w.headdim)
            return qkv.split([w.nheads_q, w.nheads_k, w.nheads_k], 2)
        if w.layout == "thd":
            keys = [self.normal(sum(w.doc_lens), w.nheads_k, w.headdim) for _ in range(2)]
            return self.like_q(), *keys
        if w.layout == "paged":
            pages = w.batch * math.ceil(w.seqlen_k / w.page_size)
            keys = [self.normal(pages, w.page_size, w.nheads_k, w.headdim) for _ in range(2)]
            return self.like_q(), *keys
        keys = [self.dense(w.seqlen_k, w.nheads_k) for _ in range(2)]
        for b, (_, used) in enumerate(w.lengths()):
            for tensor in keys:
                tensor[b, used:] = math.nan
        return self.like_q(), *keys

    def block_table(self, k: Tensor, v: Tensor) -> Tensor | None:
        w = self.workload
        if w.layout != "paged":
            return None
        table = torch.randperm(k.shape[0], generator=self.random).view(w.batch, -1)
        for b, (_, used) in enumerate(w.lengths()):
            token = torch.arange(used, table.shape[1] * w.page_size)
            page, slot = table[b][token // w.page_size], token % w.page_size
            k[page, slot] = v[page, slot] = math.nan
        return table.int().to(self.device)


def make_inputs(workload: Workload, device: str) -> Inputs:
    builder = _Builder(workload, device)
    q, k, v = builder.queries_and_keys()
    table = builder.block_table(k, v)
    trains = workload.pass_ != "forward"
    sinks = builder.normal(workload.nheads_q, dtype=torch.float32) if workload.sinks else None
    bounds = [sum(workload.doc_lens[:i]) for i in range(len(workload.doc_lens) + 1)]
    for leaf in (q, k, v, sinks):
        if leaf is not None and trains:
            leaf.requires_grad_()
    return Inputs(
        q=q, k=k, v=v, sinks=sinks, block_table=table, dout=builder.like_q() if trains else None,
        cu_seqlens=builder.integers(bounds) if workload.layout == "thd" else None,
        seqused_k=builder.integers(workload.seqused_k) if workload.seqused_k else None)


def sequences(workload: Workload, inputs: Inputs, q=None):
    """(q, k, v) of each sequence, [rows, heads, headdim]; `q` in the place of the inputs' own."""
    q = inputs.q if q is None else q
    begin = 0
    for b, (rows, used) in enumerate(workload.lengths()):
        if workload.layout == "thd":
            part = slice(begin, begin + rows)
            begin += rows
            yield q[part], inputs.k[part], inputs.v[part]
        elif inputs.block_table is not None:
            pages = inputs.block_table[b].long()
            yield q[b], inputs.k[pages].flatten(0, 1)[:used], inputs.v[pages].flatten(0, 1)[:used]
        else:
            yield q[b], inputs.k[b, :used], inputs.v[b, :used]
