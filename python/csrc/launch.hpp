// Plans and runs a problem where its tensors are, with PyTorch's threads, stream and allocator.
#pragma once

#include <foveal/problem.hpp>

#include "operand.hpp"

namespace foveal::python {

/// Runs on the device of `anchor`, an operand of the problem: on the CPU on PyTorch's thread pool
/// with torch.get_num_threads() workers, on CUDA on PyTorch's current stream. While this thread
/// records (recorder.hpp), the problem is noted and nothing runs.
void launch(const AttentionProblem& problem, const AttentionTensors& tensors, const Tensor& anchor);

}  // namespace foveal::python
