// Thread block clusters, their shared memory, and the barriers in it (sm_90 and newer).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// Rank of the block in its cluster; 0 in a launch without clusters.
FOVEAL_DEVICE std::uint32_t cluster_ctarank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(r));
  return r;
}

/// All threads of all blocks of the cluster call arrive, and later wait. What a thread wrote before
/// is not published by it (relaxed: it does not wait for copies under way), but by a fence such as
/// fence_mbarrier_init before the arrive.
FOVEAL_DEVICE void cluster_arrive_relaxed() {
  stall();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
FOVEAL_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

/// The address that block `rank` of the cluster has for the same variable.
FOVEAL_DEVICE std::uint32_t mapa(std::uint32_t shared_address, std::uint32_t rank) {
  std::uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(r) : "r"(shared_address), "r"(rank));
  return r;
}

/// Stores 4 bytes into the cluster's shared memory and counts them at a barrier there; address and
/// barrier belong to the same block.
FOVEAL_DEVICE void st_async(std::uint32_t address, float value, std::uint32_t barrier) {
  stall();
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];\n" ::"r"(
          address),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}

/// One thread initialises; the others see it after fence_mbarrier_init and a barrier.
FOVEAL_DEVICE void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
FOVEAL_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

/// One arrival that also announces `bytes` still to come in this phase.
FOVEAL_DEVICE void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  stall();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Waits for the end of the phase of that parity and sees what the cluster stored in it.
FOVEAL_DEVICE void mbarrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
  stall();
}

}  // namespace foveal::cuda::ptx
