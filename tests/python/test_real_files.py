"""The files of examples/data: queries, keys and values of real models with known answers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import foveal_ctypes as foveal
from torch_attention import TorchAttention

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "data"
DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32}
# Largest errors of out and lse to accept, from the README beside the files: minilm's are F32,
# smollm2's F16.
LIMITS = {"F32": (5e-6, 2e-5), "F16": (4e-3, 1e-5)}


class File:
    def __init__(self, path: Path):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        self.metadata = header.pop("__metadata__")
        self.dtype = header["q"]["dtype"]
        self.tensors = {}
        for name, entry in header.items():
            begin, end = (8 + size + x for x in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            self.tensors[name] = torch.from_numpy(array.copy())
        if self.metadata["layout"] == "bhsd":
            for name in ("q", "k", "v", "expected_out"):
                self.tensors[name] = self.tensors[name].transpose(1, 2)
        self.operands = {name: x for name, x in self.tensors.items()
                         if not name.startswith("expected_")}
        self.options = {"causal": self.metadata["causal"] == "1",
                        "softmax_scale": float(self.metadata["softmax_scale"])}

    def used_rows(self) -> torch.Tensor:
        """Of q: those with an expected out."""
        q = self.tensors["q"]
        if (rows := self.tensors.get("expected_rows")) is not None:
            return torch.zeros(len(q), dtype=torch.bool).index_fill(0, rows.long(), True)
        if (used := self.tensors.get("seqused_q")) is not None:
            return torch.arange(q.shape[1]) < used[:, None]
        return torch.ones(q.shape[:-2], dtype=torch.bool)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.tensors["expected_out"]
        return (out if "expected_rows" in self.tensors else out[self.used_rows()],
                self.tensors["expected_lse"])

    def worst(self, out, lse) -> tuple[float, float]:
        """Largest errors of out and lse where they are defined."""
        expected_out, expected_lse = self.expected()
        finite = torch.isfinite(expected_lse)
        return ((out[self.used_rows()].double() - expected_out).abs().max().item(),
                (lse.double() - expected_lse)[finite].abs().max().item())


PATHS = sorted(FOLDER.glob("*.safetensors"))


def test_files_are_there():
    assert len(PATHS) >= 4


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def file(request):
    return File(request.param)


def test_kernel(file):
    out, lse = foveal.forward(**file.operands, **file.options, lse=True)
    out_limit, lse_limit = LIMITS[file.dtype]
    out_error, lse_error = file.worst(out, lse)
    assert out_error <= out_limit and lse_error <= lse_limit


def test_oracle(file):
    """The answers are stored as fp32."""
    out = torch.empty(*file.tensors["q"].shape)
    call = foveal.Call("forward", **file.operands, out=out.to(file.tensors["q"].dtype),
                       lse=foveal.empty_lse(file.tensors["q"]), **file.options)
    exact = {name: torch.from_numpy(x) for name, x in call.oracle("out", "lse").items()}
    out_error, lse_error = file.worst(exact["out"], exact["lse"])
    assert out_error <= 1e-6 and lse_error <= 4e-6


def test_torch(file):
    """PyTorch in fp64 agrees with the stored answers too: three witnesses."""
    out, lse = (x.detach() for x in TorchAttention(file.operands, **file.options).forward())
    out_error, lse_error = file.worst(out, lse)
    assert out_error <= 1e-6 and lse_error <= 4e-6


def test_lengths_matter(file):
    """With the lengths ignored the answer is another one: the files would tell."""
    lengths = [name for name in ("cu_seqlens_q", "seqused_k") if name in file.operands]
    operands = dict(file.operands)
    changed = operands[lengths[0]].clone()
    if lengths[0] == "seqused_k":
        changed = torch.clamp(changed - 1, min=0)
        operands["seqused_k"] = changed
    else:
        total = changed[-1]
        operands["cu_seqlens_q"] = operands["cu_seqlens_k"] = torch.tensor(
            [0, int(total) // 2, int(total)], dtype=torch.int32)
    out, lse = foveal.forward(**operands, **file.options, lse=True)
    assert file.worst(out, lse)[0] > 0.01
