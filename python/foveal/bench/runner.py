"""One workload: inputs, the check of each implementation, the timing of those that are right."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch

import foveal
from foveal.bench.implementations import IMPLEMENTATIONS, Attend, Unsupported
from foveal.bench.inputs import Inputs, make_inputs
from foveal.bench.manifest import Manifest, Workload
from foveal.bench.reference import check
from foveal.bench.timing import (MAX_COPIES, ROTATED_BYTES, Timing, peak_bytes, summary,
                                 time_in_turn)


def _leaves(inputs: Inputs) -> list[torch.Tensor]:
    return [t for t in (inputs.q, inputs.k, inputs.v, inputs.sinks) if t is not None]


def _results(attend: Attend, workload: Workload, inputs: Inputs) -> dict[str, torch.Tensor]:
    if workload.pass_ == "forward":
        with torch.no_grad():
            return {"out": attend(inputs)}
    out = attend(inputs)
    gradients = torch.autograd.grad(out, _leaves(inputs), inputs.dout)
    return {"out": out, "dout": inputs.dout, **dict(zip(("dq", "dk", "dv"), gradients))}


def _call(attend: Attend, workload: Workload, copies: list[Inputs]) -> Callable[[int], None]:
    """What is timed; call number n takes its turn among the copies."""
    if workload.pass_ == "forward":
        def forward(n: int) -> None:
            with torch.no_grad():
                attend(copies[n % len(copies)])

        return forward
    if workload.pass_ == "train":
        def train(n: int) -> None:
            inputs = copies[n % len(copies)]
            torch.autograd.grad(attend(inputs), _leaves(inputs), inputs.dout)

        return train
    outs = [attend(inputs) for inputs in copies]

    def backward(n: int) -> None:
        i = n % len(copies)
        torch.autograd.grad(outs[i], _leaves(copies[i]), copies[i].dout, retain_graph=True)

    return backward


def _explanations(workload: Workload, inputs: Inputs, device: str) -> list[foveal.Explanation]:
    """foveal's plans for the passes of the workload: they have the traffic, and say what binds."""
    attend = IMPLEMENTATIONS["foveal"](workload, device)
    with torch.set_grad_enabled(workload.pass_ != "forward"):
        forward = foveal.explain(lambda: attend(inputs))
    if workload.pass_ == "forward":
        return [forward]
    return [forward.backward] if workload.pass_ == "backward" else [forward, forward.backward]


def _work(workload: Workload, explanations: list[foveal.Explanation]) -> dict:
    """A pass that foveal refuses has no traffic that is known."""
    traffic = [e.details["work"] for e in explanations if "work" in e.details]
    work = {name: sum(one[name] for one in traffic) for name in ("read_bytes", "written_bytes")}
    pairs = sum(_pairs(workload, rows, keys) for rows, keys in workload.lengths())
    work["visible_pairs"] = float(pairs * workload.nheads_q)
    passes = {"forward": 1.0, "backward": 2.5, "train": 3.5}[workload.pass_]
    work["flops"] = 4.0 * workload.headdim * work["visible_pairs"] * passes
    return work


def _pairs(workload: Workload, rows: int, keys: int) -> int:
    left, right = workload.window
    right = 0 if workload.causal else right
    count = 0
    for i in range(rows):
        last = keys if right < 0 else min(keys, max(0, i + keys - rows + right + 1))
        first = 0 if left < 0 else min(last, max(0, i + keys - rows - left))
        count += last - first
    return count


def bench_workload(workload: Workload, manifest: Manifest, names: list[str],
                   options: argparse.Namespace) -> dict[str, dict | str]:
    """A row for each implementation, or in its place why it is left out."""
    device = options.device
    inputs = make_inputs(workload, device)
    explanations = _explanations(workload, inputs, device)
    details = explanations[0].details
    memory_bound = (workload.pass_ == "forward"
                    and details["memory_time_us"] > details["compute_time_us"])
    copies = [inputs]
    rows: dict[str, dict | str] = {}
    timings: dict[str, Timing] = {}
    for name in names:
        try:
            attend = IMPLEMENTATIONS[name](workload, device)
            results = _results(attend, workload, inputs)
        except (Unsupported, RuntimeError, NotImplementedError, ValueError) as error:
            rows[name] = str(error).splitlines()[0][:200]
            continue
        row = {"id": workload.id, "role": workload.role, "pass": workload.pass_,
               "problem": "; ".join(e.problem for e in explanations),
               "kernels": [e.kernel for e in explanations] if name == "foveal" else [name],
               "configurations": ([e.configuration for e in explanations] if name == "foveal"
                                  else []),
               "correct": check(workload, inputs, results, manifest.accuracy[workload.dtype])}
        row["peak_bytes"] = peak_bytes(_call(attend, workload, [inputs]), inputs.bytes(), device)
        rows[name] = row
        if row["correct"]["passed"]:
            timings[name] = Timing(_call(attend, workload, copies))
    if memory_bound:
        wanted = min(MAX_COPIES, math.ceil(ROTATED_BYTES / max(inputs.bytes(), 1)))
        copies += [inputs.copy() for _ in range(wanted - 1)]
    time_in_turn(list(timings.values()), options.rounds, options.min_sample_ms, device)
    work = _work(workload, explanations)
    for name, timing in timings.items():
        row = rows[name]
        row |= summary(timing)
        seconds = row["time_us"]["median"] / 1e6
        row |= {"input_copies": len(copies), "work": work,
                "gflops": work["flops"] / seconds / 1e9,
                "gbs": (work["read_bytes"] + work["written_bytes"]) / seconds / 1e9,
                "bound": "memory" if memory_bound else "compute"}
    return rows
