// A consumer's scores: softcap, mask, and the online softmax in powers of two. A thread has
// two rows of the tile, g and g + 8 of its warp's 16; s[4 j + 2 half + e] is row g + 8 half, key
// 8 j + 2 t + e, with (g, t) = (lane / 4, lane % 4).
#pragma once

#include <cstdint>
#include <limits>

#include "algorithm/online_softmax.hpp"
#include "cuda/hopper/fwd/args.hpp"
#include "cuda/hopper/fwd/cap_scores.cuh"
#include "cuda/hopper/fwd/shared_memory.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/matrix.cuh"

namespace foveal::cuda::hopper {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// A row's weights are 2^(factor * (score - max)); they may exceed 1 by so many powers of two
/// before sum and accumulator are moved to a new maximum, which keeps their relative precision and
/// is far from the overflow of fp16.
inline constexpr float kMaxSlackLog2 = 8.0f;

/// The maximum of a row that has no key so far: below any score, and -inf minus it is -inf.
inline constexpr float kNoKey = -std::numeric_limits<float>::max();

struct RowStates {
  float max_log2[2];  ///< What is subtracted from a row's scores, in the exponent's unit.
  float sum[2];       ///< Of the lane's own weights.

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max_log2[half] = kNoKey;
      sum[half] = 0.0f;
    }
  }
  /// Whether all rows of the warp have a key; alike in its lanes.
  FOVEAL_DEVICE bool have_begun() const {
    return __all_sync(~0u, max_log2[0] != kNoKey && max_log2[1] != kNoKey) != 0;
  }
};

/// q.k become scores in the exponent's unit: scaled, then capped.
template <int kCount>
FOVEAL_DEVICE void scale_and_cap(float (&s)[kCount], const ForwardArgs& args) {
  if (args.cap.max_log2 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] *= args.scale_log2;
    return;
  }
  // In parts, behind branches that are never taken (a lane has fewer scores than a tile has rows):
  // the compiler would else begin more of them at once than it has registers.
#pragma unroll
  for (int begin = 0; begin < kCount; begin += 16) {
    if (begin > 0 && begin >= args.schedule.tile_m) break;
#pragma unroll
    for (int i = begin; i < min_of(begin + 16, kCount); ++i) s[i] = cap_score(s[i], args.cap);
  }
}

/// `row` is the thread's first row, `key` its first key.
template <int kCount>
FOVEAL_DEVICE void mask_scores(float (&s)[kCount], const BasicMask<std::int32_t>& mask,
                               std::int32_t row, std::int32_t key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int32_t min = mask.first_key(row + 8 * half) - key;
    const std::int32_t max = mask.end_key(row + 8 * half) - key;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < min || 8 * j + e >= max) {
          s[4 * j + 2 * half + e] = algorithm::kNegativeInfinity;
        }
      }
    }
  }
}

/// Over the four lanes that share a row.
FOVEAL_DEVICE float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
FOVEAL_DEVICE float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

/// What the rows' sums and accumulators are still to be multiplied by.
struct Rescale {
  float factor[2];
  bool any;  ///< Alike in all lanes of a warp; false: by 1.
};

/// Of the lane's own scores of its two rows.
template <int kCount>
FOVEAL_DEVICE float2 lane_maxima(const float (&s)[kCount]) {
  float max[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float even = s[2 * half];
    float odd = s[2 * half + 1];
#pragma unroll
    for (int j = 1; j < kCount / 4; ++j) {
      even = fmaxf(even, s[4 * j + 2 * half]);
      odd = fmaxf(odd, s[4 * j + 2 * half + 1]);
    }
    max[half] = fmaxf(even, odd);
  }
  return {max[0], max[1]};
}

/// Moves the rows whose maximum in this block, in parts over four lanes, is too far above what is
/// subtracted: with most inputs none after the first block, and then the lanes of a row need not
/// exchange anything. A row's move depends on that row alone.
FOVEAL_DEVICE Rescale move_maxima(RowStates& state, float2 lane_max, float factor_log2) {
  const float max[2] = {lane_max.x, lane_max.y};
  bool exceeds = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // From kNoKey any number is too far, but -inf.
    exceeds |= max[half] * factor_log2 - state.max_log2[half] > kMaxSlackLog2;
  }
  Rescale rescale{{1.0f, 1.0f}, __any_sync(~0u, exceeds) != 0};
  if (!rescale.any) return rescale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_max_log2 = quad_max(max[half]) * factor_log2;
    if (!(row_max_log2 - state.max_log2[half] > kMaxSlackLog2)) continue;
    rescale.factor[half] = ptx::exp2_approx(state.max_log2[half] - row_max_log2);
    state.max_log2[half] = row_max_log2;
    state.sum[half] *= rescale.factor[half];
  }
  return rescale;
}

/// A row's scores become weights; the lane's sum of them.
template <int kCount>
FOVEAL_DEVICE float exponentiate_row(float (&s)[kCount], int half, float factor_log2,
                                     float max_log2) {
  float even = 0.0f;
  float odd = 0.0f;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    float& x = s[4 * j + 2 * half];
    float& y = s[4 * j + 2 * half + 1];
    x = ptx::exp2_approx(x * factor_log2 - max_log2);
    y = ptx::exp2_approx(y * factor_log2 - max_log2);
    even += x;
    odd += y;
  }
  return even + odd;
}

/// Scores become weights.
template <int kCount>
FOVEAL_DEVICE void exponentiate(float (&s)[kCount], RowStates& state, float factor_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state.sum[half] += exponentiate_row(s, half, factor_log2, state.max_log2[half]);
  }
}

/// Weights rounded to the operands' type, as the left factor of 16 keys a step.
template <class Element, int kCount>
FOVEAL_DEVICE void pack_weights(std::uint32_t (&p)[kCount / 8][4], const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    p[i / 4][i % 4] = ptx::pack_pair<Element>(s[2 * i], s[2 * i + 1]);
  }
}

}  // namespace foveal::cuda::hopper
