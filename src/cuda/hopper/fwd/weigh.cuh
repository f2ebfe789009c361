// Scores become weights. A consumer that can compute scores once more (recovers_scores) subtracts a
// row's old maximum unseen, and looks at the sums: only where one is too large was the maximum too
// low. Others look at the scores before.
#pragma once

#include <cstdint>

#include "cuda/hopper/fwd/low_scores.cuh"
#include "cuda/hopper/fwd/recover.cuh"
#include "cuda/hopper/fwd/softmax.cuh"

namespace foveal::cuda::hopper {

/// Of a lane's weights of a row and block: above it the row's maximum is raised.
inline constexpr float kMaxSum = 1 << kMaxSumLog2;
/// Weights that add up to more than this may be infinite, or too far from 1 to be scaled to it.
inline constexpr float kMaxScalableSum = 0x1p100f;

template <class Shape>
class Weigher {
 public:
  static constexpr ForwardTile kTile = Shape::kTile;
  using Scores = float[kTile.n / 2];

  FOVEAL_DEVICE Weigher(const ForwardArgs& args) : args_(args) {
    factor_log2_ = args.scale_first ? kLog2E : args.attention.score.softmax_scale * kLog2E;
  }

  /// Of a tile's first block; no weight exceeds 1.
  FOVEAL_DEVICE void begin(const ScoreBlock<Shape>& block, Scores& s, RowStates& state) {
    low_ = kTile.recovers_scores() && args_.low_scores.min < 0;
    block.finish_scores(args_, s);
    begin_rows(block, state, s);
    exponentiate(s, state, factor_log2_);
  }

  /// Of any other block; `before_masked`: the one before was masked.
  FOVEAL_DEVICE Rescale next(const ScoreBlock<Shape>& block, Scores& s, RowStates& state,
                             bool before_masked) {
    if constexpr (kTile.recovers_scores()) {
      return weigh_and_look(block, s, state, !before_masked || state.have_begun());
    } else {
      return look_and_weigh(block, s, state);
    }
  }

 private:
  /// Rows without a key so far take this block's maximum; their sums and accumulators are 0. A
  /// row's maximum depends on that row alone, here and below.
  FOVEAL_DEVICE void begin_rows(const ScoreBlock<Shape>& block, RowStates& state, const Scores& s) {
    const float2 lane_max = lane_maxima(s);
    const float max[2] = {lane_max.x, lane_max.y};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float max_log2 = quad_max(max[half]) * factor_log2_;
      if (state.max_log2[half] != kNoKey) continue;
      state.max_log2[half] = max_log2 < kNoKey ? kNoKey : max_log2;
    }
    if (low_) keep_low(block, state, true, true);
  }

  /// The polynomial takes the tile's blocks until a score does not fit.
  FOVEAL_DEVICE void keep_low(const ScoreBlock<Shape>& block, const RowStates& state,
                              bool first_fits, bool second_fits) {
    const std::int32_t num_rows = block.num_rows();
    const float max_log2 = args_.low_scores.max_log2;
    const bool first = num_rows <= 0 || (first_fits && state.max_log2[0] <= max_log2);
    const bool second = num_rows <= 8 || (second_fits && state.max_log2[1] <= max_log2);
    low_ = __all_sync(~0u, first && second) != 0;
  }

  /// `begun`: all rows have had a key before.
  FOVEAL_DEVICE Rescale weigh_and_look(const ScoreBlock<Shape>& block, Scores& s, RowStates& state,
                                       bool begun) {
    const LowScores& scores = args_.low_scores;
    const bool low = low_ && begun && !block.masked;
    float sum[2];
    float lowest[2] = {0.0f, 0.0f};
    if (low) {
      const LowRows rows = exponentiate_low(s, state, scores);
      sum[0] = rows.sum[0];
      sum[1] = rows.sum[1];
      lowest[0] = rows.lowest[0];
      lowest[1] = rows.lowest[1];
    } else {
      block.finish_scores(args_, s);
      if (!begun) begin_rows(block, state, s);
      sum[0] = exponentiate_row(s, 0, factor_log2_, state.max_log2[0]);
      sum[1] = exponentiate_row(s, 1, factor_log2_, state.max_log2[1]);
    }
    const bool too_low = low && (lowest[0] < scores.min || lowest[1] < scores.min);
    const bool too_large = sum[0] > kMaxSum || sum[1] > kMaxSum;
    Rescale rescale{{1.0f, 1.0f}, __any_sync(~0u, too_large || too_low) != 0};
    if (rescale.any) {
      const bool lost[2] = {is_lost(sum[0], low, lowest[0]), is_lost(sum[1], low, lowest[1])};
      if (__any_sync(~0u, lost[0] || lost[1])) recover_scores(args_, block, s, lost);
      rescale.factor[0] = raise_maximum(s, state, 0, sum[0], lost[0]);
      rescale.factor[1] = raise_maximum(s, state, 1, sum[1], lost[1]);
      if (low) keep_low(block, state, !lost[0], !lost[1]);
    }
    state.sum[0] += sum[0];
    state.sum[1] += sum[1];
    return rescale;
  }

  /// Whether a row's weights tell nothing of its scores, which are needed again.
  FOVEAL_DEVICE bool is_lost(float sum, bool low, float lowest) const {
    const float largest = quad_max(sum);
    const float below = quad_max(-lowest);
    if (!low) return largest > kMaxScalableSum;
    return largest > kMaxSum || -below < args_.low_scores.min;
  }

  /// Raises the maximum of a row whose weights are too large; s has its weights or, where they were
  /// lost, its scores. The factor for what the row has so far.
  FOVEAL_DEVICE float raise_maximum(Scores& s, RowStates& state, int half, float& sum, bool lost) {
    const float2 lane_max = lane_maxima(s);
    const float max = quad_max(half == 0 ? lane_max.x : lane_max.y);
    if (!(quad_max(sum) > kMaxSum) && !lost) return 1.0f;
    const float before_log2 = state.max_log2[half];
    const float max_log2 =
        lost ? fmaxf(max * factor_log2_, before_log2) : before_log2 + ptx::log2_approx(max);
    const float factor = ptx::exp2_approx(before_log2 - max_log2);
    if (lost) {
      sum = exponentiate_row(s, half, factor_log2_, max_log2);
    } else {
      sum *= factor;
#pragma unroll
      for (int i = 0; i < kTile.n / 4; ++i) s[4 * (i / 2) + 2 * half + i % 2] *= factor;
    }
    state.sum[half] *= factor;
    state.max_log2[half] = max_log2;
    return factor;
  }

  FOVEAL_DEVICE Rescale look_and_weigh(const ScoreBlock<Shape>& block, Scores& s,
                                       RowStates& state) {
    if (args_.low_scores.min < 0 && !block.masked &&
        are_low(s, state, args_.low_scores, block.num_rows())) {
      const LowRows rows = exponentiate_low(s, state, args_.low_scores);
      state.sum[0] += rows.sum[0];
      state.sum[1] += rows.sum[1];
      return {{1.0f, 1.0f}, false};
    }
    block.finish_scores(args_, s);
    // Mostly no score is so large, and then maxima of either sign need not be known.
    const bool exceeds = positive_max(s, 0) * factor_log2_ - state.max_log2[0] > kMaxSlackLog2 ||
                         positive_max(s, 1) * factor_log2_ - state.max_log2[1] > kMaxSlackLog2;
    Rescale rescale{{1.0f, 1.0f}, __any_sync(~0u, exceeds) != 0};
    if (rescale.any) {
      rescale = move_maxima(state, lane_maxima(s), factor_log2_);
      rescale.any = true;
    }
    exponentiate(s, state, factor_log2_);
    return rescale;
  }

  const ForwardArgs& args_;
  float factor_log2_;
  bool low_;  ///< The polynomial takes blocks without a mask; alike in a warp.
};

}  // namespace foveal::cuda::hopper
