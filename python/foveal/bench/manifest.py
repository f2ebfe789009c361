"""The manifests of bench/manifests, as their README describes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

ACCURACY = {"fp16": (0.005, 0.05), "bf16": (0.01, 0.05), "fp32": (1e-5, 1e-4)}
GATES = {"improve": 0.05, "protected_latency": 0.05, "protected_memory": 0.02}
CHOICES = {
    "role": ("target", "protected", "guard", "info"),
    "pass": ("forward", "backward", "train"),
    "layout": ("bshd", "bhsd", "thd", "packed_qkv", "paged"),
    "dtype": ("fp16", "bf16", "fp32"),
}


class ManifestError(ValueError):
    """A manifest that can't be read: says where and what is allowed."""


@dataclass(frozen=True)
class Workload:
    """One attention call; the names are the file's."""

    id: str
    role: str
    pass_: str
    layout: str
    dtype: str
    nheads_q: int
    nheads_k: int
    headdim: int
    batch: int = 0
    seqlen_q: int = 0
    seqlen_k: int = 0
    doc_lens: tuple[int, ...] = ()
    seqused_k: tuple[int, ...] = ()
    page_size: int = 0
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    sinks: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    seed: int = 0

    def lengths(self) -> list[tuple[int, int]]:
        """(queries, keys) of each sequence."""
        if self.layout == "thd":
            return [(n, n) for n in self.doc_lens]
        used = self.seqused_k or (self.seqlen_k,) * self.batch
        return [(self.seqlen_q, n) for n in used]


@dataclass(frozen=True)
class Manifest:
    name: str
    workloads: tuple[Workload, ...]
    gates: dict[str, float]
    accuracy: dict[str, tuple[float, float]] = field(default_factory=dict)


def _lengths(value: Any, where: str, folder: Path) -> tuple[int, ...]:
    """An array of lengths, or a pack of a file of them."""
    if isinstance(value, dict):
        try:
            groups = json.loads((folder / value["from"]).read_text())["groups"]
            packs = next(g["packs"] for g in groups if g["name"] == value["group"])
            pack = packs[value["pack"]]
        except (OSError, LookupError, StopIteration, TypeError, ValueError) as error:
            raise ManifestError(f"{where}: no such pack of lengths: {value} ({error})") from None
        least = value.get("min_len", 0)
        value = [n for n in pack["doc_lens"] if n >= least]
    numbers = isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)
    if not (numbers and value):
        raise ManifestError(f"{where}: lengths are whole numbers from 0 on, at least one")
    return tuple(value)


def _workload(entry: dict[str, Any], source: str, folder: Path) -> Workload:
    where = f"{source}: workload {entry.get('id', '?')}"
    entry = dict(entry, pass_=entry.get("pass"))
    entry.pop("pass", None)
    known = {f.name for f in fields(Workload)}
    if unknown := entry.keys() - known:
        raise ManifestError(f"{where}: unknown key {sorted(unknown)[0]}")
    for key, allowed in CHOICES.items():
        value = entry.get("pass_" if key == "pass" else key)
        if value not in allowed:
            raise ManifestError(f"{where}: {key} {value}: {', '.join(allowed)} are allowed")
    for key in ("doc_lens", "seqused_k"):
        if key in entry:
            entry[key] = _lengths(entry[key], f"{where}: {key}", folder)
    entry["window"] = tuple(entry.get("window", (-1, -1)))
    if used := entry.get("seqused_k"):
        entry.setdefault("batch", len(used))
        entry.setdefault("seqlen_k", max(used))
    if entry["layout"] == "thd" and "doc_lens" in entry:
        longest = max(entry["doc_lens"])
        entry |= dict(batch=len(entry["doc_lens"]), seqlen_q=longest, seqlen_k=longest)
    if entry["layout"] == "packed_qkv":
        entry.setdefault("seqlen_k", entry.get("seqlen_q"))
    try:
        return Workload(**entry)
    except TypeError as error:
        raise ManifestError(f"{where}: {error}") from None


def load(path: str | Path) -> Manifest:
    path = Path(path)
    try:
        file = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from None
    if not isinstance(file, dict) or not file.get("workloads") or "name" not in file:
        raise ManifestError(f"{path}: name and at least one workload are needed")
    known = {"name", "description", "accuracy", "gates", "workloads"}
    if unknown := file.keys() - known:
        raise ManifestError(f"{path}: unknown key {sorted(unknown)[0]}")
    accuracy = dict(ACCURACY)
    for dtype, limits in file.get("accuracy", {}).items():
        accuracy[dtype] = (limits["rel_frobenius"], limits["max_abs"])
    workloads = tuple(_workload(entry, str(path), path.parent) for entry in file["workloads"])
    return Manifest(file["name"], workloads, GATES | file.get("gates", {}), accuracy)
