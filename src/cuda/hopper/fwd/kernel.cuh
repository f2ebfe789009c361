// hopper_fwd: attention of tiles of query rows, warp-specialised: one warpgroup loads, the others
// attend. Blocks stay until there are no more tiles.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/attend.cuh"
#include "cuda/hopper/fwd/load.cuh"
#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/warpgroup.cuh"

namespace foveal::cuda::hopper {

/// One thread calls it. A stage is full by one arrival and its bytes; empty by all consumers'
/// warps.
template <class Shape>
FOVEAL_DEVICE void init_barriers(typename Shape::SharedMemory& smem) {
  constexpr unsigned kConsumerWarps = 4 * Shape::kTile.num_consumers();
  ptx::mbarrier_init(address_of(smem.q_full), 1);
  ptx::mbarrier_init(address_of(smem.q_empty), kConsumerWarps);
  for (int i = 0; i < Shape::kStages; ++i) {
    ptx::mbarrier_init(address_of(smem.k_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.k_empty[i]), kConsumerWarps);
    ptx::mbarrier_init(address_of(smem.v_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.v_empty[i]), kConsumerWarps);
  }
  ptx::mbarrier_init(address_of(smem.next_wanted), 1);
  for (int i = 0; i < kWorkSlots; ++i) {
    ptx::mbarrier_init(address_of(smem.work_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.work_empty[i]), kConsumerWarps + 1);  // and the loading one
  }
  ptx::fence_mbarrier_init();
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), 1)
    hopper_fwd(const __grid_constant__ ForwardArgs args) {
  using Shape = ForwardShape<Config, kDType>;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& smem = *reinterpret_cast<typename Shape::SharedMemory*>(shared);
  // Alike in a warp, and known to be: descriptors of wgmma are kept in uniform registers.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
  if (threadIdx.x == 0) init_barriers<Shape>(smem);
  if (threadIdx.x == 32) {
    ptx::prefetch_tensor_map(&args.q);
    ptx::prefetch_tensor_map(&args.k);
    ptx::prefetch_tensor_map(&args.v);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) load<Shape>(args, smem);
    if (warp == 1) deal<Shape>(args, smem);
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    attend<Shape>(args, smem, warpgroup - 1);
  }
}

}  // namespace

}  // namespace foveal::cuda::hopper
