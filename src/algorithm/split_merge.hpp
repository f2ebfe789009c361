// Partial results over disjoint keys, as values with a merge: (out_a, lse_a) + (out_b, lse_b).
// The merge is commutative, has (0, -inf) as its neutral element, and is associative up to
// rounding.
#pragma once

#include <cmath>

#include "algorithm/online_softmax.hpp"
#include "core/host_device.hpp"

namespace foveal::algorithm {

/// out = weight_a * out_a + weight_b * out_b
struct MergeWeights {
  float weight_a = 0.0f;
  float weight_b = 0.0f;
  float lse = kNegativeInfinity;
};

FOVEAL_HOST_DEVICE inline MergeWeights merge_weights(float lse_a, float lse_b) {
  if (lse_b == kNegativeInfinity && lse_a == kNegativeInfinity) return {};
  if (lse_b == kNegativeInfinity) return {1.0f, 0.0f, lse_a};
  if (lse_a == kNegativeInfinity) return {0.0f, 1.0f, lse_b};
  const float larger = lse_a > lse_b ? lse_a : lse_b;
  const float exp_a = std::exp(lse_a - larger);
  const float exp_b = std::exp(lse_b - larger);
  const float sum = exp_a + exp_b;
  return {exp_a / sum, exp_b / sum, larger + std::log(sum)};
}

}  // namespace foveal::algorithm
