"""foveal on the CPU beside the machine's own ceilings: products beside PyTorch's matrix product in
the same dtype, decode beside a plain read of as many bytes.

    python bench/cpu_ceilings.py [--threads 2] [--seconds 1] [--only TEXT] [--huge-pages]
                                 [--json FILE]

The memory of a shared host swings by a factor of two within minutes, so no ceiling is compared with
a call of another time. Ceiling and foveal are called in turn; every call of foveal is held against
the ceiling just before and just after it, some 10 ms of a decode and 100 ms of products in all.
Where those two differ by more than a tenth, the machine changed in between and the call doesn't
count (unless fewer than five would be left). `share` is the median of these ratios, `quartiles` are
theirs, and the rates are medians of the same calls. `share_fast` is the median over that quarter of
the calls in which the ceiling was highest, `fast` the ceiling there: a kernel that is bound by its
own arithmetic falls behind where the memory is quick.

Pages decide what a plain read gives: one stream a thread reads 60 GB/s from pages of 2 MiB and, on
the same machine, 33 from scattered pages of 4 KiB, where 16 streams in turn get 50, so that decode
may be ahead of it. --huge-pages asks for the former, where the plain read is the fastest one.

Products count visible pairs: 4 FLOP a pair, head and column forward, 14 forward and backward.
Packed documents stand beside what a packed trainer falls to in PyTorch, SDPA over a dense mask;
fp16 beside foveal's own fp32: minima of calls in turn.
"""

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import foveal
from foveal.flash_attn import flash_attn_func, flash_attn_varlen_func

MATMUL = 1536
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def race(calls, seconds):
    """Least seconds of each call, in turn."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    end, rounds = time.perf_counter() + seconds * len(calls), 0
    while rounds < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - begin)
        rounds += 1
    return best


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def beside(name, ceiling, ours, amounts, unit):
    """A row of rates: `ours` beside the calls of `ceiling` around each of its own."""
    ceiling()
    ours()
    calls, end = [], time.perf_counter() + 2 * SECONDS
    before = timed(ceiling)
    while len(calls) < 5 or time.perf_counter() < end:
        own, after = timed(ours), timed(ceiling)
        calls.append((before, own, after))
        before = after
    steady = [call for call in calls if max(call[0], call[2]) <= 1.1 * min(call[0], call[2])]
    if len(steady) >= 5:
        calls = steady
    rates = sorted((amounts[0] * 2 / (before + after) / 1e9, amounts[1] / own / 1e9)
                   for before, own, after in calls)
    fast = rates[-max(len(rates) // 4, 1):]
    shares = sorted(own / most for most, own in rates)
    quartiles = [round(shares[len(shares) * i // 4], 3) for i in (1, 3)]
    return {"unit": unit, name: median(most for most, _ in rates),
            "foveal": median(own for _, own in rates), "share": median(shares),
            "quartiles": quartiles, "fast": median(most for most, _ in fast),
            "share_fast": median(own / most for most, own in fast), "calls": len(rates)}


def tensors(*shapes, dtype, grad=False):
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def training_step(attend, inputs):
    gradient = torch.randn_like(attend(*inputs))
    return lambda: torch.autograd.grad(attend(*inputs), inputs, gradient)


def attention(heads, length, headdim, dtype, train):
    q, k, v = tensors(*3 * [(1, length, heads, headdim)], dtype=dtype, grad=train)

    def attend(q, k, v):
        return flash_attn_func(q, k, v, causal=True)

    return training_step(attend, (q, k, v)) if train else lambda: attend(q, k, v)


def rate(heads, length, headdim, dtype, train):
    a, b = tensors(*2 * [(MATMUL, MATMUL)], dtype=dtype)
    ours = attention(heads, length, headdim, dtype, train)
    flops = (14 if train else 4) * heads * headdim * length * (length + 1) / 2
    return beside("matmul", lambda: a @ b, ours, (2 * MATMUL**3, flops), "GFLOP/s")


def decode(batch, heads, heads_k, length, headdim, dtype, heads_first):
    shape = (batch, heads_k, length, headdim) if heads_first else (batch, length, heads_k, headdim)
    q, k, v = tensors((batch, heads, 1, headdim), shape, shape, dtype=dtype)
    if not heads_first:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    num_bytes = 2 * k.numel() * k.element_size()
    plain = torch.randn(num_bytes // 4)

    def ours():
        foveal.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return beside("read", plain.sum, ours, (num_bytes, num_bytes), "GB/s")


def half_beside_single(train):
    calls = {NAMES[dtype]: attention(16, 1024, 128, dtype, train)
             for dtype in (torch.float16, torch.float32)}
    best = race(calls, SECONDS)
    return {"unit": "ms", **{name: 1e3 * t for name, t in best.items()},
            "ratio": best["fp16"] / best["fp32"]}


def packed_documents():
    count, length, heads, headdim = 4, 1024, 8, 64
    starts = torch.arange(count + 1, dtype=torch.int32) * length
    packed = tensors(*3 * [(count * length, heads, headdim)], dtype=torch.float32, grad=True)
    dense = tensors(*3 * [(1, heads, count * length, headdim)], dtype=torch.float32, grad=True)
    place = torch.arange(count * length)
    mask = (place[:, None] >= place) & (place[:, None] // length == place // length)

    def documents(q, k, v):
        return flash_attn_varlen_func(q, k, v, starts, starts, length, length, causal=True)

    def masked(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask)

    best = race({"torch": training_step(masked, dense), "foveal": training_step(documents, packed)},
                SECONDS)
    return {"unit": "ms", **{name: 1e3 * t for name, t in best.items()},
            "times": best["torch"] / best["foveal"]}


def cases():
    for dtype in (torch.float32, torch.bfloat16):
        for headdim, length in ((64, 1024), (64, 4096), (128, 1024), (128, 2048), (128, 4096)):
            for train in (False, True):
                name = f"{'training' if train else 'prefill'} {NAMES[dtype]} d{headdim} {length}"
                sizes = (8, length, headdim, dtype, train)
                yield name, lambda sizes=sizes: rate(*sizes)
    for dtype in NAMES:
        for heads, heads_k in ((16, 16), (32, 8)):
            for heads_first in (True, False):
                order = "[heads, keys]" if heads_first else "[keys, heads]"
                length = 65536 // heads_k * (1 if dtype == torch.float32 else 2)
                name = f"decode {NAMES[dtype]} {heads}/{heads_k} d128 kv{length} {order}"
                sizes = (2, heads, heads_k, length, 128, dtype, heads_first)
                yield name, lambda sizes=sizes: decode(*sizes)
    for train in (False, True):
        name = f"fp16 beside fp32, {'training' if train else 'prefill'} d128 1024"
        yield name, lambda train=train: half_beside_single(train)
    yield "4 packed documents of 1024, fp32 d64, training", packed_documents


def main():
    global SECONDS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each call of a pair")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--huge-pages", action="store_true", help="tensors in pages of 2 MiB")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    SECONDS = options.seconds
    if options.huge_pages:
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # PyTorch looks at its first allocation
    torch.set_num_threads(options.threads)
    rows = []
    for name, measure in cases():
        if options.only in name:
            row = {key: round(x, 3) if isinstance(x, float) else x for key, x in measure().items()}
            rows.append({"case": name, **row})
            print(f"{name:<52}", "  ".join(f"{key} {x}" for key, x in row.items()), flush=True)
    if options.json:
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                    if line.startswith("model name")), platform.machine())
        options.json.write_text(json.dumps({
            "date": time.strftime("%Y-%m-%d"), "cpu": cpu, "threads": options.threads,
            "huge_pages": options.huge_pages,
            "torch": torch.__version__, "foveal": foveal.__version__,
            "load_of_the_machine": round(os.getloadavg()[0], 1), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
