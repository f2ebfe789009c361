"""A workload's results held against attention in float64, head by head, straight from the formulas
of docs/numerics.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foveal.bench.inputs import Inputs, sequences
from foveal.bench.manifest import Workload

BUDGET = 1 << 27  # (query, key) pairs that are computed; more are sampled.


@dataclass
class Error:
    """Of one result over all that was compared."""

    squares: float = 0.0
    reference_squares: float = 0.0
    max_abs: float = 0.0
    compared: int = 0
    finite: bool = True

    def add(self, actual: Tensor, expected: Tensor) -> None:
        difference = actual.detach().double() - expected.detach()
        self.finite &= bool(torch.isfinite(actual).all())
        self.squares += difference.square().sum().item()
        self.reference_squares += expected.square().sum().item()
        self.max_abs = max(self.max_abs, difference.abs().max().item() if len(difference) else 0.0)
        self.compared += difference.numel()

    def json(self, name: str, limits: tuple[float, float]) -> dict:
        relative = math.sqrt(self.squares / self.reference_squares) if self.squares else 0.0
        passed = self.finite and relative <= limits[0] and self.max_abs <= limits[1]
        return dict(result=name, passed=passed, compared=self.compared, finite=self.finite,
                    rel_frobenius=relative if self.finite else None,
                    max_abs=self.max_abs if self.finite else None)


def _attention(workload: Workload, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """One kv head in float64: q [rows, group, d], k and v [keys, d] -> out [rows, group, d]."""
    rows, keys = len(q), len(k)
    scores = torch.einsum("igd,jd->gij", q, k) / math.sqrt(workload.headdim)
    if workload.softcap:
        scores = workload.softcap * torch.tanh(scores / workload.softcap)
    distance = torch.arange(keys) - (torch.arange(rows)[:, None] + keys - rows)
    left, right = workload.window
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    hidden |= (distance > 0) if workload.causal else False
    hidden |= (distance < -left) if left >= 0 else False
    hidden |= (distance > right) if right >= 0 else False
    scores = scores.masked_fill(hidden.to(scores.device), -math.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(-1, rows, 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.nan_to_num(torch.softmax(scores, -1)) if keys else scores
    return torch.einsum("gij,jd->igd", weights[..., :keys], v)


def check(workload: Workload, inputs: Inputs, results: dict[str, Tensor],
          limits: tuple[float, float]) -> dict:
    """The row's "correct": which results are right, and how much of them was looked at."""
    group = workload.nheads_q // workload.nheads_k
    parts = list(sequences(workload, inputs))
    of_results = {name: list(sequences(workload, _like(inputs, results, name)))
                  for name in results if name != "dsinks"}
    heads = [(b, h) for b in range(len(parts)) for h in range(workload.nheads_k)]
    order = heads[:1] + heads[:0:-1]  # The first and the last are always among them.
    errors, spent, seen = {name: Error() for name in of_results}, 0, 0
    for b, h in order:
        rows, keys = len(parts[b][0]), len(parts[b][1])
        if seen >= 2 and spent + rows * keys * group > BUDGET:
            break
        spent, seen = spent + rows * keys * group, seen + 1
        of_group = slice(h * group, (h + 1) * group)
        leaves = [t.detach().double().requires_grad_() for t in (
            parts[b][0][:, of_group], parts[b][1][:, h], parts[b][2][:, h])]
        sinks = None if inputs.sinks is None else inputs.sinks.detach()[of_group].double()
        out = _attention(workload, *leaves, sinks)
        expected = {"out": out}
        if "dq" in results:
            dout = of_results["dout"][b][0][:, of_group].double()
            expected |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, dout)))
        for name, value in expected.items():
            q, k, _ = of_results[name][b]
            errors[name].add(q[:, of_group] if name in ("out", "dq") else k[:, h], value)
    errors.pop("dout", None)
    rows = [error.json(name, limits) for name, error in errors.items()]
    return dict(passed=all(row["passed"] for row in rows),
                coverage=f"{seen} of {len(heads)} kv heads", results=rows)


def _like(inputs: Inputs, results: dict[str, Tensor], name: str) -> Inputs:
    """Inputs whose q or k is the result of that name, to be cut into sequences the same way."""
    of_keys = name in ("dk", "dv")
    return replace(inputs, **{"k" if of_keys else "q": results[name]})
