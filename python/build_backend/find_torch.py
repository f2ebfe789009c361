"""Prints the folder of the torch package to build against, or nothing.

Looks where this interpreter imports from and, since pip's build isolation hides them, in the
site-packages of its own environment. Only files are looked at: torch is not imported.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path

HEADER = "include/torch/csrc/stable/library.h"


def find_torch() -> Path | None:
    folders = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
               *site.getsitepackages(), site.getusersitepackages()]
    for folder in folders:
        root = Path(folder) / "torch"
        if (root / HEADER).is_file():
            return root
    return None


if __name__ == "__main__":
    print(find_torch() or "")
