// Vector stores into the shared memory of another block of the cluster (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// Stores 16 bytes into the cluster's shared memory and counts them at a barrier there; address and
/// barrier belong to the same block.
FOVEAL_DEVICE void st_async_16(std::uint32_t address, float4 value, std::uint32_t barrier) {
  stall();
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];\n" ::"r"(address),
      "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
      "r"(__float_as_uint(value.w)), "r"(barrier)
      : "memory");
}

/// The same with 8 bytes.
FOVEAL_DEVICE void st_async_8(std::uint32_t address, float2 value, std::uint32_t barrier) {
  stall();
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, "
      "[%3];\n" ::"r"(address),
      "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(barrier)
      : "memory");
}

}  // namespace foveal::cuda::ptx
