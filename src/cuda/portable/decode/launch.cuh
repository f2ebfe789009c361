// Host side of a decode instance.
#pragma once

#include <cuda_runtime.h>

#include <foveal/status.hpp>

#include "cuda/portable/decode/args.hpp"
#include "cuda/portable/decode/kernel.cuh"
#include "cuda/portable/decode/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::decode {
namespace {

/// Blocks an SM that registers leave room for: short rows need many, so that some stream while
/// others start and end.
template <int kHeaddim, int kTiles>
inline constexpr int kBlocksPerSm = kHeaddim == 64 && kTiles == 1 ? 4 : 1;

template <class Element, int kHeaddim, int kTiles>
__global__ void __launch_bounds__(32 * max_warps(kHeaddim, kTiles), kBlocksPerSm<kHeaddim, kTiles>)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DecodeBlock<Element, kHeaddim, kTiles>(args, shared).run();
}

}  // namespace

template <class Element, int kHeaddim, int kTiles>
Status launch_instance(const DecodeArgs& args, const DecodeGrid& grid, void* stream) {
  static SharedMemoryGrant grant;
  const SharedLayout layout =
      shared_layout(kHeaddim, kTiles * kTileRows, grid.num_warps, args.num_stages,
                    args.num_splits > 1 ? args.num_splits : 0,
                    args.schedule == Schedule::kBalanced ? args.attention.batch : 0);
  return launch_kernel("decode", decode_kernel<Element, kHeaddim, kTiles>, args,
                       {.num_blocks = grid.num_blocks,
                        .num_blocks_y = grid.num_heads,
                        .num_blocks_z = grid.num_sequences,
                        .num_threads = 32 * grid.num_warps,
                        .shared_bytes = layout.total,
                        .cluster_size = grid.cluster_size,
                        .stream = stream},
                       grant);
}

}  // namespace foveal::cuda::decode
