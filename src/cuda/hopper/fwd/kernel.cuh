// hopper_fwd: attention of tiles of query rows, warp-specialised: one warpgroup loads, the others
// attend. Blocks stay until there are no more tiles.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/attend.cuh"
#include "cuda/hopper/fwd/deal.cuh"
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
  for (int group = 0; group < Shape::kConsumers; ++group) {
    ptx::mbarrier_init(address_of(smem.q_full[group]), 1);
    ptx::mbarrier_init(address_of(smem.q_empty[group]), 4);
  }
  for (int i = 0; i < Shape::kStages; ++i) {
    ptx::mbarrier_init(address_of(smem.k_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.k_empty[i]), kConsumerWarps);
    ptx::mbarrier_init(address_of(smem.v_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.v_empty[i]), kConsumerWarps);
  }
  ptx::mbarrier_init(address_of(smem.next_wanted), 1);
  for (int i = 0; i < kWorkSlots; ++i) {
    ptx::mbarrier_init(address_of(smem.work_full[i]), Shape::kConsumers);
    ptx::mbarrier_init(address_of(smem.work_empty[i]), kConsumerWarps + 1);  // and the loading one
  }
  ptx::fence_mbarrier_init();
}

/// The loading warp calls it.
template <class Shape>
FOVEAL_DEVICE void begin_load(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) init_barriers<Shape>(smem);
  if (lane == 1) ptx::prefetch_tensor_map(&args.q);
  if (lane == 2) ptx::prefetch_tensor_map(&args.k);
  if (lane == 3) ptx::prefetch_tensor_map(&args.v);
  __syncwarp();
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
  // Until __syncthreads, which each role comes to by itself, barriers can't be used.
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) {
      begin_load<Shape>(args, smem);
      __syncthreads();
      load<Shape>(args, smem);
    } else if (warp == 1) {
      Dealer<Shape> dealer(args, smem);
      __syncthreads();
      dealer.deal();
    } else {
      __syncthreads();
    }
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    __syncthreads();
    attend<Shape>(args, smem, warpgroup - 1);
  }
}

}  // namespace

}  // namespace foveal::cuda::hopper
