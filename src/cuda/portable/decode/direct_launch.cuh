// Host side of a direct decode instance.
#pragma once

#include <cuda_runtime.h>

#include <foveal/status.hpp>

#include "cuda/portable/decode/direct_kernel.cuh"
#include "cuda/portable/decode/direct_shared.cuh"
#include "cuda/portable/decode/launch.hpp"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::decode {
namespace {

/// Up to 8 warps a block. At headdim 64 registers must leave room for two of them on an SM.
template <int kHeaddim>
inline constexpr int kDirectBlocksPerSm = kHeaddim == 64 ? 2 : 1;

template <class Element, int kHeaddim, bool kPaged>
__global__ void __launch_bounds__(32 * kMaxDirectWarps, kDirectBlocksPerSm<kHeaddim>)
    direct_decode_kernel(const __grid_constant__ DirectArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  DirectBlock<Element, kHeaddim, kPaged>(args, shared).run();
}

template <class Element, int kHeaddim, bool kPaged>
__global__ void __launch_bounds__(32 * kMaxDirectWarps, kDirectBlocksPerSm<kHeaddim>)
    shared_direct_decode_kernel(const __grid_constant__ SharedDirectArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  SharedDirectBlock<Element, kHeaddim, kPaged>(args, shared).run();
}

}  // namespace

template <class Element, int kHeaddim>
Status launch_direct_instance(const DirectArgs& args, const DecodeGrid& grid, void* stream) {
  static SharedMemoryGrant dense_grant;
  static SharedMemoryGrant paged_grant;
  const DirectLayout layout =
      direct_layout(kHeaddim, args.num_rows, grid.num_warps, args.num_stages, args.num_splits);
  const LaunchShape shape{.num_blocks = grid.num_blocks,
                          .num_blocks_y = grid.num_heads,
                          .num_blocks_z = grid.num_sequences,
                          .num_threads = 32 * grid.num_warps,
                          .shared_bytes = layout.total,
                          .cluster_size = grid.cluster_size,
                          .stream = stream};
  return args.pages.table == nullptr
             ? launch_kernel("decode", direct_decode_kernel<Element, kHeaddim, false>, args, shape,
                             dense_grant)
             : launch_kernel("decode", direct_decode_kernel<Element, kHeaddim, true>, args, shape,
                             paged_grant);
}

template <class Element, int kHeaddim>
Status launch_direct_instance(const SharedDirectArgs& args, const DecodeGrid& grid, void* stream) {
  static SharedMemoryGrant dense_grant;
  static SharedMemoryGrant paged_grant;
  const SharedDirectLayout layout =
      shared_direct_layout(kHeaddim, args.direct.num_rows, grid.num_warps, args.direct.num_stages,
                           static_cast<int>(grid.num_blocks), args.batch);
  const LaunchShape shape{.num_blocks = grid.num_blocks,
                          .num_threads = 32 * grid.num_warps,
                          .shared_bytes = layout.total,
                          .stream = stream};
  return args.direct.pages.table == nullptr
             ? launch_kernel("decode", shared_direct_decode_kernel<Element, kHeaddim, false>, args,
                             shape, dense_grant)
             : launch_kernel("decode", shared_direct_decode_kernel<Element, kHeaddim, true>, args,
                             shape, paged_grant);
}

}  // namespace foveal::cuda::decode
