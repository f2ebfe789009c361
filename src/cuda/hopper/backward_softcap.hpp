// softcap as the backward applies it.
#pragma once

#include "core/host_device.hpp"

namespace foveal::cuda::hopper {

/// c tanh(s / c) of scores s, products q.k times softmax_scale.
struct Softcap {
  float factor = 0;    ///< softmax_scale / c
  float cap_log2 = 0;  ///< c for powers of two; 0: scores aren't capped.
  float inverse = 0;   ///< 1 / cap_log2

  [[nodiscard]] FOVEAL_HOST_DEVICE constexpr bool is_on() const { return cap_log2 > 0; }
};

/// softcap 0: none.
[[nodiscard]] constexpr Softcap backward_softcap(float softmax_scale, float softcap) {
  constexpr float kLog2e = 1.442695040888963407f;
  if (!(softcap > 0)) return {};
  return {softmax_scale / softcap, softcap * kLog2e, 1.0f / (softcap * kLog2e)};
}

}  // namespace foveal::cuda::hopper
