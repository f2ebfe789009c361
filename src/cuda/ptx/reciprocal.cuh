// A reciprocal of the special-function unit.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::ptx {

/// 1 / x, relative error 2^-23; of inf it is 0.
FOVEAL_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace foveal::cuda::ptx
