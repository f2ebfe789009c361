// FOVEAL_CHECK: what kernels can only clamp, since the host can't read it without waiting.
#pragma once

#include <foveal/problem.hpp>

namespace foveal::planner {

/// Whether FOVEAL_CHECK=1 asks for check_device_values before each launch.
[[nodiscard]] bool checks_device_values();

/// Reads the integer arrays (lengths, pages, cache rows) back from the current device and validates
/// them as a launch on the CPU does. Waits for the stream. While the stream is being captured
/// nothing can be read: that is logged, and nothing is checked.
[[nodiscard]] Status check_device_values(const AttentionProblem& problem,
                                         const AttentionTensors& tensors, void* stream);

}  // namespace foveal::planner
