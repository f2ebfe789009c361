// Additions to global memory that return nothing.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// Adds four floats at an address aligned to 16, each by itself atomically.
FOVEAL_DEVICE void red_add_4(float* to, float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(to), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
#else
  asm volatile(
      "red.relaxed.gpu.global.add.f32 [%0], %1;\n"
      "red.relaxed.gpu.global.add.f32 [%0+4], %2;\n"
      "red.relaxed.gpu.global.add.f32 [%0+8], %3;\n"
      "red.relaxed.gpu.global.add.f32 [%0+12], %4;\n" ::"l"(to),
      "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
#endif
}

}  // namespace foveal::cuda::ptx
