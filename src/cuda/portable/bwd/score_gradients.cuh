// From products to weights and gradients of scores: p = exp(s - lse), ds = p (dp - delta), with
// everything that may come between q.k and the softmax.
#pragma once

#include <cstdint>

#include "algorithm/dropout.hpp"
#include "algorithm/score.hpp"
#include "core/host_device.hpp"
#include "cuda/portable/bwd/held_tile.cuh"
#include "cuda/portable/bwd/products.cuh"
#include "cuda/ptx/math.cuh"

namespace foveal::cuda::bwd {

inline constexpr float kLog2e = 1.44269504088896340736f;

/// What the terms of a score take from sequence and query head.
struct ScoreTerms {
  const ScoreArgs& args;
  algorithm::Dropout dropout;
  std::int64_t bias_offset = 0;
  std::int64_t batch_head = 0;
  float slope = 0;
  int shift = 0;

  FOVEAL_DEVICE ScoreTerms(const AttentionArgs& attention, const algorithm::Dropout& drop)
      : args(attention.score), dropout(drop) {}

  FOVEAL_DEVICE void enter(const AttentionArgs& attention, const Sequence& sequence, int head) {
    bias_offset = sequence.b * args.bias_strides.batch + head * args.bias_strides.head;
    batch_head = static_cast<std::int64_t>(sequence.b) * attention.nheads_q + head;
    shift = static_cast<int>(sequence.mask.shift());
    if (args.alibi_slopes != nullptr) {
      slope =
          args.alibi_slopes[sequence.b * args.alibi_batch_stride + head * args.alibi_head_stride];
    }
  }

  FOVEAL_DEVICE float bias(int i, int j) const {
    const std::int64_t index =
        bias_offset + i * args.bias_strides.row + j * args.bias_strides.column;
    if (args.bias_dtype == DType::kBool) {
      return static_cast<const std::uint8_t*>(args.bias)[index] != 0 ? 0.0f
                                                                     : -__int_as_float(0x7f800000);
    }
    return load_as_float(args.bias_dtype, args.bias, index);
  }

  /// 1 / (1 - p_drop) for an element that stays, else 0.
  FOVEAL_DEVICE float keep_factor(int i, int j) const {
    const algorithm::PhiloxWords words = algorithm::dropout_words(dropout, batch_head, i, j / 4);
    const std::uint32_t lower = j % 2 == 0 ? words.word[0] : words.word[1];
    const std::uint32_t upper = j % 2 == 0 ? words.word[2] : words.word[3];
    return (j % 4 < 2 ? lower : upper) >= dropout.threshold ? dropout.keep_scale : 0.0f;
  }
};

/// One element's weight, as v was multiplied with it, and the gradient of its score: with respect
/// to the product q.k / softmax_scale, or (bias_gradient) to the score where bias came in.
struct ElementGradient {
  float p;
  float ds;
};

FOVEAL_DEVICE ElementGradient element_gradient(const ScoreTerms& terms, int i, int j, float dot,
                                               float dp, float2 stats, bool bias_gradient) {
  const ScoreArgs& args = terms.args;
  float score = dot * args.softmax_scale;
  float slope = 1.0f;
  if (args.softcap > 0.0f) {
    const float ratio = tanhf(score / args.softcap);
    score = args.softcap * ratio;
    if (!bias_gradient) slope = 1.0f - ratio * ratio;
  }
  if (args.bias != nullptr) score += terms.bias(i, j);
  if (args.alibi_slopes != nullptr) score += algorithm::alibi_bias(terms.slope, i, terms.shift, j);
  float p = ptx::exp2_approx(fmaf(score, kLog2e, -stats.x));
  float keep = 1.0f;
  if (terms.dropout.enabled()) keep = terms.keep_factor(i, j);
  const float ds = p * (keep * dp - stats.y) * slope;
  return {keep * p, ds};
}

/// Where a warp's scores lie: held rows from `row`, streamed columns from `column` of their tiles.
struct WarpScores {
  int row = 0;
  int column = 0;
  int held_first = 0;  ///< Index of the tiles' first rows in the sequence.
  int streamed_first = 0;
  int held_stats = 0;  ///< Offsets in shared memory.
  int streamed_stats = 0;
};

/// Turns scores (raw products) and dp into weights and ds, in place, and hands each 16x8 tile of
/// them to `take(i, j)` as soon as it is there. What the mask hides becomes 0 in both, whatever it
/// was.
template <Side kSide, bool kGeneral, bool kMasked, int kRowBlocks, int kColumnTiles, class Take>
FOVEAL_DEVICE void score_gradients(const ScoreTerms& terms, const HeldTile& tile,
                                   const WarpScores& at,
                                   Accumulator<kRowBlocks, kColumnTiles>& scores,
                                   Accumulator<kRowBlocks, kColumnTiles>& dp, bool bias_gradient,
                                   const Take& take) {
  const int g = lane_of_warp() / 4;
  const int pair = 2 * (lane_of_warp() % 4);
  const float scale_log2 = terms.args.softmax_scale * kLog2e;
  IntRange visible[kRowBlocks][2];  // streamed columns that a row meets
  float2 held_stats[kRowBlocks][2];
#pragma unroll
  for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + 16 * i + 8 * half + g;
      if (kMasked) {
        const IntRange range = tile.template visible<kSide>(at.held_first + row);
        visible[i][half] = {range.min - at.streamed_first, range.max - at.streamed_first};
      }
      if (kSide == Side::kRows) held_stats[i][half] = memory_at<const float2>(at.held_stats)[row];
    }
  }
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    const int first_column = at.column + 8 * j + pair;
    float4 pair_stats = {};
    if (kSide == Side::kKeys) {
      pair_stats = *memory_at<const float4>(at.streamed_stats + 8 * first_column);
    }
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = first_column + e % 2;
        float2 stats = held_stats[i][e / 2];
        if (kSide == Side::kKeys) {
          stats =
              e % 2 == 0 ? float2{pair_stats.x, pair_stats.y} : float2{pair_stats.z, pair_stats.w};
        }
        float& score = scores.c[i][j][e];
        float& gradient = dp.c[i][j][e];
        const bool seen = !kMasked || visible[i][e / 2].contains(column);
        if constexpr (kGeneral) {
          const int held = at.held_first + at.row + 16 * i + 8 * (e / 2) + g;
          const int streamed = at.streamed_first + column;
          const int row = kSide == Side::kKeys ? streamed : held;
          const int key = kSide == Side::kKeys ? held : streamed;
          ElementGradient element = {0.0f, 0.0f};
          if (seen) {
            element = element_gradient(terms, row, key, score, gradient, stats, bias_gradient);
          }
          score = element.p;
          gradient = element.ds;
        } else {
          const float p = ptx::exp2_approx(fmaf(score, scale_log2, -stats.x));
          score = seen ? p : 0.0f;
          gradient = seen ? p * (gradient - stats.y) : 0.0f;
        }
      }
      take(i, j);
    }
  }
}

}  // namespace foveal::cuda::bwd
