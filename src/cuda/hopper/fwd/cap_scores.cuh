// softcap: see ScoreCap.
#pragma once

#include <cstddef>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/reciprocal.cuh"

namespace foveal::cuda::hopper {

/// A score over x = q.k, in the exponent's unit; `square` is x^2.
template <std::size_t kTerms>
FOVEAL_DEVICE float capped_slope(float square, const CapPolynomial<kTerms>& polynomial) {
  float slope = polynomial.terms[kTerms - 1];
#pragma unroll
  for (std::size_t i = kTerms - 1; i > 0; --i) slope = slope * square + polynomial.terms[i - 1];
  return slope;
}

/// The score of any x = q.k, by tanh(z) = 1 - 2 / (e^(2 z) + 1): off by 2^-22 of the cap.
FOVEAL_DEVICE float cap_score(float x, const ScoreCap& cap) {
  const float power = ptx::exp2_approx(x * cap.double_factor_log2);
  return cap.max_log2 - cap.double_max_log2 * ptx::rcp_approx(power + 1.0f);
}

/// Scores that are low enough for it become weights by the polynomial; the lane's sum of them.
template <int kCount, std::size_t kTerms>
FOVEAL_DEVICE float exponentiate_capped_row(float (&s)[kCount], int half, float max_log2,
                                            const CapPolynomial<kTerms>& polynomial) {
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = s[4 * j + 2 * half + e];
      x = ptx::exp2_approx(x * capped_slope(x * x, polynomial) - max_log2);
      sum[e] += x;
    }
  }
  return sum[0] + sum[1];
}

}  // namespace foveal::cuda::hopper
