"""PyTorch's own sample inputs of scaled_dot_product_attention, as its test-suite keeps them."""

import pytest
import torch
import torch.nn.functional as F

import foveal

invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")
(SDPA,) = (op for op in invocations.op_db
           if op.name == "nn.functional.scaled_dot_product_attention")


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_samples(dtype):
    count = 0
    for sample in SDPA.sample_inputs("cpu", dtype, requires_grad=True):
        leaves = [t for t in (sample.input, *sample.args, *sample.kwargs.values())
                  if isinstance(t, torch.Tensor) and t.requires_grad]
        results = []
        for function in (F.scaled_dot_product_attention, foveal.scaled_dot_product_attention):
            torch.manual_seed(0)
            out = function(sample.input, *sample.args, **sample.kwargs)
            results.append((out, *torch.autograd.grad(out.sum(), leaves)))
        count += 1
        if sample.kwargs.get("dropout_p"):  # Other random numbers: only what they are drawn for.
            assert results[0][0].shape == results[1][0].shape
            continue
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert count > 10
