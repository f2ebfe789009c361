// What lies between the product q.k^T of a tile and its softmax: scale, softcap, bias, ALiBi and
// the mask, the same code for the forward and for the backward that recomputes the scores; and
// dropout's factors. Layout of a score tile: row r - packed.min is packed row r, column j -
// keys.min is key j; columns up to round_up(keys.size(), kLane) exist.
#pragma once

#include <cstdint>

#include <foveal/problem.hpp>

#include "algorithm/dropout.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/range.hpp"
#include "cpu/tile_load.hpp"
#include "cpu/tile_math.hpp"
#include "problem/geometry.hpp"

namespace foveal::cpu {

/// The options of a problem that shape its scores.
struct ScoreOptions {
  const TileMath* math = nullptr;
  float softmax_scale = 0;
  /// Nothing stands between scale and exponential but a mask: scale_and_cap() leaves the products
  /// as they are, and the exponential takes the scale as its factor.
  bool defers_scale = false;
  float softcap = 0;
  const void* bias = nullptr;       ///< Null: none.
  DType bias_dtype = DType::kNone;  ///< kBool: 0 masks the key.
  BiasStrides bias_strides;
  const void* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;  ///< 0 for slopes by head alone.
  std::int64_t alibi_head_stride = 0;
  algorithm::Dropout dropout;
  std::int64_t nheads_q = 0;

  /// What scores have to be multiplied with yet.
  [[nodiscard]] float exp_factor() const { return defers_scale ? softmax_scale : 1.0f; }
};
[[nodiscard]] ScoreOptions score_options(const TileMath& math, const AttentionProblem& problem,
                                         const AttentionGeometry& geometry,
                                         const AttentionTensors& tensors);

/// Where a tile stands. `rows.packed` holds rows below seqlen_q * group only, `keys` keys below
/// seqlen_k only.
struct ScoreTile {
  QueryTile rows;
  algorithm::Mask mask;
  algorithm::Range keys;
};

/// Products become capped scores: scale, unless that is deferred, then softcap.
void scale_and_cap(const ScoreOptions& options, const ScoreTile& tile, float* scores,
                   std::int64_t ld);

/// Capped scores become what the softmax sees: bias and ALiBi, then -inf where the mask hides the
/// key (looked at only with `needs_mask`, see BlockRange) and in the columns past keys.size().
void bias_and_mask(const ScoreOptions& options, const ScoreTile& tile, bool needs_mask,
                   float* scores, std::int64_t ld);

/// keep_scale or 0 for every key of packed row r, up to round_up(keys.size(), kLane). keys.min is a
/// multiple of 4.
void dropout_factors(const ScoreOptions& options, const ScoreTile& tile, std::int64_t r,
                     float* factors);

}  // namespace foveal::cpu
