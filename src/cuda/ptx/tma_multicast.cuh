// Copies of boxes of a tensor to several blocks of a cluster at once (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// As tma_load_4d (tma.cuh), to the same place of each block whose rank's bit is set in `blocks`;
/// counts the box's bytes at the same barrier of each.
FOVEAL_DEVICE void tma_load_4d_multicast(std::uint32_t to, const void* map, std::uint32_t barrier,
                                         std::uint16_t blocks, std::int32_t x, std::int32_t y,
                                         std::int32_t z, std::int32_t w) {
  stall();
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;\n" ::"r"(to),
      "l"(map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

}  // namespace foveal::cuda::ptx
