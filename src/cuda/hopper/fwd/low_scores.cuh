// softcap without the special-function unit, where scores are well below the cap: see LowScores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/softmax.cuh"

namespace foveal::cuda::hopper {

/// Of a lane's two rows.
struct LowRows {
  float sum[2];     ///< Of weights.
  float square[2];  ///< The largest of its scores; NaN where one is not a number.
};

/// Scores become weights by the polynomial.
template <int kCount, std::size_t kTerms>
FOVEAL_DEVICE LowRows exponentiate_low(float (&s)[kCount], const RowStates& state,
                                       const CapPolynomial<kTerms>& cap) {
  LowRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum[2] = {0.0f, 0.0f};
    // Floats without a sign are in the order of integers, NaN above all of them; and integers have
    // a maximum of three.
    unsigned largest[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      float square[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * half + e];
        square[e] = x * x;
        float slope = cap.terms[kTerms - 1];
#pragma unroll
        for (std::size_t i = kTerms - 1; i > 0; --i) slope = slope * square[e] + cap.terms[i - 1];
        x = ptx::exp2_approx(x * slope - state.max_log2[half]);
        sum[e] += x;
      }
      largest[j % 2] =
          __vimax3_u32(__float_as_uint(square[0]), __float_as_uint(square[1]), largest[j % 2]);
    }
    rows.sum[half] = sum[0] + sum[1];
    rows.square[half] = __uint_as_float(max_of(largest[0], largest[1]));
  }
  return rows;
}

}  // namespace foveal::cuda::hopper
