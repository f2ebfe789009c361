// Online softmax over a warp's fragment of scores (layout: scores.cuh), in powers of two.
#pragma once

#include "algorithm/online_softmax.hpp"
#include "core/host_device.hpp"
#include "cuda/ptx/math.cuh"

namespace foveal::cuda::portable {

/// A row's weights are 2^(factor * (score - max)), so they may exceed 1 by this many powers of two
/// before the sums and the accumulator are moved to a new maximum: with most inputs never after the
/// first block. The weights' relative precision is the same, and 2^8 is far from 16-bit overflow.
inline constexpr float kMaxSlackLog2 = 8.0f;

/// Rows in the order of fragments: row 2 i + half is 16 i + 8 half of the warp's rows.
template <int kRows>
struct RowStates {
  float max[kRows];  ///< What is subtracted from the row's scores, in their unit.
  float sum[kRows];  ///< Of the lane's own weights.

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      max[row] = algorithm::kNegativeInfinity;
      sum[row] = 0.0f;
    }
  }
};

/// Over the four lanes that share a row.
FOVEAL_DEVICE float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
FOVEAL_DEVICE float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void row_maxima(const float (&s)[kRowTiles][kKeyTiles][4],
                              float (&maxima)[2 * kRowTiles]) {
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    float max = algorithm::kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      max = fmaxf(max, fmaxf(s[row / 2][j][row % 2 * 2], s[row / 2][j][row % 2 * 2 + 1]));
    }
    maxima[row] = quad_max(max);
  }
}

/// Moves rows whose block maximum is too far above what is subtracted, and with them their sums and
/// accumulators. A row's move depends on that row alone.
template <int kRowTiles, int kColumnTiles>
FOVEAL_DEVICE void move_maxima(RowStates<2 * kRowTiles>& state,
                               const float (&block_max)[2 * kRowTiles], float factor_log2,
                               float (&acc)[kRowTiles][kColumnTiles][4]) {
  float rescale[2 * kRowTiles];
  bool any = false;
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    // From -inf any number is infinitely far; -inf is not above itself.
    const bool moves = (block_max[row] - state.max[row]) * factor_log2 > kMaxSlackLog2;
    rescale[row] = moves ? ptx::exp2_approx((state.max[row] - block_max[row]) * factor_log2) : 1.0f;
    if (moves) state.max[row] = block_max[row];
    state.sum[row] *= rescale[row];
    any |= moves;
  }
  if (!__any_sync(~0u, any)) return;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i][j][e] *= rescale[2 * i + e / 2];
    }
  }
}

/// Scores become weights.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void exponentiate(float (&s)[kRowTiles][kKeyTiles][4],
                                RowStates<2 * kRowTiles>& state, float factor_log2) {
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    const float offset = algorithm::softmax_offset(state.max[row]) * factor_log2;
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[row / 2][j][row % 2 * 2 + e];
        x = ptx::exp2_approx(x * factor_log2 - offset);
        state.sum[row] += x;
      }
    }
  }
}

}  // namespace foveal::cuda::portable
