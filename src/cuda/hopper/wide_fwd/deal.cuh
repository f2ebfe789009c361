// Which tile a cluster has next: its first block asks, both are told.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/work.cuh"
#include "cuda/hopper/wide_fwd/shared_memory.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/remote_arrive.cuh"

namespace foveal::cuda::hopper::wide_fwd {

/// The first block of the cluster tells the second a tile's index.
template <class Shape>
FOVEAL_DEVICE void send_index(typename Shape::SharedMemory& smem, std::int32_t index,
                              std::uint32_t parity) {
  if (threadIdx.x % 32 == 0) {
    ptx::mbarrier_wait(address_of(smem.index_taken), parity ^ 1);
    ptx::st_async(ptx::mapa(address_of(smem.index), 1), __int_as_float(index),
                  ptx::mapa(address_of(smem.index_here), 1));
  }
  __syncwarp();
}

template <class Shape>
FOVEAL_DEVICE std::int32_t receive_index(typename Shape::SharedMemory& smem, std::uint32_t parity) {
  if (threadIdx.x % 32 == 0) {
    ptx::mbarrier_arrive_expect_tx(address_of(smem.index_here), sizeof smem.index);
  }
  ptx::mbarrier_wait(address_of(smem.index_here), parity);
  const std::int32_t index = *static_cast<volatile std::int32_t*>(&smem.index);
  const std::uint32_t taken = ptx::after_loads(ptx::mapa(address_of(smem.index_taken), 0),
                                               static_cast<std::uint32_t>(index));
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_remote(taken);
  return index;
}

/// All lanes of the dealing warp of each block call it: publishes tile after tile to its own block,
/// each when the first block's loading warp wants it, and in the end that there are no more.
template <class Shape>
FOVEAL_DEVICE void deal_to_cluster(const ForwardArgs& args, typename Shape::SharedMemory& smem) {
  TileDealer dealer(args, kClusterSize);
  const bool asks = ptx::cluster_ctarank() == 0;
  RingPlace<kWorkSlots> at;
  for (bool found = true; found; at.advance()) {
    const std::uint32_t parity = at.count % 2;
    std::int32_t index;
    if (asks) {
      if (at.count > 0) ptx::mbarrier_wait(address_of(smem.next_wanted), parity ^ 1);
      index = dealer.next_index();
      send_index<Shape>(smem, index, parity);
    } else {
      index = receive_index<Shape>(smem, parity);
    }
    TilePlace tile;
    found = dealer.find(index, tile);
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_wait(address_of(smem.work_empty[at.slot()]), at.parity() ^ 1);
      WorkTile& work = smem.work[at.slot()];
      work.found = found;
      if (found) fill_work<Shape>(args, tile, work);
      ptx::mbarrier_arrive(address_of(smem.work_full[at.slot()]));
    }
    __syncwarp();
  }
}

}  // namespace foveal::cuda::hopper::wide_fwd
