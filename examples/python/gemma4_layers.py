"""A training step of layers shaped as Gemma 4's, on packed documents: five sliding layers of head
size 256 to one full layer of 512, 16 query heads on 8. PyTorch's default attention and foveal: the
same loss, the time of a step, and its peak memory on a GPU.

    python examples/python/gemma4_layers.py          # sizes for the machine: a GPU's, or a CPU's
"""

import time

import torch
import torch.nn.functional as F

from foveal.flash_attn import flash_attn_varlen_func

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TOKENS, WINDOW, WIDTH = (8192, 1024, 2816) if GPU else (512, 64, 256)
DOCUMENTS = [TOKENS // 4, TOKENS // 2, TOKENS // 8, TOKENS // 8]
LAYERS = [(256, WINDOW)] * 5 + [(512, None)]


def attend_pytorch(q, k, v, starts, window):
    """scaled_dot_product_attention knows no packed documents: it takes them as a dense mask."""
    place = torch.arange(TOKENS, device=DEVICE)
    document = torch.bucketize(place, starts[1:], right=True)
    mask = (document[:, None] == document) & (place[:, None] >= place)
    if window:
        mask &= place[:, None] - place < window
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, mask, enable_gqa=True)[0].transpose(0, 1)


def attend_foveal(q, k, v, starts, window):
    return flash_attn_varlen_func(q, k, v, starts, starts, max(DOCUMENTS), max(DOCUMENTS),
                                  causal=True, window_size=(window - 1 if window else -1, 0))


def step(attend, x, weights, starts):
    for (size, window), (into, out) in zip(LAYERS, weights):
        q, k, v = F.linear(x, into).unflatten(-1, (32, size)).split((16, 8, 8), dim=1)
        q, k = F.rms_norm(q, (size,)), F.rms_norm(k, (size,))
        x = x + F.linear(attend(q, k, v, starts, window).flatten(1), out)
    loss = F.rms_norm(x, (WIDTH,)).float().square().sum(1).log().mean() + x.float().std()
    return loss, torch.autograd.grad(loss, [w for pair in weights for w in pair])


def main():
    torch.manual_seed(0)
    make = {"device": DEVICE, "dtype": torch.bfloat16}
    x = torch.randn(TOKENS, WIDTH, **make)
    weights = [[torch.randn(rows, columns, **make).mul_(columns**-0.5).requires_grad_()
                for rows, columns in ((32 * size, WIDTH), (WIDTH, 16 * size))]
               for size, _ in LAYERS]
    starts = F.pad(torch.tensor(DOCUMENTS).cumsum(0), (1, 0)).to(DEVICE, torch.int32)
    losses = {}
    for attend in (attend_pytorch, attend_foveal):
        seconds = []
        for _ in range(4 if GPU else 2):
            if GPU:
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            loss, _ = step(attend, x, weights, starts)
            losses[attend.__name__] = loss.item()  # Waits for the GPU.
            seconds.append(time.perf_counter() - begin)
        peak = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most" if GPU else ""
        name, time_ms = attend.__name__, 1e3 * min(seconds)
        print(f"{name}: loss {loss.item():.4f}, {time_ms:.1f} ms a step{peak}")
    first, second = losses.values()
    assert abs(first - second) < 0.01 * abs(first), losses


if __name__ == "__main__":
    main()
