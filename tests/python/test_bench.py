"""`python -m foveal bench --impl`: the workloads of a manifest by several libraries, and the files
that `foveal compare` takes."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from foveal.bench import command, implementations, inputs, reference, runner
from foveal.bench.manifest import ManifestError, Workload, load

ROOT = Path(__file__).parents[2]
DENSE = {"role": "protected", "pass": "forward", "layout": "bhsd", "dtype": "fp32", "batch": 2,
         "nheads_q": 4, "nheads_k": 2, "seqlen_q": 6, "seqlen_k": 9, "headdim": 16}
WORKLOADS = [
    DENSE | {"id": "causal", "causal": True},
    DENSE | {"id": "window-softcap-sinks", "causal": True, "window": [3, -1], "softcap": 9.0,
             "sinks": True, "layout": "bshd", "dtype": "bf16"},
    DENSE | {"id": "one-row", "seqlen_q": 1, "causal": True},
    DENSE | {"id": "used", "seqlen_q": 1, "seqused_k": [9, 4]},
    DENSE | {"id": "paged", "layout": "paged", "page_size": 4, "seqused_k": [3, 9], "causal": True},
    DENSE | {"id": "train", "pass": "train", "causal": True, "role": "target", "window": [4, -1]},
    DENSE | {"id": "backward", "pass": "backward", "layout": "packed_qkv", "causal": True},
    {key: DENSE[key] for key in ("role", "dtype", "nheads_q", "nheads_k", "headdim")} | {
        "id": "documents", "pass": "train", "layout": "thd", "causal": True, "doc_lens": [3, 0, 7]},
]


def write_manifest(folder, workloads=WORKLOADS):
    for workload in workloads:
        if workload["layout"] == "packed_qkv":
            workload.pop("seqlen_k", None)
    path = folder / "manifest.json"
    path.write_text(json.dumps({"name": "small", "workloads": workloads}))
    return path


def test_two_libraries_in_one_run(tmp_path):
    """The whole way: check, time, write, compare."""
    manifest = write_manifest(tmp_path)
    pattern = tmp_path / "results" / "{impl}.json"
    run = subprocess.run(
        [sys.executable, "-m", "foveal", "bench", "--impl", "torch", "--impl", "foveal",
         "--impl=flash-attn", "--rounds", "3", "--min-sample-ms", "0", "--json", str(pattern),
         str(manifest)], capture_output=True, text=True, env=os.environ)
    assert run.returncode == 0, run.stdout + run.stderr
    ids = [workload["id"] for workload in WORKLOADS]
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == ids
    files = {name: json.loads((tmp_path / "results" / f"{name}.json").read_text())
             for name in ("torch", "foveal", "flash-attn")}
    assert [row["id"] for row in files["foveal"]["workloads"]] == ids
    assert [row["id"] for row in files["torch"]["workloads"]] == [
        i for i in ids if i != "window-softcap-sinks"]
    for line in run.stdout.splitlines():  # The ratio says of what to what: of both that were timed.
        two = "torch: left out" not in line
        assert bool(re.search(r"; foveal [\d.]+x as fast as torch$", line)) == two, line
    assert files["flash-attn"]["workloads"] == []
    for row in files["torch"]["workloads"] + files["foveal"]["workloads"]:
        assert row["correct"]["passed"] and row["time_us"]["median"] > 0
        assert len(row["time_us"]["samples"]) == 6 and row["peak_bytes"] > 0
    for row in files["foveal"]["workloads"]:
        passes = {"train": ["fwd", "bwd"], "backward": ["bwd"]}.get(row["pass"], [])
        assert len(row["configurations"]) == len(row["kernels"]) == max(len(passes), 1)
        assert all(name in kernel for name, kernel in zip(passes, row["kernels"]))
        problems = [problem.split()[0] for problem in row["problem"].split("; ")]
        assert problems == {"train": ["forward", "backward"]}.get(row["pass"], [row["pass"]])
    compared = subprocess.run(
        [sys.executable, "-m", "foveal", "compare", str(tmp_path / "results" / "foveal.json"),
         str(tmp_path / "results" / "foveal.json"), "--json"], capture_output=True, text=True)
    assert compared.returncode == 1, compared.stderr  # Not faster than itself: the target fails.
    assert "train" in compared.stdout


def test_manifests_of_the_repository_are_read():
    for path in sorted((ROOT / "bench" / "manifests").glob("*.json")):
        manifest = load(path)
        assert manifest.workloads and manifest.name == path.stem
        for workload in manifest.workloads:
            assert workload.headdim > 0 and all(n >= 0 for pair in workload.lengths() for n in pair)


@pytest.mark.parametrize("change,message", (
    ({"colour": "red"}, "unknown key colour"),
    ({"dtype": "fp8"}, "dtype fp8: fp16, bf16, fp32 are allowed"),
    ({"seqused_k": []}, "at least one"),
    ({"seqused_k": {"from": "nothing.json", "group": "a", "pack": 0}}, "no such pack"),
))
def test_bad_manifests_are_refused(tmp_path, change, message):
    path = write_manifest(tmp_path, [DENSE | {"id": "a"} | change])
    with pytest.raises(ManifestError, match=message):
        load(path)
    assert command.main([str(path), "--impl", "torch"]) == 2


def test_no_workload_chosen(tmp_path, capsys):
    assert command.main([str(write_manifest(tmp_path)), "--impl", "torch", "--only", "xyz"]) == 2
    assert "xyz" in capsys.readouterr().err


def test_a_flash_attn_without_its_functions(tmp_path, monkeypatch):
    """FlashAttention-4 alone leaves a package of that name without the functions of 2."""
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    (workload,) = load(write_manifest(tmp_path, WORKLOADS[:1])).workloads
    with pytest.raises(implementations.Unsupported, match="without flash_attn 2's functions"):
        implementations.IMPLEMENTATIONS["flash-attn"](workload, "cuda")


def test_a_device_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "devices", lambda: [{"type": "cpu"}])
    arguments = [str(write_manifest(tmp_path)), "--impl", "torch", "--device", "cuda"]
    assert command.main(arguments) == 2
    assert "--device cuda: there is none" in capsys.readouterr().err


def test_a_wrong_result_is_seen_and_not_timed(tmp_path, monkeypatch, capsys):
    def wrong(workload, device):
        return lambda given: torch.zeros_like(given.q)

    monkeypatch.setattr(command, "_ceilings", dict)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "torch-math", wrong)
    path = write_manifest(tmp_path, WORKLOADS[:1])
    out = tmp_path / "wrong.json"
    assert command.main([str(path), "--impl", "torch-math", "--json", str(out)]) == 1
    assert "WRONG, not timed (out: relative 1.00e+00, absolute " in capsys.readouterr().out
    row = json.loads(out.read_text())["workloads"][0]
    assert not row["correct"]["passed"] and "time_us" not in row


def test_a_gradient_that_foveal_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "_ceilings", dict)
    paged = DENSE | {"id": "paged", "pass": "train", "layout": "paged", "page_size": 4,
                     "seqused_k": [3, 9], "causal": True}
    path = write_manifest(tmp_path, [paged])
    out = tmp_path / "{impl}.json"
    assert command.main([str(path), "--impl", "foveal", "--impl", "torch", "--rounds", "1",
                         "--min-sample-ms", "0", "--json", str(out)]) == 0
    assert "backward doesn't take it; torch " in capsys.readouterr().out
    row = json.loads((tmp_path / "torch.json").read_text())["workloads"][0]
    assert row["correct"]["passed"] and row["work"]["read_bytes"] > 0


def test_a_run_that_is_broken_off_leaves_what_it_has(tmp_path, monkeypatch):
    bench, started = runner.bench_workload, []

    def until_the_second(workload, *rest):
        started.append(workload.id)
        if len(started) == 2:
            raise KeyboardInterrupt
        return bench(workload, *rest)

    monkeypatch.setattr(command, "_ceilings", dict)
    monkeypatch.setattr(runner, "bench_workload", until_the_second)
    path, out = write_manifest(tmp_path, [WORKLOADS[0], WORKLOADS[1]]), tmp_path / "part.json"
    with pytest.raises(KeyboardInterrupt):
        command.main([str(path), "--impl", "foveal", "--rounds", "1", "--min-sample-ms", "0",
                      "--json", str(out)])
    assert [row["id"] for row in json.loads(out.read_text())["workloads"]] == started[:1]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["id"])
def test_reference_tells_a_small_error(tmp_path, workload):
    """The check that all are held against is right, and would not miss a wrong head."""
    (one,) = load(write_manifest(tmp_path, [workload])).workloads
    given = inputs.make_inputs(one, "cpu")
    from foveal.bench.runner import _results

    results = _results(implementations.IMPLEMENTATIONS["foveal"](one, "cpu"), one, given)
    limits = (0.01, 0.05)
    assert reference.check(one, given, results, limits)["passed"]
    for name in results.keys() - {"dout"}:
        bent = {n: t.detach().clone() for n, t in results.items()}
        bent[name][(-1,) * bent[name].dim()] += 0.1
        verdict = reference.check(one, given, bent, limits)
        assert [row["result"] for row in verdict["results"] if not row["passed"]] == [name]


def test_workload_has_defaults():
    fields = {"id": "x", "pass_": "forward", "role": "info", "layout": "thd", "dtype": "fp16",
              "nheads_q": 1, "nheads_k": 1, "headdim": 8, "doc_lens": (2, 3)}
    assert Workload(**fields).lengths() == [(2, 2), (3, 3)]
