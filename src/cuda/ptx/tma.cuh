// Copies of boxes of a tensor by the copy engine (sm_90 and newer). One thread asks for a copy.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// Brings the description of a tensor, a kernel parameter, into the descriptor cache.
FOVEAL_DEVICE void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/// The map's box at (x, y, z, w), x innermost, into shared memory; elements outside the tensor
/// arrive as 0. Counts the whole box's bytes at `barrier`.
FOVEAL_DEVICE void tma_load_4d(std::uint32_t to, const void* map, std::uint32_t barrier,
                               std::int32_t x, std::int32_t y, std::int32_t z, std::int32_t w) {
  stall();
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

/// What the calling thread wrote to shared memory is seen by the copy engine and by wgmma, once a
/// barrier has ordered the threads.
FOVEAL_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace foveal::cuda::ptx
