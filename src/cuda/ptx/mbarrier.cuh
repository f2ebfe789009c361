// Barriers in shared memory between roles of one block (sm_90 and newer): a phase ends when all
// arrivals and all announced bytes have come. Initialised by mbarrier_init (cluster.cuh).
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// One arrival; publishes what the calling thread wrote before.
FOVEAL_DEVICE void mbarrier_arrive(std::uint32_t barrier) {
  stall();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/// As many at once.
FOVEAL_DEVICE void mbarrier_arrive(std::uint32_t barrier, std::uint32_t arrivals) {
  stall();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

/// Waits for the end of the phase of that parity and sees what arrived in it. A barrier that was
/// just initialised lets waits for parity 1 pass.
FOVEAL_DEVICE void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
  stall();
}

}  // namespace foveal::cuda::ptx
