"""`python -m foveal ...` is the command `foveal ...` of this installation; `bench` with `--impl` is
foveal.bench, which times other libraries beside it."""

from __future__ import annotations

import os
import sys

from foveal._library import FOLDER


def main() -> None:
    arguments = sys.argv[1:]
    named = any(a == "--impl" or a.startswith("--impl=") for a in arguments)
    if arguments[:1] == ["bench"] and named:
        from foveal.bench.command import main as bench

        raise SystemExit(bench(arguments[1:]))
    command = FOLDER / "bin" / "foveal"
    if not command.exists():
        raise SystemExit("this installation of foveal has no command line (FOVEAL_BUILD_TOOLS=OFF)")
    os.execv(command, [str(command), *arguments])


if __name__ == "__main__":
    main()
