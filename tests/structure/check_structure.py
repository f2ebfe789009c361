"""Checks what no compiler checks: who includes whom, sizes, forbidden words, and named paths.

    python3 tests/structure/check_structure.py [ROOT]

Prints one line per finding, `file:line: what is wrong`, and exits 1 when there is any.
"""

import argparse
import itertools
import re
import sys
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

# A room of src/ may include itself, the rooms named here and the public headers.
# core <- algorithm <- problem <- {reference, plan} <- {cpu, cuda} <- capi
ROOM_MAY_INCLUDE = {
    "core": set(),
    "algorithm": {"core"},
    "problem": {"core", "algorithm"},
    "reference": {"core", "algorithm", "problem"},
    "plan": {"core", "algorithm", "problem"},
    "cpu": {"core", "algorithm", "problem", "reference", "plan"},
    "cuda": {"core", "algorithm", "problem", "reference", "plan"},
    "capi": {"core", "algorithm", "problem", "reference", "plan", "cpu", "cuda"},
}

MAX_LINES = 600
SOURCE_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".py"}
CXX_SUFFIXES = SOURCE_SUFFIXES - {".py"}
SOURCE_FOLDERS = ("include", "src", "tools", "tests", "bench", "python", "examples")
# The folders that a path in a document may start with.
NAMED_FOLDERS = SOURCE_FOLDERS + ("docs", "scripts", "cmake", ".ci")

FORBIDDEN_IN_SRC = {
    r"\bthrow\b": "the library does not throw: return a Status",
    r"\b(?:abort|terminate|_?exit|quick_exit)\s*\(": "the library does not end the process",
    r"\b(?:f|v|vf)?printf\s*\(|\bf?puts\s*\(|\bputchar\s*\(": "the library does not print",
    r"\bstd\s*::\s*(?:cout|cerr|clog)\b": "the library does not print",
}
# bench/probes/ holds studies of the hardware, which stand alone and are no part of the library.
ASM_FOLDERS = ("src/cuda/ptx/", "bench/probes/")
ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)

# Order matters: a comment mark inside a string is no comment, and a quote inside a comment no string.
# A quote after a digit or letter is a digit separator (1'000).
TOKENS = re.compile(
    r'(?P<raw>R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<character>(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+')"
    r"|(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)",
    re.DOTALL,
)


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def blank(text: str, *, strings: bool) -> str:
    """The text with comments (and strings, if asked) as blanks, every line where it was."""

    def replace(match: re.Match) -> str:
        if match.lastgroup != "comment" and not strings:
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return TOKENS.sub(replace, text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def source_files(root: Path, suffixes: set[str]) -> Iterator[Path]:
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def includes(text: str) -> Iterator[tuple[int, str]]:
    for match in INCLUDE.finditer(blank(text, strings=False)):
        yield line_of(text, match.start()), match.group(2)


def room_of_include(root: Path, includer: Path, name: str) -> str | None:
    """The room that `#include "name"` reaches into, or None for what lies outside src/."""
    beside = (includer.parent / name).resolve()
    for candidate in (beside, (root / "src" / name).resolve()):
        if candidate.is_file() and candidate.is_relative_to(root / "src"):
            return candidate.relative_to(root / "src").parts[0]
    # Not there (yet): the first folder says which room is meant.
    first = name.split("/")[0]
    return first if first in ROOM_MAY_INCLUDE and "/" in name else None


def check_arrows(root: Path) -> Iterator[Finding]:
    src = root / "src"
    for path in source_files(root, CXX_SUFFIXES):
        in_src = path.is_relative_to(src)
        if not in_src and path.relative_to(root).parts[0] != "tools":
            continue
        relative = path.relative_to(root).as_posix()
        parts = path.relative_to(src).parts if in_src else ()
        room = parts[0] if in_src else None
        if in_src and (len(parts) == 1 or room not in ROOM_MAY_INCLUDE):
            yield Finding(relative, 1, f"not in a room of src/ ({', '.join(ROOM_MAY_INCLUDE)})")
            continue
        text = path.read_text(encoding="utf-8")
        for line, name in includes(text):
            target = room_of_include(root, path, name)
            if target is None or target == room:
                continue
            if room is None:
                yield Finding(relative, line, f'"{name}": only src/ may include from src/')
            elif target not in ROOM_MAY_INCLUDE[room]:
                yield Finding(relative, line, f'"{name}": {room} may not include {target}')


def check_public_headers(root: Path) -> Iterator[Finding]:
    """Public headers include one another, DLPack and the standard library; C headers only C ones."""
    for path in source_files(root, CXX_SUFFIXES):
        if not path.is_relative_to(root / "include"):
            continue
        relative = path.relative_to(root).as_posix()
        for line, name in includes(path.read_text(encoding="utf-8")):
            own = name.startswith("foveal/") or name == "dlpack/dlpack.h"
            standard = re.fullmatch(r"[a-z_]+|std[a-z]+\.h", name)
            if not own and not standard:
                yield Finding(relative, line, f"<{name}>: neither ours, DLPack nor standard")
            elif path.suffix == ".h" and not name.endswith(".h"):
                yield Finding(relative, line, f"<{name}>: a C header includes C headers only")


def check_header_guards(root: Path) -> Iterator[Finding]:
    for path in source_files(root, {".h", ".hpp", ".cuh"}):
        text = blank(path.read_text(encoding="utf-8"), strings=True)
        guard = re.match(r"\s*#ifndef (\w+)\s*\n\s*#define \1\b", text)
        if not guard and not re.search(r"^#pragma once$", text, re.MULTILINE):
            # Highway's *-inl.hpp files are compiled once per target: their guard toggles.
            if not path.name.endswith(("-inl.hpp", "_inl.hpp", "-inl.h")):
                yield Finding(path.relative_to(root).as_posix(), 1, "no #pragma once")


def check_words(root: Path) -> Iterator[Finding]:
    for path in source_files(root, CXX_SUFFIXES):
        relative = path.relative_to(root).as_posix()
        text = blank(path.read_text(encoding="utf-8"), strings=True)
        if not relative.startswith(ASM_FOLDERS):
            for match in ASM.finditer(text):
                yield Finding(relative, line_of(text, match.start()), "asm outside src/cuda/ptx")
        if relative.startswith("src/"):
            for pattern, reason in FORBIDDEN_IN_SRC.items():
                for match in re.finditer(pattern, text):
                    word = match.group().strip()
                    yield Finding(relative, line_of(text, match.start()), f"{word}: {reason}")


def check_sizes(root: Path) -> Iterator[Finding]:
    for path in source_files(root, SOURCE_SUFFIXES):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_LINES:
            relative = path.relative_to(root).as_posix()
            yield Finding(relative, count, f"{count} lines, at most {MAX_LINES}: split the file")


def expand_braces(word: str) -> Iterator[str]:
    match = re.search(r"\{([^{}]*)\}", word)
    if not match:
        yield word
        return
    for choice in match.group(1).split(","):
        yield from expand_braces(word[: match.start()] + choice.strip() + word[match.end():])


def named_paths(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, path, is a link) of each path in a document: code, in line or fenced, and links."""
    word = r"(?:%s)/[\w.,{}*+/-]*" % "|".join(re.escape(f) for f in NAMED_FOLDERS)
    fenced = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    for code in itertools.chain(fenced.finditer(text), re.finditer(r"`[^`\n]+`", fenced.sub(
            lambda m: re.sub(r"[^\n]", " ", m.group()), text))):
        for match in re.finditer(r"(?<![\w./<>$}-])" + word + r"(?![\w<>])", code.group()):
            path = match.group().rstrip(".,")
            yield line_of(text, code.start() + match.start()), path, False
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        target = match.group(1).split("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            yield line_of(text, match.start()), target, True


def documents(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    for folder in NAMED_FOLDERS:
        yield from sorted((root / folder).rglob("*.md"))


def check_documents(root: Path) -> Iterator[Finding]:
    for document in documents(root):
        if document.name == "CHANGELOG.md":  # History may name what is gone.
            continue
        relative = document.relative_to(root).as_posix()
        for line, path, is_link in named_paths(document.read_text(encoding="utf-8")):
            if "NNNN" in path:
                continue
            base = document.parent if is_link else root
            for name in expand_braces(path):
                found = any(base.glob(name)) if "*" in name else (base / name).exists()
                if not found:
                    yield Finding(relative, line, f"{name} does not exist")


CHECKS = (
    check_arrows,
    check_public_headers,
    check_header_guards,
    check_words,
    check_sizes,
    check_documents,
)


def findings(root: Path) -> Iterable[Finding]:
    root = root.resolve()
    return [finding for check in CHECKS for finding in check(root)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[2])
    root = parser.parse_args().root
    if not (root / "src").is_dir():
        print(f"{root}: no src/ there", file=sys.stderr)
        return 2
    found = findings(root)
    for finding in found:
        print(finding)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
