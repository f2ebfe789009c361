// Host side of an instance.
#pragma once

#include "cuda/hopper/wide_bwd/kernel.cuh"
#include "cuda/hopper/wide_bwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::hopper::wide_bwd {

template <class Config, DType kDType, Side kSide>
Status launch_gradients(const WideArgs& args, std::int64_t num_tiles, void* stream) {
  static SharedMemoryGrant grant;
  return launch_kernel("hopper_wide_bwd", hopper_wide_bwd<Config, kDType, kSide>, args,
                       {.num_blocks = kClusterSize * num_tiles,
                        .num_threads = WideTile::num_threads(kSide),
                        .shared_bytes = Config::tile.shared_bytes(kSide),
                        .cluster_size = kClusterSize,
                        .stream = stream},
                       grant);
}

}  // namespace foveal::cuda::hopper::wide_bwd
