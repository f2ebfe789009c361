// Scalar functions of the special-function unit.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// 2^x, relative error 2^-22; exp2(-inf) is 0, NaN stays NaN.
FOVEAL_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x), absolute error 2^-22 near 1; log2(0) is -inf.
FOVEAL_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace foveal::cuda::ptx
