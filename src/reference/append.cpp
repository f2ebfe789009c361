#include "reference/append.hpp"

namespace foveal::reference {
namespace {

/// Turns the pairs of a head at a position: (x, y) -> (x cos - y sin, x sin + y cos).
void rotate(const Inputs& inputs, std::int64_t position, std::span<double> values) {
  if (!inputs.rotary_cos.present()) return;
  const std::int64_t num_pairs = inputs.rotary_cos.extent(1);
  for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
    const bool interleaved = inputs.problem.rotary_interleaved;
    double& x = values[static_cast<std::size_t>(interleaved ? 2 * pair : pair)];
    double& y = values[static_cast<std::size_t>(interleaved ? 2 * pair + 1 : pair + num_pairs)];
    const double cos = inputs.rotary_cos.at(position, pair);
    const double sin = inputs.rotary_sin.at(position, pair);
    const double turned_x = x * cos - y * sin;
    y = x * sin + y * cos;
    x = turned_x;
  }
}

/// Where a token of a sequence lies in k or v: the first two indices of a dense or paged tensor; of
/// a packed one the second alone.
struct TokenPlace {
  std::int64_t outer = 0;
  std::int64_t row = 0;
};

TokenPlace place_of(const Inputs& inputs, const Sequence& sequence, std::int64_t token) {
  if (inputs.block_table.present()) {
    const std::int64_t page_size = inputs.k.extent(1);
    return {inputs.block_table.integer_at(sequence.b, token / page_size), token % page_size};
  }
  return {sequence.cache_row, sequence.k_begin + token};
}

/// K or V: what the cache holds, and what comes to it.
struct CacheSide {
  const Inputs& inputs;
  const OperandReader& cache;
  const OperandReader& fresh;
  bool rotates;

  [[nodiscard]] std::int64_t dim() const { return cache.extent(cache.rank() - 1); }
};

CacheSide side_k(const Inputs& inputs) { return {inputs, inputs.k, inputs.k_new, true}; }
CacheSide side_v(const Inputs& inputs) { return {inputs, inputs.v, inputs.v_new, false}; }

void read_token(const CacheSide& side, const Sequence& sequence, std::int64_t token,
                std::int64_t head_k, std::span<double> values) {
  if (token < sequence.seqlen_cache) {
    const TokenPlace place = place_of(side.inputs, sequence, token);
    side.cache.read_vector(place.outer, place.row, head_k, values);
  } else {
    side.fresh.read_vector(sequence.b, token - sequence.seqlen_cache, head_k, values);
    if (side.rotates) rotate(side.inputs, token, values);
  }
}

KeyRows read_tokens(const CacheSide& side, const Sequence& sequence, std::int64_t head_k) {
  KeyRows rows(sequence.seqlen_k, side.dim());
  for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
    read_token(side, sequence, sequence.leftpad_k + j, head_k, rows.row(j));
  }
  return rows;
}

std::vector<double> contents(const OperandReader& cache) {
  std::vector<double> values(static_cast<std::size_t>(cache.numel()));
  const int axis = cache.rank() - 3;  // of the rows
  const std::int64_t num_outer = axis == 0 ? 1 : cache.extent(0);
  const std::int64_t dim = cache.extent(axis + 2);
  std::int64_t begin = 0;
  for (std::int64_t outer = 0; outer < num_outer; ++outer) {
    for (std::int64_t row = 0; row < cache.extent(axis); ++row) {
      for (std::int64_t head = 0; head < cache.extent(axis + 1); ++head, begin += dim) {
        cache.read_vector(outer, row, head, slice(values, begin, dim));
      }
    }
  }
  return values;
}

/// The cache with every sequence's new tokens in their places.
std::vector<double> appended(const CacheSide& side) {
  std::vector<double> values = contents(side.cache);
  const Inputs& inputs = side.inputs;
  for (std::int64_t b = 0; b < inputs.batch; ++b) {
    const Sequence sequence = sequence_of(inputs, b);
    for (std::int64_t i = 0; i < sequence.seqlen_new; ++i) {
      const std::int64_t token = sequence.seqlen_cache + i;
      const TokenPlace place = place_of(inputs, sequence, token);
      const std::int64_t row =
          side.cache.rank() == 4 ? place.outer * side.cache.extent(1) + place.row : place.row;
      for (std::int64_t head = 0; head < inputs.nheads_k; ++head) {
        const std::int64_t begin = (row * inputs.nheads_k + head) * side.dim();
        read_token(side, sequence, token, head, slice(values, begin, side.dim()));
      }
    }
  }
  return values;
}

std::vector<double> rotated_queries(const Inputs& inputs) {
  std::vector<double> values(static_cast<std::size_t>(inputs.q.numel()));
  for (std::int64_t b = 0; b < inputs.batch; ++b) {
    const Sequence sequence = sequence_of(inputs, b);
    const std::int64_t first_row = inputs.q.rank() == 3 ? sequence.q_begin : b * inputs.q.extent(1);
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < inputs.nheads_q; ++h) {
        const std::int64_t begin = ((first_row + i) * inputs.nheads_q + h) * inputs.headdim;
        read_query(inputs, sequence, i, h, slice(values, begin, inputs.headdim));
      }
    }
  }
  return values;
}

}  // namespace

void read_query(const Inputs& inputs, const Sequence& sequence, std::int64_t i, std::int64_t h,
                std::span<double> values) {
  inputs.q.read_vector(sequence.b, sequence.q_begin + i, h, values);
  // Under a causal or windowed mask a row is at its own token's position; else all rows stand at
  // the first new token's, as in flash_attn_with_kvcache.
  const AttentionProblem& problem = inputs.problem;
  const bool advances =
      problem.causal || problem.window_size_left >= 0 || problem.window_size_right >= 0;
  rotate(inputs, sequence.seqlen_cache + (advances ? i : 0), values);
}

KeyRows read_keys(const Inputs& inputs, const Sequence& sequence, std::int64_t head_k) {
  return read_tokens(side_k(inputs), sequence, head_k);
}

KeyRows read_values(const Inputs& inputs, const Sequence& sequence, std::int64_t head_k) {
  return read_tokens(side_v(inputs), sequence, head_k);
}

void append(const Inputs& inputs, OracleResult& result) {
  result.k_cache = appended(side_k(inputs));
  result.v_cache = appended(side_v(inputs));
  if (inputs.problem.q_rotated.present()) result.q_rotated = rotated_queries(inputs);
}

}  // namespace foveal::reference
