"""Threads: foveal's and PyTorch's pools share the machine, and the problems are small."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("FOVEAL_NUM_THREADS", "2")

import pytest  # noqa: E402
import torch  # noqa: E402  (reads the environment)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
