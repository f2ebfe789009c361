// Host side of an instance of heads wider than 128.
#pragma once

#include "cuda/hopper/bwd/launch.hpp"
#include "cuda/hopper/bwd/wide_kernel.cuh"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::hopper::bwd {

template <class Config, DType kDType>
Status launch_wide_gradients(const GradientArgs& args, std::int64_t num_clusters, void* stream) {
  constexpr BackwardTile kTile = Config::tile;
  static SharedMemoryGrant grant;
  return launch_kernel("hopper_bwd", hopper_bwd_wide<Config, kDType>, args,
                       {.num_blocks = num_clusters * kTile.blocks,
                        .num_threads = kTile.num_threads(),
                        .shared_bytes = kTile.shared_bytes(),
                        .cluster_size = kTile.blocks,
                        .stream = stream},
                       grant);
}

}  // namespace foveal::cuda::hopper::bwd
