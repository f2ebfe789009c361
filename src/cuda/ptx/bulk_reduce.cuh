// Additions and stores of whole pieces of shared memory to global memory by the copy engine (sm_90
// and newer), in groups of the thread that asks for them. What other threads wrote there is seen
// after their fence_proxy_async (tma.cuh) and a barrier.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// to[i] += from[i], each float by itself atomically. Addresses and size are multiples of 16 bytes.
FOVEAL_DEVICE void bulk_reduce_add(float* to, std::uint32_t from, std::uint32_t bytes) {
  stall();
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

/// to[i] = from[i], as bulk_reduce_add.
FOVEAL_DEVICE void bulk_store(float* to, std::uint32_t from, std::uint32_t bytes) {
  stall();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

/// What the calling thread saw in global memory, by load_acquire or add_acquire (memory.cuh), comes
/// before what it asks for from here on.
FOVEAL_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

/// Closes the group of the calling thread's additions and stores since the last commit.
FOVEAL_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }

/// Waits until all but the kPending youngest groups have read their shared memory. It orders that
/// memory alone: ptxas (13.0) moves a store to global memory that follows to before the wait.
template <int kPending>
FOVEAL_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

/// Waits until all but the kPending youngest groups have been added or stored, as the calling
/// thread sees it; others see it after a release (memory.cuh).
template <int kPending>
FOVEAL_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace foveal::cuda::ptx
