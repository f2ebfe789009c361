"""Attention in PyTorch, written another way than foveal's oracle: whole score matrices, dense masks,
gradients by autograd. Takes the operands of the C interface (foveal_ctypes.Call's) as torch tensors,
and computes in `dtype`: float64 as the second oracle, a narrow type as the plain computation that
rounds after every step."""

import math

import numpy as np
import torch

from philox_dropout import keep_mask

GRADIENTS = ("q", "k", "v", "bias", "sinks")


class TorchAttention:
    """One problem. `operands` maps names to tensors, `options` are Call's."""

    def __init__(self, operands: dict, dtype=torch.float64, **options):
        self.given = operands
        self.dtype = dtype
        self.options = options
        self.leaves = {}
        for name in GRADIENTS:
            tensor = operands.get(name)
            if tensor is not None:
                floating = tensor.dtype.is_floating_point
                leaf = tensor.detach().to(dtype) if floating else tensor
                self.leaves[name] = leaf.clone().requires_grad_(floating)
        q = operands["q"]
        self.packed_q = q.ndim == 3
        self.nheads_q, self.headdim = q.shape[-2:]
        self.group = self.nheads_q // max(1, operands["k"].shape[-2])
        self.batch = len(operands["cu_seqlens_q"]) - 1 if self.packed_q else q.shape[0]

    # -- Lengths and rows --------------------------------------------------------------------------

    def _per_sequence(self, name: str, b: int, default: int) -> int:
        lengths = self.given.get(name)
        return default if lengths is None else int(lengths[b])

    def _query_rows(self, b: int) -> torch.Tensor:
        """Rows of sequence b in q seen as [rows, heads, dim]."""
        if self.packed_q:
            begin, end = (int(x) for x in self.given["cu_seqlens_q"][b:b + 2])
        else:
            rows = self.given["q"].shape[1]
            begin, end = b * rows, (b + 1) * rows
        return begin + torch.arange(self._per_sequence("seqused_q", b, end - begin))

    def _token_rows(self, b: int, count: int) -> torch.Tensor:
        """Rows of the first `count` tokens of sequence b in k seen as [rows, heads, dim]."""
        token = torch.arange(count)
        k = self.given["k"]
        if (table := self.given.get("block_table")) is not None:
            page_size = k.shape[1]
            return table[b].long()[token // page_size] * page_size + token % page_size
        if k.ndim == 3:
            return int(self.given["cu_seqlens_k"][b]) + token
        return self._per_sequence("cache_batch_idx", b, b) * k.shape[1] + token

    def _capacity(self, b: int) -> int:
        k = self.given["k"]
        if (table := self.given.get("block_table")) is not None:
            return table.shape[1] * k.shape[1]
        if k.ndim == 3:
            cu_seqlens = self.given["cu_seqlens_k"]
            return int(cu_seqlens[b + 1]) - int(cu_seqlens[b])
        return k.shape[1]

    # -- Append ------------------------------------------------------------------------------------

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of [rows, heads, dim] as a product of complex numbers."""
        cos = self.given.get("rotary_cos")
        if cos is None:
            return x
        # There are no complex numbers of the narrow types: they turn in fp32 and are rounded.
        wide = torch.promote_types(self.dtype, torch.float32)
        angle = torch.complex(cos.to(wide), self.given["rotary_sin"].to(wide))
        turned = 2 * cos.shape[1]
        head, rest = x[..., :turned].to(wide), x[..., turned:]
        if self.options.get("rotary_interleaved"):
            pairs = head.unflatten(-1, (-1, 2))
        else:
            pairs = head.unflatten(-1, (2, -1)).transpose(-1, -2)
        product = torch.view_as_real(
            torch.complex(pairs[..., 0], pairs[..., 1]) * angle[positions][:, None])
        if not self.options.get("rotary_interleaved"):
            product = product.transpose(-1, -2)
        return torch.cat([product.flatten(-2).to(self.dtype), rest], dim=-1)

    def cache_after_append(self) -> tuple[torch.Tensor, torch.Tensor]:
        """k and v in the order of their dimensions, with k_new and v_new in place."""
        k, v = self.leaves["k"], self.leaves["v"]
        if self.given.get("k_new") is None:
            return k, v
        k_rows, v_rows = k.flatten(0, 1).clone(), v.flatten(0, 1).clone()
        num_new = self.given["k_new"].shape[1]
        for b in range(self.batch):
            used = int(self.given["seqused_k"][b])
            rows = self._token_rows(b, used + num_new)[used:]
            positions = used + torch.arange(num_new)
            k_rows[rows] = self._turn(self.given["k_new"][b].to(self.dtype), positions)
            v_rows[rows] = self.given["v_new"][b].to(self.dtype)
        return k_rows.view(k.shape), v_rows.view(v.shape)

    def rotated_q(self) -> torch.Tensor:
        """As q; rows that are not in use are 0."""
        q = self.leaves["q"]
        rows_of_q = q if self.packed_q else q.flatten(0, 1)
        result = torch.zeros_like(rows_of_q)
        for b in range(self.batch):
            rows = self._query_rows(b)
            result[rows] = self._turned_query(b, rows_of_q[rows])
        return result.view(q.shape)

    def _turned_query(self, b: int, q: torch.Tensor) -> torch.Tensor:
        if self.given.get("rotary_cos") is None:
            return q
        position = torch.full((len(q),), int(self.given["seqused_k"][b]))
        window = self.options.get("window") or (-1, -1)
        if self.options.get("causal") or max(window) >= 0:
            position = position + torch.arange(len(q))
        return self._turn(q, position)

    # -- Attention ---------------------------------------------------------------------------------

    def _visible(self, num_q: int, num_k: int) -> torch.Tensor:
        distance = torch.arange(num_k) - (torch.arange(num_q)[:, None] + num_k - num_q)
        left, right = self.options.get("window") or (-1, -1)
        visible = torch.ones(num_q, num_k, dtype=torch.bool)
        if left >= 0:
            visible &= distance >= -left
        if right >= 0:
            visible &= distance <= right
        if self.options.get("causal"):
            visible &= distance <= 0
        return visible

    def _scores(self, b: int, q: torch.Tensor, k: torch.Tensor):
        """Scores and which of them count, both [heads, rows, keys]."""
        num_q, num_k = len(q), len(k)
        scale = self.options.get("softmax_scale")
        scale = 1 / math.sqrt(self.headdim) if scale is None else float(np.float32(scale))
        scores = torch.einsum("ihd,jhd->hij", q, k) * scale
        if softcap := float(np.float32(self.options.get("softcap", 0.0))):
            scores = torch.tanh(scores / softcap) * softcap
        visible = self._visible(num_q, num_k).expand(self.nheads_q, -1, -1)
        if (bias := self.leaves.get("bias")) is not None:
            rows, keys = self.given["q"].shape[1], self._capacity(b)
            bias = bias.expand(self.batch, self.nheads_q, rows, keys)[b, :, :num_q, :num_k]
            if bias.dtype.is_floating_point:
                hidden = torch.isneginf(bias)
                scores = scores + bias.masked_fill(hidden, 0.0)
            else:
                hidden = bias == 0
            visible = visible & ~hidden
        if (slopes := self.given.get("alibi_slopes")) is not None:
            slopes = (slopes if slopes.ndim == 1 else slopes[b]).to(self.dtype)
            distance = torch.arange(num_q)[:, None] + num_k - num_q - torch.arange(num_k)
            scores = scores - slopes[:, None, None] * distance.abs()
        return scores, visible

    def _attend(self, b: int, q, k, v):
        """out [rows, heads, dim] and lse [heads, rows] of one sequence."""
        num_q, num_k = len(q), len(k)
        # What no row sees takes no part, whatever it holds.
        used = self._visible(num_q, num_k).any(0)[:, None, None]
        k, v = torch.where(used, k, 0.0), torch.where(used, v, 0.0)
        k, v = (x.repeat_interleave(self.group, dim=1) for x in (k, v))
        scores, visible = self._scores(b, q, k)
        scores = scores.masked_fill(~visible, -math.inf)
        sinks = self.leaves.get("sinks")
        if sinks is not None:
            column = sinks[:, None, None].expand(-1, num_q, 1)
            scores = torch.cat([scores, column], dim=-1)
        empty = torch.isneginf(scores).all(-1)
        scores = scores.masked_fill(empty[..., None], 0.0)
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :num_k].masked_fill(~visible, 0.0)
        if dropout_p := self.options.get("dropout_p", 0.0):
            keep = torch.from_numpy(keep_mask(
                dropout_p, self.options.get("dropout_seed", 0),
                self.options.get("dropout_offset", 0), b, self.nheads_q, num_q, num_k))
            kept = 1 - float(np.float32(dropout_p))
            weights = weights * keep / kept if kept > 0 else weights * 0.0
        return torch.einsum("hij,jhd->ihd", weights, v), lse.masked_fill(empty, -math.inf)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse as the C interface lays them out; unused rows are 0 and -inf."""
        q = self.leaves["q"]
        q_rows = q if self.packed_q else q.flatten(0, 1)
        k_rows, v_rows = self.cache_after_append()
        if k_rows.ndim == 4:
            k_rows, v_rows = k_rows.flatten(0, 1), v_rows.flatten(0, 1)
        out = q_rows.new_zeros(*q_rows.shape[:2], v_rows.shape[-1])
        lse = q_rows.new_full((self.nheads_q, len(q_rows)), -math.inf)
        num_new = 0 if self.given.get("k_new") is None else self.given["k_new"].shape[1]
        for b in range(self.batch):
            rows = self._query_rows(b)
            end = self._per_sequence("seqused_k", b, self._capacity(b)) + num_new
            tokens = self._token_rows(b, end)[self._per_sequence("leftpad_k", b, 0):]
            if len(rows) == 0:
                continue
            part, lse_part = self._attend(b, self._turned_query(b, q_rows[rows]), k_rows[tokens],
                                          v_rows[tokens])
            out = out.index_put((rows,), part)
            lse = lse.index_put((torch.arange(self.nheads_q)[:, None], rows), lse_part)
        if self.packed_q:
            return out, lse
        shape = (self.batch, q.shape[1])
        return out.unflatten(0, shape), lse.unflatten(1, shape).transpose(0, 1)

    def gradients(self, out, lse, dout, dlse=None) -> dict[str, torch.Tensor]:
        """{"dq": ..., ...} of every floating operand that has a gradient. May be called again."""
        loss = (out * dout.to(self.dtype)).sum()
        if dlse is not None:
            finite = ~torch.isneginf(lse)
            loss = loss + (lse[finite] * dlse.to(self.dtype)[finite]).sum()
        names = [name for name, leaf in self.leaves.items() if leaf.requires_grad]
        leaves = [self.leaves[name] for name in names]
        if not loss.requires_grad:
            return {f"d{name}": torch.zeros_like(leaf) for name, leaf in zip(names, leaves)}
        found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
        return {f"d{name}": torch.zeros_like(leaf) if gradient is None else gradient
                for name, leaf, gradient in zip(names, leaves, found)}


def merge(out_a, lse_a, out_b, lse_b):
    """The union of two disjoint sets of keys, dense: out [b, s, h, d], lse [b, h, s]."""
    both = torch.stack([lse_a, lse_b])
    lse = torch.logsumexp(both, 0)
    share = torch.exp(both - torch.where(torch.isneginf(lse), 0.0, lse))
    out = torch.stack([out_a, out_b]) * share.transpose(-1, -2)[..., None]
    return out.sum(0), lse
