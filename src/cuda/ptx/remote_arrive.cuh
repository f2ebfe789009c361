// Arrivals at barriers of other blocks of the cluster that publish nothing (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// One arrival at a barrier whose address is mapa()'s (cluster.cuh). It comes after what the
/// calling thread read, and publishes to the other block nothing that it wrote: a release at the
/// cluster's scope would wait for all its stores (MEMBAR.ALL.GPU), a microsecond.
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

}  // namespace foveal::cuda::ptx
