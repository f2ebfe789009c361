"""Each rule of check_structure.py must find its fault in a small bad tree, and nothing in a good one."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_structure

GOOD_TREE = {
    "include/foveal/problem.hpp": "#pragma once\n#include <cstdint>\n#include <dlpack/dlpack.h>\n",
    "include/foveal/foveal.h": (
        "/* C */\n#ifndef FOVEAL_H_\n#define FOVEAL_H_\n#include <stdint.h>\n#endif\n"
    ),
    "src/core/integer.hpp": "#pragma once\n#include <cstdint>\n",
    "src/algorithm/mask.hpp": '#pragma once\n#include "core/integer.hpp"\n',
    "src/plan/planner.cpp": (
        '#include "algorithm/mask.hpp"\n#include "foveal/problem.hpp"\n'
        "// may throw, abort() or printf(): only in a comment\n"
        'const char* text = "throw // printf(";\nint big = 1\'000;\n'
        "int length = std::snprintf(nullptr, 0, text);\n"
    ),
    "src/cuda/ptx/fence.cuh": '#pragma once\ninline void fence() { asm volatile(""); }\n',
    "bench/probes/copy.cu": '__global__ void copy() { asm volatile("nop;"); }\n',
    "src/capi/entry.cpp": '#include "cuda/ptx/fence.cuh"\n#include "plan/planner.hpp"\n',
    "tools/main.cpp": '#include "foveal/problem.hpp"\n#include "tools/reader.hpp"\n',
    "docs/architecture.md": (
        "See `src/{core,plan}/`, [the header](../include/foveal/problem.hpp) and\n"
        "```sh\nfoveal run tools/main.cpp\n```\n`docs/decisions/NNNN-title.md`, `src/*/integer.hpp`\n"
    ),
    "README.md": "[docs](docs/architecture.md#top) [web](https://example.org/none)\n",
}

# (what the rule is, file to write, its text, the one finding to expect)
BAD_FILES = [
    ("arrow", "src/core/up.cpp", '\n#include "plan/planner.hpp"\n',
     'src/core/up.cpp:2: "plan/planner.hpp": core may not include plan'),
    ("arrow by a relative path", "src/algorithm/up.cpp", '#include "../plan/planner.cpp"\n',
     'src/algorithm/up.cpp:1: "../plan/planner.cpp": algorithm may not include plan'),
    ("siblings", "src/reference/up.cpp", '#include "plan/planner.hpp"\n',
     'src/reference/up.cpp:1: "plan/planner.hpp": reference may not include plan'),
    ("siblings of the other pair", "src/cpu/up.cpp", '#include "cuda/ptx/fence.cuh"\n',
     'src/cpu/up.cpp:1: "cuda/ptx/fence.cuh": cpu may not include cuda'),
    ("inside from the tools", "tools/inside.cpp", '#include "core/integer.hpp"\n',
     'tools/inside.cpp:1: "core/integer.hpp": only src/ may include from src/'),
    ("inside from a public header", "include/foveal/leak.hpp",
     '#pragma once\n#include "core/integer.hpp"\n',
     'include/foveal/leak.hpp:2: <core/integer.hpp>: neither ours'),
    ("unknown room", "src/utils/misc.cpp", "\n", "src/utils/misc.cpp:1: not in a room of src/"),
    ("no room", "src/misc.cpp", "\n", "src/misc.cpp:1: not in a room of src/"),
    ("SIMD in a public header", "include/foveal/simd.hpp", "#pragma once\n#include <immintrin.h>\n",
     "include/foveal/simd.hpp:2: <immintrin.h>: neither ours"),
    ("Highway in a public header", "include/foveal/simd.hpp",
     '#pragma once\n#include "hwy/highway.h"\n',
     "include/foveal/simd.hpp:2: <hwy/highway.h>: neither ours"),
    ("CUDA in a public header", "include/foveal/gpu.hpp",
     "#pragma once\n#  include <cuda_runtime.h>\n",
     "include/foveal/gpu.hpp:2: <cuda_runtime.h>: neither ours"),
    ("torch in a public header", "include/foveal/t.hpp", "#pragma once\n#include <torch/torch.h>\n",
     "include/foveal/t.hpp:2: <torch/torch.h>: neither ours"),
    ("C++ in a C header", "include/foveal/c.h", "#pragma once\n#include <cstdint>\n",
     "include/foveal/c.h:2: <cstdint>: a C header includes C headers only"),
    ("guard", "src/core/twice.hpp", "// #pragma once\nint x();\n",
     "src/core/twice.hpp:1: no #pragma once"),
    ("asm", "src/cuda/portable/load.cuh", '#pragma once\nvoid f() {\n  asm("nop");\n}\n',
     "src/cuda/portable/load.cuh:3: asm outside src/cuda/ptx"),
    ("__asm__ in the tools", "tools/fast.cpp", 'void f() { __asm__ volatile("nop"); }\n',
     "tools/fast.cpp:1: asm outside src/cuda/ptx"),
    ("throw", "src/core/t.cpp", "void f() {\n  throw 1;\n}\n", "src/core/t.cpp:2: throw:"),
    ("abort", "src/core/a.cpp", "void f() { std::abort(); }\n", "src/core/a.cpp:1: abort(:"),
    ("exit", "src/core/e.cpp", "void f() { std::exit(1); }\n", "src/core/e.cpp:1: exit(:"),
    ("printf", "src/core/p.cpp", 'void f() { printf("x"); }\n', "src/core/p.cpp:1: printf(:"),
    ("fprintf", "src/core/p.cpp", 'void f() { std::fprintf(stderr, "x"); }\n',
     "src/core/p.cpp:1: fprintf(:"),
    ("cout", "src/core/o.cpp", "void f() { std::cout << 1; }\n", "src/core/o.cpp:1: std::cout:"),
    ("cerr after a tricky string", "src/core/o.cpp",
     "auto s = R\"(\" // )\"; auto c = '\"'; void f() { std::cerr << 1; }\n",
     "src/core/o.cpp:1: std::cerr:"),
    ("size", "src/core/long.cpp", "int x;\n" * 601, "src/core/long.cpp:601: 601 lines, at most 600"),
    ("size of a test", "tests/unit/long.py", "x = 1\n" * 601,
     "tests/unit/long.py:601: 601 lines, at most 600"),
    ("path in code", "docs/a.md", "\nsee `src/core/gone.hpp`\n",
     "docs/a.md:2: src/core/gone.hpp does not exist"),
    ("path in braces", "docs/a.md", "`src/{core,gone}/`\n", "docs/a.md:1: src/gone/ does not exist"),
    ("path in a block", "README.md", "```sh\n\ncat examples/gone.txt\n```\n",
     "README.md:3: examples/gone.txt does not exist"),
    ("pattern", "src/README.md", "`src/gone/*.cpp`\n",
     "src/README.md:1: src/gone/*.cpp does not exist"),
    ("link", "docs/kernels/a.md", "[x](../b.md)\n", "docs/kernels/a.md:1: ../b.md does not exist"),
]


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class CheckStructureTest(unittest.TestCase):
    def findings_of(self, extra: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            write_tree(Path(folder), GOOD_TREE | extra)
            return [str(finding) for finding in check_structure.findings(Path(folder))]

    def test_good_tree_has_no_finding(self):
        self.assertEqual(self.findings_of({}), [])

    def test_each_rule_finds_its_fault_and_nothing_else(self):
        for rule, name, text, expected in BAD_FILES:
            with self.subTest(rule):
                found = self.findings_of({name: text})
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(expected), found[0])

    def test_exit_codes(self):
        program = Path(check_structure.__file__)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            run = [sys.executable, str(program), folder]
            self.assertEqual(subprocess.run(run, capture_output=True).returncode, 2)
            write_tree(root, GOOD_TREE)
            self.assertEqual(subprocess.run(run, capture_output=True).returncode, 0)
            write_tree(root, {"src/core/t.cpp": "void f() { throw 1; }\n"})
            result = subprocess.run(run, capture_output=True, text=True)
            self.assertEqual(result.returncode, 1)
            self.assertIn("src/core/t.cpp:1: throw:", result.stdout)


if __name__ == "__main__":
    unittest.main()
