// Host side of an instance.
#pragma once

#include "cuda/portable/fwd/kernel.cuh"
#include "cuda/portable/fwd/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::portable {

template <class Config, DType kDType>
Status launch_forward(const ForwardArgs& args, void* stream) {
  static SharedMemoryGrant grant;
  constexpr ForwardTile kTile = Config::tile;
  return launch_kernel(
      "portable_fwd", portable_fwd<Config, kDType>, args,
      {.num_blocks = args.schedule.num_tiles(args.attention.batch) * args.schedule.num_splits,
       .num_threads = kTile.num_threads(),
       .shared_bytes = ForwardShape<Config, kDType>::kLayout.bytes,
       .stream = stream},
      grant);
}

}  // namespace foveal::cuda::portable
