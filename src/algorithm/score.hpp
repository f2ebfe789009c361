// What happens to a score between the product q.k and the softmax: scale, softcap, ALiBi.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"

namespace foveal::algorithm {

/// softcap * tanh(score / softcap); the score itself when softcap is 0 (off).
FOVEAL_HOST_DEVICE inline float cap_score(float score, float softcap) {
  return softcap == 0.0f ? score : softcap * std::tanh(score / softcap);
}

/// d cap_score / d score, from the capped score: 1 - (capped / softcap)^2.
FOVEAL_HOST_DEVICE constexpr float cap_derivative(float capped, float softcap) {
  if (softcap == 0.0f) return 1.0f;
  const float ratio = capped / softcap;
  return 1.0f - ratio * ratio;
}

/// -slope * |i + shift - j|: zero on the bottom-right diagonal.
FOVEAL_HOST_DEVICE constexpr float alibi_bias(float slope, std::int64_t i, std::int64_t shift,
                                              std::int64_t j) {
  const std::int64_t distance = i + shift - j;
  return -slope * static_cast<float>(distance < 0 ? -distance : distance);
}

}  // namespace foveal::algorithm
