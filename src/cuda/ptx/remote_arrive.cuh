// Arrivals at barriers of other blocks of the cluster that publish nothing (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// One arrival at a barrier whose address is mapa()'s (cluster.cuh). It comes after products that
/// were waited for, and after loads only with after_loads(). It publishes to the other block
/// nothing that the thread wrote: a release at the cluster's scope would wait for all its stores
/// (MEMBAR.ALL.GPU), a microsecond.
FOVEAL_DEVICE void mbarrier_arrive_remote(std::uint32_t barrier) {
  stall();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/// As many at once.
FOVEAL_DEVICE void mbarrier_arrive_remote(std::uint32_t barrier, std::uint32_t arrivals) {
  stall();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

/// The barrier's address, known when all lanes have got `word`: something of each load from shared
/// memory that the arrival is to come after. Otherwise it leaves the multiprocessor beside loads
/// that were issued before it, and what the other block then stores can be there before they are
/// done. It is the machine's order, not PTX's, that this keeps; FOVEAL_STALLS cannot show where it
/// is missing, since loads are done while it stalls. All lanes of a warp call it.
FOVEAL_DEVICE std::uint32_t after_loads(std::uint32_t barrier, std::uint32_t word) {
  const std::uint32_t some_lanes = __ballot_sync(~0u, word == 0) & 0xff;
  FOVEAL_ASSERT(barrier > 0xff);  // which the compiler does not know
  std::uint32_t same;
  asm volatile("max.u32 %0, %1, %2;\n" : "=r"(same) : "r"(barrier), "r"(some_lanes));
  return same;
}

}  // namespace foveal::cuda::ptx
