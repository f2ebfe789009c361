// softcap without the special-function unit, where scores are well below the cap: see LowScores.
// Rows that are past the sequence's end, of which it knows nothing, have no say in the choice.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/softmax.cuh"

namespace foveal::cuda::hopper {

/// The largest of a row's scores in the lane where one is positive, else 0. As integers, floats
/// without a sign are in the same order, with one they are below 0; and integers have a maximum of
/// three.
template <int kCount>
FOVEAL_DEVICE float positive_max(const float (&s)[kCount], int half) {
  int max[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    max[j % 2] = __vimax3_s32(__float_as_int(s[4 * j + 2 * half]),
                              __float_as_int(s[4 * j + 2 * half + 1]), max[j % 2]);
  }
  return __int_as_float(max_of(max[0], max[1]));
}

/// Raises `lowest` to a pair of floats as integers without a sign, of which the largest is the
/// negative one that is farthest from 0.
FOVEAL_DEVICE void take_lower(unsigned& lowest, float x, float y) {
  lowest = __vimax3_u32(__float_as_uint(x), __float_as_uint(y), lowest);
}

/// Of a lane's two rows.
struct LowRows {
  float sum[2];     ///< Of weights.
  float lowest[2];  ///< Of scores.
};

/// Scores become weights by the polynomial.
template <int kCount>
FOVEAL_DEVICE LowRows exponentiate_low(float (&s)[kCount], const RowStates& state,
                                       const LowScores& low) {
  constexpr int kAtATime = 2;
  LowRows rows;
  float zero = 0.0f;
  int weight_bits[3] = {0, 0, 0};  // of the last parts
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum[2] = {0.0f, 0.0f};
    unsigned bits[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      // 0, but known only when exponentials have come so far: the compiler would begin with all
      // polynomials, for which there are no registers, in place of having them beside exponentials.
      const int part = (half * kCount / 4 + j) * 2 / kAtATime;
      if (j * 2 % kAtATime == 0) zero = __int_as_float(weight_bits[part % 3] & low.none);
      take_lower(bits[j % 2], s[4 * j + 2 * half], s[4 * j + 2 * half + 1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * half + e];
        const float square = x * x + zero;
        const float slope = (low.terms[2] * square + low.terms[1]) * square + low.terms[0];
        x = ptx::exp2_approx(x * slope - state.max_log2[half]);
        sum[e] += x;
      }
      weight_bits[part % 3] = __float_as_int(s[4 * j + 2 * half + 1]);
    }
    rows.sum[half] = sum[0] + sum[1];
    rows.lowest[half] = __uint_as_float(max_of(bits[0], bits[1]));
  }
  return rows;
}

/// Whether a block can be taken by the polynomial with no row's maximum moving; a warp's lanes
/// agree. `num_rows` of the thread's rows and those below it exist.
template <int kCount>
FOVEAL_DEVICE bool are_low(const float (&s)[kCount], const RowStates& state, const LowScores& low,
                           std::int32_t num_rows) {
  bool fit = true;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned bits[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      take_lower(bits[j % 2], s[4 * j + 2 * half], s[4 * j + 2 * half + 1]);
    }
    const float min = __uint_as_float(max_of(bits[0], bits[1]));
    const float max = positive_max(s, half);
    const bool within = min >= low.min && max <= -low.min &&
                        max * low.slope_log2 - state.max_log2[half] <= kMaxSlackLog2;
    fit &= within || 8 * half >= num_rows;
  }
  return __all_sync(~0u, fit) != 0;
}

}  // namespace foveal::cuda::hopper
