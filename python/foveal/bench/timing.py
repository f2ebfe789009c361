"""Several implementations of one workload timed turn by turn in one process, so that what happens
to the machine happens to all of them."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROTATED_BYTES = 256 << 20  # That calls of a memory-bound workload rotate over.
MAX_COPIES = 64
MAX_CALLS = 10**6


@dataclass
class Timing:
    """Samples in microseconds a call, in the two arms of an A/A run."""

    call: Callable[[int], None]
    calls_per_sample: int = 1
    next_call: int = 0
    arms: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def sample(self, calls: int, synchronize: Callable[[], None]) -> float:
        synchronize()
        begin = time.perf_counter()
        for n in range(self.next_call, self.next_call + calls):
            self.call(n)
        synchronize()
        self.next_call += calls
        return (time.perf_counter() - begin) / calls * 1e6


def synchronizer(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def time_in_turn(timings: list[Timing], rounds: int, min_sample_ms: float, device: str) -> None:
    synchronize = synchronizer(device)
    for timing in timings:
        warm_us = min(timing.sample(1, synchronize) for _ in range(3))
        calls = math.ceil(min_sample_ms * 1e3 / max(warm_us, 1e-3))
        timing.calls_per_sample = min(max(calls, 1), MAX_CALLS)
    for turn in range(2 * rounds):
        arm = (turn + turn // 2) % 2  # A, B, then B, A: neither arm is always the first.
        for i in range(len(timings)):
            timing = timings[(i + turn) % len(timings)]
            timing.arms[arm].append(timing.sample(timing.calls_per_sample, synchronize))


def _quantile(values: list[float], fraction: float) -> float:
    place = fraction * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] * (1 - (place - below)) + values[above] * (place - below)


def summary(timing: Timing) -> dict:
    """As `foveal bench` writes it: quartiles, and the noise by the arms' difference."""
    samples = sorted(timing.arms[0] + timing.arms[1])
    a, b = (_quantile(sorted(arm), 0.5) for arm in timing.arms)
    median, q1, q3 = (_quantile(samples, f) for f in (0.5, 0.25, 0.75))
    # Of a normal distribution the quartiles lie 1.349 deviations apart, and the median's standard
    # error is 1.253 of the mean's.
    error = 2 * 1.253 * (q3 - q1) / 1.349 / math.sqrt(len(samples))
    return {
        "time_us": {"median": median, "min": samples[0], "max": samples[-1], "quartile_1": q1,
                    "quartile_3": q3, "samples": timing.arms[0] + timing.arms[1]},
        "noise": max(abs(a - b), error) / median,
        "aa_us": {"a": a, "b": b},
        "calls_per_sample": timing.calls_per_sample,
    }


def peak_bytes(call: Callable[[int], None], input_bytes: int, device: str) -> int:
    """The inputs and the most that one call holds beside them, by PyTorch's allocators."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(0)
        torch.cuda.synchronize()
        return input_bytes + torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                profile_memory=True) as profile:
        call(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return input_bytes + most
