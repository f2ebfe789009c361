// What warps and warpgroups (four warps, the first of a number divisible by 4) do together.
#pragma once

#include "core/host_device.hpp"
#include "cuda/ptx/stall.cuh"

namespace foveal::cuda::ptx {

/// Waits until `threads` threads (whole warps) have come to barrier `id`, 1 to 15, and sees what
/// they wrote.
FOVEAL_DEVICE void named_barrier_sync(int id, int threads) {
  stall();
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
  stall();
}

/// One of the arrivals that barrier `id` waits for; doesn't wait.
FOVEAL_DEVICE void named_barrier_arrive(int id, int threads) {
  stall();
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// Registers a thread from here on: given back, or asked for (and waited for until others have
/// given back enough). All warps of the warpgroup call it; multiples of 8.
template <int kRegisters>
FOVEAL_DEVICE void set_max_registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
FOVEAL_DEVICE void set_max_registers_higher() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace foveal::cuda::ptx
