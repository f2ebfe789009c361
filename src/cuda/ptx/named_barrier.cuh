// Barriers of some of a block's warps.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// All kThreads threads that name barrier `id` wait for one another, and see what each of them had
/// written before; 0 is __syncthreads'. True where any of them says so.
template <int kThreads>
FOVEAL_DEVICE bool named_barrier_or(int id, bool value) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.s32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.s32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "n"(kThreads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

}  // namespace foveal::cuda::ptx
