// Host side of an instance.
#pragma once

#include "cuda/hopper/wide_fwd/kernel.cuh"
#include "cuda/hopper/wide_fwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::hopper::wide_fwd {

template <class Config, DType kDType>
Status launch_forward(const ForwardArgs& args, std::int64_t num_blocks, void* stream) {
  static SharedMemoryGrant grant;
  using SharedMemory = typename WideShape<Config, kDType>::SharedMemory;
  return launch_kernel("hopper_wide_fwd", hopper_wide_fwd<Config, kDType>, args,
                       {.num_blocks = num_blocks,
                        .num_threads = Config::tile.num_threads(),
                        .shared_bytes = static_cast<int>(sizeof(SharedMemory)),
                        .cluster_size = kClusterSize,
                        .stream = stream},
                       grant);
}

}  // namespace foveal::cuda::hopper::wide_fwd
