// The CUDA runtime's error codes as Status.
#pragma once

#include <cuda_runtime_api.h>

#include <foveal/status.hpp>

namespace foveal::cuda {

/// `what` names the call for the message: `decode kernel`.
[[nodiscard]] Status to_status(cudaError_t error, const char* what);

/// The error of the launch just made by this thread, taken from the runtime.
[[nodiscard]] Status launch_status(const char* kernel);

}  // namespace foveal::cuda
