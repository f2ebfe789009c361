#!/usr/bin/env python3
"""What every CUDA kernel takes of a multiprocessor, by the compiler's own account.

    resource_report.py BUILD_DIR --sources 'src/cuda/*.cu ...' [--json FILE] [--table]

Reads the reports that scripts/keep_ptxas_report.sh left beside the objects. Exits 1 where a kernel
uses local memory (spilled registers or a stack frame), where the compiler tells of a `Potential
Performance Loss`, and where an object has no report. Needs no GPU.
"""
import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys

# Kernels that run once in a while and may use local memory; none so far.
NOT_HOT = frozenset()

COMPILING = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
LOSS = "Potential Performance Loss"


@dataclasses.dataclass
class Kernel:
    source: str
    symbol: str
    arch: str
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    registers: int = 0
    shared_bytes: int = 0
    name: str = ""


@dataclasses.dataclass
class Report:
    kernels: list
    losses: list  # (source, line)


def parse_report(text, source):
    """The kernels of one object and the losses that the compiler tells of."""
    kernels, losses, current = [], [], None
    for line in text.splitlines():
        if LOSS in line:
            losses.append((source, line.strip()))
        if match := COMPILING.search(line):
            current = Kernel(source, match[1], match[2])
            kernels.append(current)
        elif current and (match := FRAME.search(line)):
            current.stack_bytes, current.spill_store_bytes, current.spill_load_bytes = map(
                int, match.groups())
        elif current and (match := USED.search(line)):
            current.registers = int(match[1])
            shared = SHARED.search(line)
            current.shared_bytes = int(shared[1]) if shared else 0
            current = None
    return Report(kernels, losses)


def short_name(demangled):
    """A kernel without its namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|foveal::cuda::|foveal::", "", demangled)
    name = re.sub(r"^void ", "", name)
    depth, end = 0, len(name)
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = i
            break
    return name[:end]


def name_kernels(kernels):
    symbols = [kernel.symbol for kernel in kernels]
    names = symbols
    if symbols and shutil.which("c++filt"):
        run = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True,
                             check=True)
        names = run.stdout.splitlines()
    for kernel, name in zip(kernels, names):
        kernel.name = short_name(name)


def faults_of(report, missing):
    faults = [f"{source}: its object has no report of ptxas" for source in missing]
    faults += [f"{source}: {line}" for source, line in report.losses]
    for kernel in report.kernels:
        if kernel.name.split("<")[0].split("::")[-1] in NOT_HOT:
            continue
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        if spilled or kernel.stack_bytes:
            faults.append(f"{kernel.name} ({kernel.arch}, {kernel.source}): {kernel.stack_bytes} bytes of "
                          f"local memory, {spilled} of them moved by spills")
        if not kernel.registers:
            faults.append(f"{kernel.name} ({kernel.arch}, {kernel.source}): the report does not end")
    return faults


def read_build(build, sources):
    """The report of all objects, and the sources whose object has none."""
    total, missing = Report([], []), []
    for source in sources:
        found = sorted(build.glob(f"CMakeFiles/*.dir/{source}.o.ptxas"))
        if not found:
            missing.append(source)
        for path in found:
            one = parse_report(path.read_text(), source)
            total.kernels += one.kernels
            total.losses += one.losses
    name_kernels(total.kernels)
    return total, missing


def print_table(kernels):
    print(f"{'registers':>9} {'shared':>7} {'stack':>6} {'spill':>6}  {'arch':<8} kernel")
    for kernel in sorted(kernels, key=lambda one: (one.name, one.arch)):
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        print(f"{kernel.registers:>9} {kernel.shared_bytes:>7} {kernel.stack_bytes:>6} {spilled:>6}  "
              f"{kernel.arch:<8} {kernel.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sources", required=True, help="the .cu files, separated by blanks")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    report, missing = read_build(options.build, options.sources.split())
    if options.json:
        kernels = [dataclasses.asdict(kernel) for kernel in report.kernels]
        options.json.write_text(json.dumps({"kernels": kernels}, indent=1) + "\n")
    if options.table:
        print_table(report.kernels)
    faults = faults_of(report, missing)
    for fault in faults:
        print(fault)
    print(f"{len(report.kernels)} kernels, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
