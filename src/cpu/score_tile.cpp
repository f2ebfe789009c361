#include "cpu/score_tile.hpp"

#include <algorithm>

#include "algorithm/online_softmax.hpp"
#include "algorithm/score.hpp"

namespace foveal::cpu {
namespace {

using algorithm::kNegativeInfinity;
using algorithm::Range;

/// Adds `count` biases that lie `step` bytes apart.
template <class T>
void add_bias_elements(const std::byte* from, std::int64_t step, std::int64_t count, float* row) {
  for (std::int64_t j = 0; j < count; ++j) row[j] += load_element<T>(from + j * step);
}

void add_bool_mask(const std::byte* from, std::int64_t step, std::int64_t count, float* row) {
  for (std::int64_t j = 0; j < count; ++j) {
    if (from[j * step] == std::byte{0}) row[j] = kNegativeInfinity;
  }
}

void add_bias(const ScoreOptions& options, const ScoreTile& tile, std::int64_t r, float* row) {
  const BiasStrides& strides = options.bias_strides;
  const std::int64_t bytes = dtype_bytes(options.bias_dtype);
  const std::int64_t index = tile.rows.b * strides.batch + tile.rows.query_head(r) * strides.head +
                             tile.rows.query_row(r) * strides.row + tile.keys.min * strides.column;
  const auto* from = static_cast<const std::byte*>(options.bias) + index * bytes;
  const std::int64_t step = strides.column * bytes;
  const std::int64_t count = tile.keys.size();
  switch (options.bias_dtype) {
    case DType::kBool: return add_bool_mask(from, step, count, row);
    case DType::kFloat16: return add_bias_elements<Half>(from, step, count, row);
    case DType::kBFloat16: return add_bias_elements<BFloat16>(from, step, count, row);
    default: return add_bias_elements<float>(from, step, count, row);
  }
}

void add_alibi(const ScoreOptions& options, const ScoreTile& tile, std::int64_t r, float* row) {
  const float slope = load_scalar(DType::kFloat32, options.alibi_slopes,
                                  tile.rows.b * options.alibi_batch_stride +
                                      tile.rows.query_head(r) * options.alibi_head_stride);
  const std::int64_t i = tile.rows.query_row(r);
  const std::int64_t shift = tile.mask.shift();
  for (std::int64_t j = 0; j < tile.keys.size(); ++j) {
    row[j] += algorithm::alibi_bias(slope, i, shift, tile.keys.min + j);
  }
}

}  // namespace

ScoreOptions score_options(const TileMath& math, const AttentionProblem& problem,
                           const AttentionGeometry& geometry, const AttentionTensors& tensors) {
  ScoreOptions options;
  options.math = &math;
  options.softmax_scale = geometry.softmax_scale;
  options.softcap = problem.softcap;
  if (problem.bias.present()) {
    options.bias = tensors.bias;
    options.bias_dtype = problem.bias.dtype;
    options.bias_strides = bias_strides(problem.bias);
  }
  if (problem.alibi_slopes.present()) {
    const TensorSpec& slopes = problem.alibi_slopes;
    options.alibi_slopes = tensors.alibi_slopes;
    options.alibi_batch_stride = slopes.rank == 2 ? slopes.strides[0] : 0;
    options.alibi_head_stride = slopes.strides[slopes.rank == 2 ? 1 : 0];
  }
  const bool only_masked = !problem.bias.present() || problem.bias.dtype == DType::kBool;
  options.defers_scale = options.softmax_scale > 0 && problem.softcap == 0 && only_masked &&
                         !problem.alibi_slopes.present();
  options.dropout = host_dropout(problem, tensors);
  options.nheads_q = geometry.nheads_q;
  return options;
}

void scale_and_cap(const ScoreOptions& options, const ScoreTile& tile, float* scores,
                   std::int64_t ld) {
  if (options.defers_scale) return;
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  for (std::int64_t row = 0; row < tile.rows.packed.size(); ++row) {
    options.math->scale(scores + row * ld, columns, options.softmax_scale);
    if (options.softcap > 0) options.math->cap(scores + row * ld, columns, options.softcap);
  }
}

void bias_and_mask(const ScoreOptions& options, const ScoreTile& tile, bool needs_mask,
                   float* scores, std::int64_t ld) {
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  const bool adds = options.bias != nullptr || options.alibi_slopes != nullptr;
  if (!adds && !needs_mask && columns == tile.keys.size()) return;
  for (std::int64_t r = tile.rows.packed.min; r < tile.rows.packed.max; ++r) {
    float* row = scores + (r - tile.rows.packed.min) * ld;
    if (options.bias != nullptr) add_bias(options, tile, r, row);
    if (options.alibi_slopes != nullptr) add_alibi(options, tile, r, row);
    Range seen = tile.keys;
    if (needs_mask) {
      seen = algorithm::intersect(seen, tile.mask.keys_of_row(tile.rows.query_row(r)));
      if (seen.empty()) seen = {tile.keys.min, tile.keys.min};
    }
    std::fill(row, row + (seen.min - tile.keys.min), kNegativeInfinity);
    std::fill(row + (seen.max - tile.keys.min), row + columns, kNegativeInfinity);
  }
}

void dropout_factors(const ScoreOptions& options, const ScoreTile& tile, std::int64_t r,
                     float* factors) {
  const algorithm::Dropout& dropout = options.dropout;
  const std::int64_t batch_head = tile.rows.b * options.nheads_q + tile.rows.query_head(r);
  const std::int64_t i = tile.rows.query_row(r);
  const std::int64_t columns = round_up(tile.keys.size(), kLane);
  for (std::int64_t j = 0; j < columns; j += 4) {
    const algorithm::PhiloxWords words =
        algorithm::dropout_words(dropout, batch_head, i, (tile.keys.min + j) / 4);
    for (std::int64_t lane = 0; lane < 4; ++lane) {
      factors[j + lane] = words.word[lane] >= dropout.threshold ? dropout.keep_scale : 0.0f;
    }
  }
}

}  // namespace foveal::cpu
