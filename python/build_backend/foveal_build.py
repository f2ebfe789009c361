"""The wheel's build backend: scikit-build-core, and PyTorch's headers from where they are.

The operators for PyTorch are compiled against torch's headers, of any torch from 2.10 on: the
result serves them all. Where the environment that pip installs into has torch, the headers are
there and nothing is downloaded. Only where there is none does the build ask for torch.
FOVEAL_PYTHON_TORCH=off in the environment builds a package for NumPy alone.
"""

from __future__ import annotations

import os

from find_torch import find_torch
from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403  (the hooks that stay as they are)


def _wants_torch() -> bool:
    return os.environ.get("FOVEAL_PYTHON_TORCH", "on").lower() not in ("off", "0", "no", "false")


def _settings(config_settings):
    settings = dict(config_settings or {})
    if not _wants_torch():
        settings.setdefault("cmake.define.FOVEAL_PYTHON_TORCH", "off")
    return settings


def get_requires_for_build_wheel(config_settings=None):
    needed = _build.get_requires_for_build_wheel(config_settings)
    missing = _wants_torch() and find_torch() is None
    return [*needed, "torch>=2.10"] if missing else needed


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def get_requires_for_build_editable(config_settings=None):
    needed = _build.get_requires_for_build_editable(config_settings)
    missing = _wants_torch() and find_torch() is None
    return [*needed, "torch>=2.10"] if missing else needed


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _build.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
