// Host side of an instance.
#pragma once

#include "cuda/hopper/bwd/kernel.cuh"
#include "cuda/hopper/bwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::hopper::bwd {

template <class Config, DType kDType>
Status launch_gradients(const GradientArgs& args, std::int64_t num_blocks, void* stream) {
  static SharedMemoryGrant grant;
  return launch_kernel("hopper_bwd", hopper_bwd<Config, kDType>, args,
                       {.num_blocks = num_blocks,
                        .num_threads = Config::tile.num_threads(),
                        .shared_bytes = Config::tile.shared_bytes(),
                        .stream = stream,
                        .overlaps_before = true},
                       grant);
}

}  // namespace foveal::cuda::hopper::bwd
