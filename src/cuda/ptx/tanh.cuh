// The hyperbolic tangent of the special-function unit (sm_75 and newer).
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// tanh(x), relative error 2^-11: what rounding to fp16 costs.
FOVEAL_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace foveal::cuda::ptx
