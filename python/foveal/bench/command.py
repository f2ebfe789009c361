"""The command: reads a manifest, checks and times, writes one file for each implementation."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

from foveal._library import FOLDER, devices
from foveal.bench.manifest import Manifest, ManifestError, Workload, load


def _arguments(argv: list[str]) -> argparse.Namespace:
    from foveal.bench.implementations import IMPLEMENTATIONS

    parser = argparse.ArgumentParser(
        prog="python -m foveal bench", description=(
            "Checks and times the workloads of a manifest by other libraries too, turn by turn in "
            "one process. Without --impl this is the command `foveal bench`."),
        epilog="Exit codes: 0 done, 1 a result was wrong, 2 bad input or usage.")
    parser.add_argument("manifest", help="the workloads, as JSON")
    parser.add_argument("--impl", action="append", required=True, choices=IMPLEMENTATIONS,
                        help="an implementation; may be given several times")
    parser.add_argument("--json", metavar="FILE", help=(
        "write the figures for foveal compare; {impl} in the name stands for the implementation"))
    parser.add_argument("--only", default="", help="workloads whose id has this in it")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each of the two arms")
    parser.add_argument("--min-sample-ms", type=float, default=20.0, help="a sample's least time")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; default: its own number")
    return parser.parse_args(argv)


def _path(pattern: str, name: str, several: bool) -> Path:
    if "{impl}" in pattern:
        return Path(pattern.replace("{impl}", name))
    path = Path(pattern)
    return path.with_stem(f"{path.stem}-{name}") if several else path


def _write(path: Path, file: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(file, indent=2) + "\n")
    os.replace(part, path)  # Whole, or what was there.


def _ceilings() -> dict:
    """The machine's own limits, as `foveal devices --measure` finds them."""
    command = FOLDER / "bin" / "foveal"
    if not command.exists():
        return {}
    run = subprocess.run([command, "devices", "--measure", "--json"], capture_output=True,
                         text=True)
    if run.returncode:
        return {}
    measured = json.loads(run.stdout)["devices"][0]["measured"]
    return {key: measured[key]
            for key in ("fp32_gflops", "read_gbs", "num_threads", "instruction_set")}


def _device(name: str) -> dict | None:
    return next((d for d in devices() if d["type"] == name.partition(":")[0]), None)


def _header(manifest: Manifest, options: argparse.Namespace, name: str, ceilings: dict) -> dict:
    import torch

    from foveal.bench.implementations import version_of

    device = _device(options.device)
    if options.device == "cpu":
        device["num_threads"] = torch.get_num_threads()
    return {
        "schema": "foveal-bench-1", "implementation": name, "version": version_of(name),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "manifest": manifest.name, "gates": manifest.gates, "device": device, "ceilings": ceilings,
        "settings": {"rounds": options.rounds, "min_sample_ms": options.min_sample_ms},
        "workloads": [],
    }


def _show(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{progress}", end="", file=sys.stderr, flush=True)


def _errors(row: dict) -> str:
    return ", ".join(
        f"{e['result']}: relative {e['rel_frobenius']:.2e}, absolute {e['max_abs']:.2e}"
        if e["finite"] else f"{e['result']}: not finite"
        for e in row["correct"]["results"] if not e["passed"])


def _line(workload: Workload, rows: dict[str, dict | str]) -> str:
    parts = []
    for name, row in rows.items():
        if isinstance(row, str):
            parts.append(f"{name}: left out, {row}")
        elif "time_us" not in row:
            parts.append(f"{name}: WRONG, not timed ({_errors(row)})")
        else:
            parts.append(f"{name} {row['time_us']['median']:.1f} us "
                         f"({row['peak_bytes'] / 2**20:.1f} MiB)")
    timed = {name: row["time_us"]["median"] for name, row in rows.items()
             if isinstance(row, dict) and "time_us" in row}
    ratio = ""
    if len(timed) == 2:
        (base, base_us), (other, other_us) = timed.items()
        ratio = f"; {other} {base_us / other_us:.2f}x as fast as {base}"
    return f"{workload.id}: {'; '.join(parts)}{ratio}"


def main(argv: list[str]) -> int:
    options = _arguments(argv)
    try:
        manifest = load(options.manifest)
    except ManifestError as error:
        print(error, file=sys.stderr)
        return 2
    chosen = [w for w in manifest.workloads if options.only in w.id]
    if not chosen:
        print(f"--only {options.only!r}: no workload of {options.manifest} has this in its id",
              file=sys.stderr)
        return 2
    if _device(options.device) is None:
        print(f"--device {options.device}: there is none that the library can use; "
              f"`foveal devices --device {options.device}` says why", file=sys.stderr)
        return 2
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # The profiler speaks of itself otherwise.
    import torch

    from foveal.bench.runner import bench_workload

    if options.threads:
        torch.set_num_threads(options.threads)
    names = list(dict.fromkeys(options.impl))
    ceilings = _ceilings() if options.json else {}
    files = {name: _header(manifest, options, name, ceilings) for name in names}
    right = True
    for workload in chosen:
        _show(workload.id)
        rows = bench_workload(workload, manifest, names, options)
        _show("")
        print(_line(workload, rows), flush=True)
        for name, row in rows.items():
            if isinstance(row, dict):
                files[name]["workloads"].append(row)
                right &= row["correct"]["passed"]
        if options.json:  # A run that is broken off leaves what it has.
            for name, file in files.items():
                _write(_path(options.json, name, len(names) > 1), file)
    return 0 if right else 1
