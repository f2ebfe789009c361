"""Host time of one eager decode call with tiny tensors: what Python, the dispatcher and the plan
cost, beside F.scaled_dot_product_attention in the same run.

    python bench/host_time.py [--device cuda] [--json FILE]

On a GPU the calls are fp16 and their kernels shorter than the calls, so that none waits for its
predecessor. Each figure is the least of many rounds, the callers in turn, since the machine may be
shared.
"""

import argparse
import json
import os
import platform
import time
import timeit
from pathlib import Path

import torch
import torch.nn.functional as F

import foveal

CALLS, ROUNDS = 200, 100


def least_us(callers, wait):
    best = dict.fromkeys(callers, float("inf"))
    for _ in range(ROUNDS):
        for name, call in callers.items():
            wait()
            best[name] = min(best[name], timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return {name: round(value, 2) for name, value in best.items()}


def measure(heads, heads_k, keys, headdim, device):
    dtype = torch.float16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, h, n, headdim, device=device, dtype=dtype)
               for h, n in ((heads, 1), (heads_k, keys), (heads_k, keys)))
    gqa = heads != heads_k
    sdpa, flash = foveal.scaled_dot_product_attention, foveal.flash_attn.flash_attn_func
    operator = torch.ops.foveal.sdpa.default._op  # There since the first use of the drop-in.
    bshd = [t.transpose(1, 2) for t in (q, k, v)]
    return least_us({
        "torch": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa),
        "foveal": lambda: sdpa(q, k, v, enable_gqa=gqa),
        "foveal's operator alone": lambda: operator(q, k, v, None, False, None, gqa),
        "foveal.flash_attn": lambda: flash(*bshd),
    }, torch.cuda.synchronize if device == "cuda" else lambda: None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path, device = options.json, options.device
    torch.set_num_threads(1)
    rows = []
    with torch.inference_mode():
        for shape in ((1, 1, 8, 8), (4, 4, 16, 16), (8, 2, 32, 64)):
            name = "q [1, {0}, 1, {3}], k [1, {1}, {2}, {3}], {4}".format(
                *shape, "fp16" if device == "cuda" else "fp32")
            rows.append({"call": name, "us": measure(*shape, device)})
            print(name, rows[-1]["us"])
    if path:
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                    if line.startswith("model name")), platform.machine())
        path.write_text(json.dumps({
            "date": time.strftime("%Y-%m-%d"), "device": device, "cpu": cpu,
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
            "torch": torch.__version__, "python": platform.python_version(),
            "foveal": foveal.__version__, "threads": 1,
            "load_of_the_machine": round(os.getloadavg()[0], 1), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
