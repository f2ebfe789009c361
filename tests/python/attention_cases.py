"""Random attention problems from a few words: a Case says which features take part, build() makes
operands in memory, with NaN wherever no result may depend on what lies there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

NAN = math.nan
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`lens` are effective lengths (queries, keys) a sequence: what the mask counts, appended keys
    included. A dense form has one length for all and takes the first."""

    lens: tuple[tuple[int, int], ...] = ((5, 9), (3, 3))
    q_form: str = "dense"  # dense, used (seqused_q), packed, packed_used
    k_form: str = "dense"  # dense, cache (seqused_k), packed, packed_used, paged
    dtype: str = "fp32"
    nheads_k: int = 2
    group: int = 2
    headdim: int = 8
    headdim_v: int | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    softmax_scale: float | None = None
    softcap: float = 0.0
    sinks: bool = False
    bias: str | None = None  # same (as q), fp32, bool, uint8
    bias_shape: str = "bhqk"  # the dimensions that are not broadcast
    alibi: str | None = None  # heads, batch
    dropout_p: float = 0.0
    dlse: bool = False
    leftpad: int = 0
    page_size: int = 4
    cache_batch_idx: bool = False
    seqlen_new: int = 0
    rotary: str | None = None  # halves, interleaved
    rotary_pairs: int = 2
    layout: str = "bshd"  # bshd, bhsd, sliced
    seed: int = 0


class Built:
    """Operands and options as foveal_ctypes.Call takes them."""

    def __init__(self, case: Case):
        self.case = case
        self.random = torch.Generator().manual_seed(case.seed)
        self.dtype = DTYPES[case.dtype]
        self.nheads_q = case.nheads_k * case.group
        lens = case.lens
        if case.q_form == "dense":
            lens = tuple((lens[0][0], k) for _, k in lens)
        if case.k_form == "dense":
            lens = tuple((q, lens[0][1]) for q, _ in lens)
        # Appended tokens are keys, so there are at least as many.
        self.lens = tuple((q, max(k, case.seqlen_new)) for q, k in lens)
        self.operands: dict[str, torch.Tensor] = {}
        self.options = {
            "causal": case.causal, "window": case.window, "softmax_scale": case.softmax_scale,
            "softcap": case.softcap, "dropout_p": case.dropout_p,
            "dropout_seed": 0x1234_5678_9ABC_DEF0 + case.seed,
            "dropout_offset": 0xFEDC_BA98_7654_3210, "rotary_interleaved": case.rotary == "interleaved",
        }
        self._add_queries()
        self._add_keys()
        self._add_score_terms()
        if case.seqlen_new:
            self._add_new_tokens()

    def normal(self, *shape, dtype=None) -> torch.Tensor:
        return torch.randn(shape, generator=self.random).to(dtype or self.dtype)

    def integers(self, values) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        """The same values in another order in memory."""
        if self.case.layout == "bhsd" and x.ndim == 4:
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if self.case.layout == "sliced":  # as one of three in a packed tensor
            packed = torch.full((*x.shape[:-2], 3, *x.shape[-2:]), NAN, dtype=x.dtype)
            packed[..., 1, :, :] = x
            return packed[..., 1, :, :]
        return x

    def like_q(self, dim: int) -> torch.Tensor:
        """Normal values in the rows that are in use, NaN in the others."""
        used = self.query_is_used
        x = self.normal(*used.shape, self.nheads_q, dim)
        return self.laid_out(torch.where(used[..., None, None], x, NAN))

    def _add_queries(self) -> None:
        case, num_q = self.case, [q for q, _ in self.lens]
        slack = 2 if case.q_form in ("used", "packed_used") else 0
        if case.q_form in ("dense", "used"):
            rows = max(num_q, default=0) + slack
            self.query_is_used = torch.arange(rows) < torch.tensor(num_q)[:, None]
        else:
            lengths = [n + slack for n in num_q]
            self.operands["cu_seqlens_q"] = self.integers([0, *_running_sums(lengths)])
            used = [torch.arange(n + slack) < n for n in num_q]
            self.query_is_used = torch.cat(used) if used else torch.zeros(0, dtype=torch.bool)
        if slack:
            self.operands["seqused_q"] = self.integers(num_q)
        self.operands["q"] = self.like_q(case.headdim)

    def _add_keys(self) -> None:
        case = self.case
        leftpad = [min(case.leftpad, 1 + b) if case.leftpad else 0 for b in range(len(self.lens))]
        # Tokens in memory before the call, left padding included.
        cached = [k - case.seqlen_new + pad for (_, k), pad in zip(self.lens, leftpad)]
        ends = [c + case.seqlen_new for c in cached]
        slack = 3 if case.k_form in ("cache", "packed_used") else 0
        self.cached = cached
        if case.leftpad:
            self.operands["leftpad_k"] = self.integers(leftpad)
        if case.k_form in ("cache", "packed_used", "paged"):
            self.operands["seqused_k"] = self.integers(cached)
        used = [[pad <= t < c for t in range(end + slack)]
                for pad, c, end in zip(leftpad, cached, ends)]
        if case.k_form in ("dense", "cache"):
            is_used = self._dense_cache(used, max(map(len, used), default=0))
        elif case.k_form == "paged":
            is_used = self._pages(used)
        else:
            self.operands["cu_seqlens_k"] = self.integers([0, *_running_sums(map(len, used))])
            is_used = torch.tensor([flag for line in used for flag in line], dtype=torch.bool)
        for name, dim in (("k", case.headdim), ("v", case.headdim_v or case.headdim)):
            x = self.normal(*is_used.shape, case.nheads_k, dim)
            self.operands[name] = self.laid_out(torch.where(is_used[..., None, None], x, NAN))

    def _dense_cache(self, used, capacity: int) -> torch.Tensor:
        lines = [line + [False] * (capacity - len(line)) for line in used]
        if not self.case.cache_batch_idx:
            return torch.tensor(lines, dtype=torch.bool).view(len(lines), capacity)
        rows = torch.randperm(len(lines) + 1, generator=self.random)[:len(lines)]
        self.operands["cache_batch_idx"] = rows.to(torch.int32)
        is_used = torch.zeros(len(lines) + 1, capacity, dtype=torch.bool)
        is_used[rows] = torch.tensor(lines, dtype=torch.bool)
        return is_used

    def _pages(self, used) -> torch.Tensor:
        size = self.case.page_size
        counts = [-(-len(line) // size) for line in used]
        order = torch.randperm(sum(counts) + 2, generator=self.random).tolist()
        table = torch.full((len(used), max(counts, default=0) + 1), -1, dtype=torch.int32)
        is_used = torch.zeros(len(order), size, dtype=torch.bool)
        for b, line in enumerate(used):
            for page in range(counts[b]):
                table[b, page] = order.pop()
                flags = line[page * size:(page + 1) * size]
                is_used[table[b, page], :len(flags)] = torch.tensor(flags)
        self.operands["block_table"] = table
        return is_used

    def capacity(self) -> int:
        k = self.operands["k"]
        if "block_table" in self.operands:
            return self.operands["block_table"].shape[1] * k.shape[1]
        return k.shape[1]

    def _add_score_terms(self) -> None:
        case, batch = self.case, len(self.lens)
        if case.sinks:
            self.operands["sinks"] = self.normal(self.nheads_q, dtype=torch.float32)
        if case.alibi:
            shape = (self.nheads_q,) if case.alibi == "heads" else (batch, self.nheads_q)
            self.operands["alibi_slopes"] = self.normal(*shape, dtype=torch.float32).abs() / 4
        if case.bias:
            full = {"b": batch, "h": self.nheads_q, "q": self.operands["q"].shape[1],
                    "k": self.capacity()}
            shape = [full[name] if name in case.bias_shape else 1 for name in "bhqk"]
            if case.bias in ("bool", "uint8"):
                mask = torch.rand(shape, generator=self.random) < 0.7
                self.operands["bias"] = mask.to(getattr(torch, case.bias))
            else:
                bias = self.normal(*shape, dtype=self.dtype if case.bias == "same" else torch.float32)
                hidden = torch.rand(shape, generator=self.random) < 0.1
                self.operands["bias"] = bias.masked_fill(hidden, -math.inf)

    def _add_new_tokens(self) -> None:
        case, batch = self.case, len(self.lens)
        shape = (batch, case.seqlen_new, case.nheads_k)
        self.operands["k_new"] = self.laid_out(self.normal(*shape, case.headdim))
        self.operands["v_new"] = self.laid_out(self.normal(*shape, case.headdim_v or case.headdim))
        if case.rotary:
            longest = max((q for q, _ in self.lens), default=0)
            positions = max(self.cached, default=0) + max(case.seqlen_new, longest)
            angle = torch.rand(positions, case.rotary_pairs, generator=self.random) * 6.28
            self.operands["rotary_cos"] = torch.cos(angle).to(self.dtype)
            self.operands["rotary_sin"] = torch.sin(angle).to(self.dtype)

    # -- Outputs -----------------------------------------------------------------------------------

    def out_shape(self) -> tuple[int, ...]:
        return (*self.operands["q"].shape[:-1], self.operands["v"].shape[-1])

    def forward_outputs(self) -> dict[str, torch.Tensor]:
        """out and lse in memory that was never written."""
        rows, heads = self.query_is_used.shape, self.nheads_q
        lse_shape = (heads, *rows) if len(rows) == 1 else (rows[0], heads, rows[1])
        return {"out": self.laid_out(torch.full(self.out_shape(), NAN, dtype=self.dtype)),
                "lse": torch.full(lse_shape, NAN, dtype=torch.float32)}

    def gradient_inputs(self) -> dict[str, torch.Tensor]:
        gradients = {"dout": self.like_q(self.out_shape()[-1])}
        if self.case.dlse:
            rows, heads = self.query_is_used.shape, self.nheads_q
            used = self.query_is_used[None] if len(rows) == 1 else self.query_is_used[:, None]
            shape = (heads, *rows) if len(rows) == 1 else (rows[0], heads, rows[1])
            gradients["dlse"] = torch.where(used, self.normal(*shape, dtype=torch.float32), NAN)
        return gradients

    def gradient_outputs(self) -> dict[str, torch.Tensor]:
        names = ["q", "k", "v"]
        names += ["bias"] if self.case.bias in ("same", "fp32") else []
        names += ["sinks"] if self.case.sinks else []
        return {f"d{name}": torch.full_like(self.operands[name], NAN) for name in names}


def _running_sums(values) -> list[int]:
    sums, total = [], 0
    for value in values:
        total += value
        sums.append(total)
    return sums


MASKS = (
    {}, {"causal": True}, {"window": (2, 1)}, {"window": (-1, 2)}, {"window": (0, -1)},
    {"window": (3, -1), "causal": True},
)
TERMS = (
    {}, {"softcap": 1.5}, {"sinks": True}, {"alibi": "heads"}, {"alibi": "batch"},
    {"softmax_scale": 0.3125, "sinks": True, "softcap": 2.0}, {"dropout_p": 0.4},
    {"dropout_p": 0.25, "sinks": True, "alibi": "heads"}, {"dropout_p": 1.0},
)
BIASES = (
    {"bias": "same"}, {"bias": "fp32", "bias_shape": "hq"}, {"bias": "same", "bias_shape": "bk"},
    {"bias": "bool", "bias_shape": "bqk"}, {"bias": "uint8", "bias_shape": "hk"},
    {"bias": "fp32", "bias_shape": "", "softcap": 1.5, "sinks": True},
    {"bias": "bool", "bias_shape": "hqk", "sinks": True, "dropout_p": 0.3},
)
RAGGED = ((5, 9), (0, 4), (3, 0), (1, 1), (7, 2), (4, 12))
FORMS = (
    {"lens": ((6, 9), (6, 9))}, {"lens": ((9, 6),), "layout": "bhsd"},
    {"lens": RAGGED, "q_form": "used", "k_form": "cache", "layout": "sliced"},
    {"lens": RAGGED, "q_form": "packed", "k_form": "packed"},
    {"lens": RAGGED, "q_form": "packed_used", "k_form": "packed_used", "layout": "sliced"},
    {"lens": RAGGED, "q_form": "packed", "k_form": "cache", "leftpad": 2},
    {"lens": RAGGED, "q_form": "used", "k_form": "paged"},
    {"lens": RAGGED, "q_form": "packed", "k_form": "paged", "page_size": 16, "leftpad": 3},
    {"lens": ((1, 9), (1, 17), (1, 1)), "k_form": "cache", "cache_batch_idx": True,
     "nheads_k": 1, "group": 6},
)
HEADS = ({"nheads_k": 1, "group": 1}, {"nheads_k": 2, "group": 3}, {"nheads_k": 3, "group": 1})
HEADDIMS = (1, 5, 8, 16, 33)


def grid(**fixed) -> list[Case]:
    """Every form with every mask and every term (bias where nothing is packed), heads and head
    sizes turn by turn."""
    cases = []
    for form in FORMS:
        packed = "packed" in form.get("q_form", "") or "packed" in form.get("k_form", "")
        for mask in MASKS:
            for term in TERMS if packed else TERMS + BIASES:
                turn = len(cases)
                features = {"headdim": HEADDIMS[turn % len(HEADDIMS)],
                            "dlse": turn % 2 == 1, **HEADS[turn % len(HEADS)]}
                cases.append(Case(**(features | form | mask | term | fixed | {"seed": turn})))
    return cases


def can_run_backward(case: Case) -> bool:
    """The backward pass takes keys that lie dense or packed."""
    return case.k_form != "paged" and not case.cache_batch_idx and not case.seqlen_new


APPEND_FORMS = (
    {"q_form": "dense", "k_form": "cache", "lens": ((3, 7), (3, 5), (3, 3))},
    {"q_form": "used", "k_form": "cache", "cache_batch_idx": True, "leftpad": 2},
    {"q_form": "packed", "k_form": "paged", "lens": RAGGED},
    {"q_form": "dense", "k_form": "paged", "layout": "bhsd", "leftpad": 1,
     "lens": ((1, 8), (1, 4), (1, 17))},
)


def append_grid(**fixed) -> list[Case]:
    cases = []
    for form in APPEND_FORMS:
        for mask in ({}, {"causal": True}, {"window": (4, 0)}):
            for rotary in (None, "halves", "interleaved"):
                for seqlen_new in (1, 3):
                    turn = len(cases)
                    features = {"headdim": 8 if turn % 2 else 7, "rotary": rotary,
                                "rotary_pairs": (4, 2, 1)[turn % 3] if turn % 2 else 3,
                                "seqlen_new": seqlen_new, "seed": turn}
                    cases.append(Case(**(features | form | mask | fixed)))
    return cases


def case_id(case: Case) -> str:
    """What differs from the default case."""
    plain = Case()
    words = [f"{name}={value}" for name, value in vars(case).items()
             if value != getattr(plain, name) and name not in ("seed", "lens")]
    return " ".join([str(case.seed), *words]).replace(" ", "-").replace("'", "")


def with_dtype(case: Case, dtype: str) -> Case:
    return replace(case, dtype=dtype)
