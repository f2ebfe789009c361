// hopper_wide_fwd: attention of tiles of query rows by clusters of two blocks, warp-specialised:
// one warpgroup loads, the others attend. Clusters stay until there are no more tiles.
#pragma once

#include <cstdint>

#include "cuda/hopper/cluster_exit.cuh"
#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/wide_fwd/attend.cuh"
#include "cuda/hopper/wide_fwd/deal.cuh"
#include "cuda/hopper/wide_fwd/load.cuh"

namespace foveal::cuda::hopper::wide_fwd {

/// One thread calls it. Slots are full by one arrival and their bytes; empty by all consumers'
/// warps.
template <class Shape>
FOVEAL_DEVICE void init_barriers(typename Shape::SharedMemory& smem) {
  for (std::uint64_t& full : smem.q_full) ptx::mbarrier_init(address_of(full), 1);
  ptx::mbarrier_init(address_of(smem.q_empty), Shape::kWarps);
  for (int i = 0; i < Shape::kSlots; ++i) {
    ptx::mbarrier_init(address_of(smem.full[i]), 1);
    ptx::mbarrier_init(address_of(smem.empty[i]), Shape::kWarps);
  }
  for (std::uint64_t& issued : smem.k_issued) ptx::mbarrier_init(address_of(issued), 1);
  ptx::mbarrier_init(address_of(smem.v_issued), 2);
  for (int i = 0; i < Shape::kWarps; ++i) {
    ptx::mbarrier_init(address_of(smem.weights_here[i]), 1);
    ptx::mbarrier_init(address_of(smem.weights_taken[i]), 1);
    ptx::mbarrier_init(address_of(smem.maxima_here[i]), 1);
  }
  for (int i = 0; i < kWorkSlots; ++i) {
    ptx::mbarrier_init(address_of(smem.work_full[i]), 1);
    ptx::mbarrier_init(address_of(smem.work_empty[i]), Shape::kWarps + 3);  // and the loading ones
  }
  ptx::mbarrier_init(address_of(smem.next_wanted), 1);
  ptx::mbarrier_init(address_of(smem.index_here), 1);
  ptx::mbarrier_init(address_of(smem.index_taken), 1);
  ptx::fence_mbarrier_init();
}

namespace {

template <class Config, DType kDType>
__global__ void __launch_bounds__(Config::tile.num_threads(), 1)
    hopper_wide_fwd(const __grid_constant__ ForwardArgs args) {
  using Shape = WideShape<Config, kDType>;
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
  // The partner's barriers are initialised before anything is sent to it.
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (warpgroup == 0) {
    ptx::set_max_registers_lower<Shape::kTile.producer_registers()>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) load_q_and_k<Shape>(args, smem);
    if (warp == 1) deal_to_cluster<Shape>(args, smem);
    if (warp >= 2) load_values<Shape>(args, smem, warp - 2);
  } else {
    ptx::set_max_registers_higher<Shape::kTile.consumer_registers()>();
    attend_wide<Shape>(args, smem, warpgroup - 1);
  }
  finish_exchange();
  leave_cluster();
}

}  // namespace

}  // namespace foveal::cuda::hopper::wide_fwd
