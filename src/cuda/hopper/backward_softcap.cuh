// softcap in the backward: a score s becomes c tanh(s / c), and the gradient of s is that of the
// capped score times 1 - tanh(s / c)^2.
#pragma once

#include "core/host_device.hpp"
#include "cuda/hopper/backward_softcap.hpp"
#include "cuda/ptx/math.cuh"

namespace foveal::cuda::hopper {

/// tanh(x) within 2^-20 of its value. The special-function unit's own, within 2^-11, would be felt
/// in the exponentials of capped scores.
FOVEAL_DEVICE float exact_tanh(float x) {
  constexpr float kTwiceLog2e = 2.885390081777926815f;
  const float far = 1.0f - __fdividef(2.0f, 1.0f + ptx::exp2_approx(kTwiceLog2e * x));
  // Near 0, where the difference cancels, the power series.
  const float y = x * x;
  const float near =
      x * fmaf(y, fmaf(y, fmaf(y, -17.0f / 315.0f, 2.0f / 15.0f), -1.0f / 3.0f), 1.0f);
  return fabsf(x) < 0.25f ? near : far;
}

/// Products become capped scores in log2 units.
template <int kCount>
FOVEAL_DEVICE void cap_products(const Softcap& softcap, float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = softcap.cap_log2 * exact_tanh(s[i] * softcap.factor);
}

/// 1 - tanh^2 of the score whose weight is p, found again from it; lse in log2 units. Of a weight
/// of 0 it is 0.
FOVEAL_DEVICE float slope_of_weight(const Softcap& softcap, float p, float lse) {
  const float score = ptx::log2_approx(p) + lse;
  const float ratio = fminf(fmaxf(score * softcap.inverse, -1.0f), 1.0f);
  return fmaf(-ratio, ratio, 1.0f);
}

/// Gradients of capped scores become those of scores. lse is of rows 2 t and 2 t + 1 of the first
/// eight; those of the next lie 4 pairs further.
template <int kCount>
FOVEAL_DEVICE void apply_slopes(const Softcap& softcap, const float (&p)[kCount], const float2* lse,
                                float* ds) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 pair = lse[4 * j];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      ds[4 * j + e] *= slope_of_weight(softcap, p[4 * j + e], e % 2 == 0 ? pair.x : pair.y);
    }
  }
}

}  // namespace foveal::cuda::hopper
