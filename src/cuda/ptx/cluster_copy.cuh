// Copies from a block's shared memory to that of another block of its cluster by the copy engine
// (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// One thread asks for a copy of `bytes`, a multiple of 16, to an address of another block (mapa()
/// of cluster.cuh); they are counted at a barrier there. What other threads wrote is seen after
/// their fence_proxy_async (tma.cuh) and a barrier.
FOVEAL_DEVICE void bulk_copy_to_block(std::uint32_t to, std::uint32_t from, std::uint32_t bytes,
                                      std::uint32_t barrier) {
  stall();
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];\n" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace foveal::cuda::ptx
