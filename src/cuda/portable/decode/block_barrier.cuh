// The barrier of all threads of a decode block.
#pragma once

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::decode {

/// __syncthreads, after which warps go on in no order (stall.cuh).
FOVEAL_DEVICE void meet() {
  __syncthreads();
  ptx::stall();
}

}  // namespace foveal::cuda::decode
