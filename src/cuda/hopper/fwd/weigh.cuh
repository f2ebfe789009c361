// Scores become weights. After a row's first keys its maximum is subtracted unseen, and its weights
// looked at: only where their sum is too large was the maximum too low. Where weights tell nothing
// of the scores, those are computed once more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/hopper/fwd/cap_scores.cuh"
#include "cuda/hopper/fwd/recover.cuh"
#include "cuda/hopper/fwd/softmax.cuh"

namespace foveal::cuda::hopper {

/// Of a lane's weights of a row and block: above it the row's maximum is raised.
inline constexpr float kMaxSum = 0x1p8f;
/// Weights that add up to more than this may be infinite, or too far from 1 to be scaled to it.
inline constexpr float kMaxScalableSum = 0x1p100f;

template <class Shape>
class Weigher {
 public:
  static constexpr ForwardTile kTile = Shape::kTile;
  static_assert(kTile.n / 4 <= kMaxLaneKeys);
  using Scores = float[kTile.n / 2];

  FOVEAL_DEVICE Weigher(const ForwardArgs& args) : args_(args) {
    factor_log2_ = kTile.capped ? 1.0f : args.attention.score.softmax_scale * kLog2E;
  }

  /// Of a tile's first block; no weight exceeds 1.
  FOVEAL_DEVICE void begin(const ScoreBlock<Shape>& block, Scores& s, RowStates& state) {
    method_ = first_method();
    block.finish_scores(args_, s);
    begin_rows(state, s);
    exponentiate(s, state, factor_log2_);
  }

  /// Of any other block; `before_masked`: the one before was masked.
  FOVEAL_DEVICE Rescale next(const ScoreBlock<Shape>& block, Scores& s, RowStates& state,
                             bool before_masked) {
    const bool begun = !before_masked || state.have_begun();  // all rows
    const int method = kTile.capped && begun && !block.masked ? method_ : kExact;
    float sum[2];
    weigh(block, s, state, begun, method, sum);
    Rescale rescale{{1.0f, 1.0f}, __any_sync(~0u, sum[0] > kMaxSum || sum[1] > kMaxSum) != 0};
    if (rescale.any) {
      const bool lost[2] = {quad_max(sum[0]) > kMaxScalableSum, quad_max(sum[1]) > kMaxScalableSum};
      if (any_row(block, lost)) {
        recover_scores(args_, block, s, lost);
        if (method != kExact) change_method();
      }
      rescale.factor[0] = raise_maximum(s, state, 0, sum[0], lost[0]);
      rescale.factor[1] = raise_maximum(s, state, 1, sum[1], lost[1]);
    }
    state.sum[0] += sum[0];
    state.sum[1] += sum[1];
    return rescale;
  }

 private:
  /// How scores are capped in blocks without a mask.
  enum Method : int { kExact, kNinth, kQuintic };

  FOVEAL_DEVICE int first_method() const {
    if (!kTile.capped || !args_.cap.ninth.is_usable()) return kExact;
    return args_.cap.quintic.is_usable() ? kQuintic : kNinth;
  }

  /// Rows without a key so far take this block's maximum; their sums and accumulators are 0. A
  /// row's maximum depends on that row alone, here and below.
  FOVEAL_DEVICE void begin_rows(RowStates& state, const Scores& s) {
    const float2 lane_max = lane_maxima(s);
    const float max[2] = {lane_max.x, lane_max.y};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float max_log2 = quad_max(max[half]) * factor_log2_;
      if (state.max_log2[half] != kNoKey) continue;
      state.max_log2[half] = max_log2 < kNoKey ? kNoKey : max_log2;
    }
  }

  /// Scores become weights, with sums of the lane's own: infinite where the polynomial is not
  /// right.
  FOVEAL_DEVICE void weigh(const ScoreBlock<Shape>& block, Scores& s, RowStates& state, bool begun,
                           int method, float (&sum)[2]) {
    if (method == kQuintic) {
      weigh_capped(s, state, args_.cap.quintic, sum);
    } else if (method == kNinth) {
      weigh_capped(s, state, args_.cap.ninth, sum);
    } else {
      block.finish_scores(args_, s);
      if (!begun) begin_rows(state, s);
      sum[0] = exponentiate_row(s, 0, factor_log2_, state.max_log2[0]);
      sum[1] = exponentiate_row(s, 1, factor_log2_, state.max_log2[1]);
    }
  }
  template <std::size_t kTerms>
  FOVEAL_DEVICE void weigh_capped(Scores& s, const RowStates& state,
                                  const CapPolynomial<kTerms>& polynomial, float (&sum)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float max_log2 = state.max_log2[half];
      sum[half] = exponentiate_capped_row(s, half, max_log2, polynomial);
      const float one = ptx::exp2_approx(-max_log2);  // the weight of a score of 0
      if (!(sum[half] >= polynomial.min_sum * one && sum[half] <= polynomial.max_sum * one)) {
        sum[half] = -algorithm::kNegativeInfinity;
      }
    }
  }

  /// Of the warp's. Those past the sequence's end, of which it knows nothing, have no say.
  FOVEAL_DEVICE bool any_row(const ScoreBlock<Shape>& block, const bool (&lost)[2]) const {
    const std::int32_t num_rows = block.num_rows();
    return __any_sync(~0u, (lost[0] && num_rows > 0) || (lost[1] && num_rows > 8)) != 0;
  }

  /// A method goes through the tile until some score does not fit.
  FOVEAL_DEVICE void change_method() {
    method_ = __shfl_sync(~0u, method_ - 1, 0);  // alike, and known to be
  }

  /// Raises the maximum of a row whose weights are too large; s has its weights or, where they were
  /// lost, its scores. The factor for what the row has so far.
  FOVEAL_DEVICE float raise_maximum(Scores& s, RowStates& state, int half, float& sum, bool lost) {
    const float2 lane_max = lane_maxima(s);
    const float max = quad_max(half == 0 ? lane_max.x : lane_max.y);
    if (!(quad_max(sum) > kMaxSum)) return 1.0f;
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

  const ForwardArgs& args_;
  float factor_log2_;
  int method_;
};

}  // namespace foveal::cuda::hopper
