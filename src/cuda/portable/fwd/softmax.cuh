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

/// Of the lane's own scores.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void lane_maxima(const float (&s)[kRowTiles][kKeyTiles][4],
                               float (&maxima)[2 * kRowTiles]) {
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    maxima[row] = algorithm::kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      maxima[row] =
          fmaxf(maxima[row], fmaxf(s[row / 2][j][row % 2 * 2], s[row / 2][j][row % 2 * 2 + 1]));
    }
  }
}

template <int kRows>
FOVEAL_DEVICE void fold_lane_maxima(float (&maxima)[kRows]) {
#pragma unroll
  for (float& max : maxima) max = quad_max(max);
}

/// Whether a row must move: its weights would grow past the slack. From -inf any number is
/// infinitely far; -inf is not above itself.
FOVEAL_DEVICE bool must_move(float max, float block_max, float factor_log2) {
  return (block_max - max) * factor_log2 > kMaxSlackLog2;
}
template <int kRows>
FOVEAL_DEVICE bool any_must_move(const RowStates<kRows>& state, const float (&maxima)[kRows],
                                 float factor_log2) {
  bool any = false;
#pragma unroll
  for (int row = 0; row < kRows; ++row) any |= must_move(state.max[row], maxima[row], factor_log2);
  return any;
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
    const bool moves = must_move(state.max[row], block_max[row], factor_log2);
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

/// Weights p of scores s, which may be the same fragment; `sums` grow by the lane's own.
template <int kRowTiles, int kKeyTiles>
FOVEAL_DEVICE void exponentiate(const float (&s)[kRowTiles][kKeyTiles][4],
                                const float (&max)[2 * kRowTiles], float factor_log2,
                                float (&p)[kRowTiles][kKeyTiles][4], float (&sums)[2 * kRowTiles]) {
#pragma unroll
  for (int row = 0; row < 2 * kRowTiles; ++row) {
    const float offset = algorithm::softmax_offset(max[row]) * factor_log2;
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = s[row / 2][j][row % 2 * 2 + e];
        float& weight = p[row / 2][j][row % 2 * 2 + e];
        weight = ptx::exp2_approx(x * factor_log2 - offset);
        sums[row] += weight;
      }
    }
  }
}

}  // namespace foveal::cuda::portable
