#!/usr/bin/env python3
"""Runs the tests of the CUDA kernels on a GPU machine, on all of its cores.

    scripts/gpu_tests.py --bin build/cuda/bin --out build/gpu-tests [--kernels cuda_merge] [--slow]

Leaves OUT/gpu_tests.xml (JUnit) and OUT/gpu_tests.json. The fp64 oracle computes on the CPU, so each
program runs as many shards as there are cores, or tests if those are fewer. Without a GPU nothing
runs and every test is reported as skipped. Needs Python 3.8 and nothing else.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

# What the programs test without any kernel needs no GPU machine.
HOST_SUITES = "CaseLine*:CaseGenerator*:Baseline*:Comparison*:CallersParallelFor*:Concurrency*"
PROGRAMS = {
    "foveal_kernel_tests": {"filter": "*", "without": HOST_SUITES},
    "foveal_property_tests": {"filter": "*", "without": "*Corruption.OfAProblem*"},
    "foveal_tools_tests": {"filter": "CliGpu*", "without": ""},
}
SHOWN_CHARACTERS = 3000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--kernels", default="", help="names, separated by commas; else all of CUDA")
    parser.add_argument("--filter", default="", help="a GoogleTest filter in place of each program's")
    parser.add_argument("--slow", action="store_true", help="the slow suites as well")
    parser.add_argument("--under", default="", metavar="COMMAND",
                        help="run the programs under it: 'compute-sanitizer --error-exitcode 1'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one shard")
    return parser.parse_args()


def find_gpu(folder):
    """(the GPU as `foveal devices` describes it or None, why there is none, its usable kernels)."""
    run = subprocess.run([folder / "foveal", "devices", "--device", "cuda:0", "--json"],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return None, run.stderr.strip() or "no GPU", []
    device = json.loads(run.stdout)["devices"][0]
    return device, "", [kernel["name"] for kernel in device["kernels"] if kernel["usable"]]


def filter_of(program, options):
    if options.filter:
        return options.filter
    negative = [PROGRAMS[program]["without"]] if PROGRAMS[program]["without"] else []
    if not options.slow:
        negative.append("*Slow*.*")
    chosen = PROGRAMS[program]["filter"]
    return chosen + ("-" + ":".join(negative) if negative else "")


def listed_tests(program, options, environment=None):
    """(suite, test) pairs that the program would run."""
    run = subprocess.run([options.bin / program, "--gtest_list_tests",
                          f"--gtest_filter={filter_of(program, options)}"],
                         capture_output=True, text=True, check=True, env=environment)
    tests, suite = [], ""
    for line in run.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  "):
            tests.append((suite, name.strip()))
        elif name.endswith("."):
            suite = name[:-1]
    return tests


def environment_of(options, kernels):
    return dict(os.environ, FOVEAL_TEST_KERNELS=",".join(kernels), OMP_NUM_THREADS="1",
                FOVEAL_CLI=str(options.bin / "foveal"))


def count_shards(program, options, kernels):
    """No more than tests: a sanitizer takes a program that ran none for one that failed."""
    try:
        return min(options.jobs, len(listed_tests(program, options, environment_of(options, kernels))))
    except subprocess.CalledProcessError:
        return 1  # which fails, and is reported


def run_shard(program, shard, count, options, kernels):
    """The shard's test cases as JUnit elements; one of its own where the program ended early."""
    report = options.out / "shards" / f"{program}.{shard}.xml"
    report.unlink(missing_ok=True)
    environment = dict(environment_of(options, kernels), GTEST_TOTAL_SHARDS=str(count),
                       GTEST_SHARD_INDEX=str(shard))
    command = [*shlex.split(options.under), str(options.bin / program), f"--gtest_filter={filter_of(program, options)}",
               f"--gtest_output=xml:{report}", "--gtest_brief=1"]
    begin = time.monotonic()
    try:
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=options.timeout, check=False)
        output, ended = run.stdout, f"exit code {run.returncode}"
    except subprocess.TimeoutExpired as error:
        output, ended = error.stdout or b"", f"stopped after {options.timeout:.0f} s"
    text = output.decode(errors="replace")
    (options.out / "shards" / f"{program}.{shard}.txt").write_text(text)
    cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    # What a sanitizer found fails no test of its own.
    fell = any(outcome(case) == "failed" for case in cases)
    if report.exists() and (ended == "exit code 0" or fell):
        return cases
    case = ElementTree.Element("testcase", classname=program, name=f"shard {shard}",
                               time=f"{time.monotonic() - begin:.3f}")
    ElementTree.SubElement(case, "failure", message=f"ended early: {ended}").text = text[-SHOWN_CHARACTERS:]
    return [*cases, case]


def skipped_cases(program, options, reason):
    cases = []
    for suite, test in listed_tests(program, options):
        case = ElementTree.Element("testcase", classname=suite, name=test, time="0")
        ElementTree.SubElement(case, "skipped", message=reason)
        cases.append(case)
    return cases


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped") is not None or case.get("result") == "skipped"
    return "skipped" if skipped or case.get("status") == "notrun" else "passed"


def run_programs(programs, options, kernels):
    cases = {program: [] for program in programs}
    counts = {program: count_shards(program, options, kernels) for program in programs}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        shards = {pool.submit(run_shard, program, shard, count, options, kernels): program
                  for program, count in counts.items() for shard in range(count)}
        for done in concurrent.futures.as_completed(shards):
            cases[shards[done]] += done.result()
    return cases


def write_junit(cases, path):
    root = ElementTree.Element("testsuites", name="gpu")
    for program, list_of_cases in cases.items():
        counts = [outcome(case) for case in list_of_cases]
        suite = ElementTree.SubElement(
            root, "testsuite", name=program, tests=str(len(counts)),
            failures=str(counts.count("failed")), skipped=str(counts.count("skipped")))
        suite.extend(list_of_cases)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def failure_text(case):
    """What GoogleTest says, sources named from the project's folder and not the machine's root."""
    parts = [part.text or part.get("message", "") for part in case.findall("failure")]
    return re.sub(r"(?<!\S)/\S*?/(?=(?:src|tests)/)", "", "\n".join(parts))[:SHOWN_CHARACTERS]


def summary_of(cases, device, reason, kernels, seconds):
    counts = {program: {kind: sum(outcome(case) == kind for case in list_of_cases)
                        for kind in ("passed", "failed", "skipped")}
              for program, list_of_cases in cases.items()}
    failures = [{"test": f"{case.get('classname')}.{case.get('name')}",
                 "parameter": case.get("value_param") or "", "message": failure_text(case)}
                for list_of_cases in cases.values() for case in list_of_cases
                if outcome(case) == "failed"]
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "gpu": device["name"] if device else None, "skipped_because": reason, "kernels": kernels,
            "seconds": round(seconds, 1), "programs": counts, "failures": failures}


def main():
    options = arguments()
    options.bin = options.bin.resolve()
    (options.out / "shards").mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    device, reason, usable = find_gpu(options.bin)
    wanted = [name for name in options.kernels.split(",") if name]
    kernels = wanted or usable
    if device and not kernels:
        reason = f"{device['name']} can run none of the CUDA kernels"
    programs = [program for program in PROGRAMS if (options.bin / program).exists()]
    if not programs:
        sys.exit(f"no test program in {options.bin}")
    begin = time.monotonic()
    if reason:
        cases = {program: skipped_cases(program, options, reason) for program in programs}
    else:
        cases = run_programs(programs, options, kernels)
    summary = summary_of(cases, device, reason, kernels, time.monotonic() - begin)
    write_junit(cases, options.out / "gpu_tests.xml")
    (options.out / "gpu_tests.json").write_text(json.dumps(summary, indent=1) + "\n")
    for failure in summary["failures"]:
        print(f"FAILED {failure['test']} {failure['parameter']}\n{failure['message']}\n")
    for program, count in summary["programs"].items():
        print(f"{program:<24}" + "".join(f"  {count[kind]:>5} {kind}" for kind in count))
    where = summary["gpu"] or reason
    print(f"{where}; {', '.join(kernels)}; {summary['seconds']} s; {options.out}/gpu_tests.xml and .json")
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
