// Which keys a query row sees, said twice on purpose: kernels take intervals from
// algorithm/mask.hpp; here is the predicate of the definition, asked for every pair.
#pragma once

#include <cstdint>

#include <foveal/problem.hpp>

#include "reference/inputs.hpp"

namespace foveal::reference {

/// One sequence of the batch. Query row i is row `q_begin + i` of q; key j is token
/// `leftpad_k + j` of the sequence's cache.
struct Sequence {
  std::int64_t b = 0;
  std::int64_t q_begin = 0;  ///< 0 when q is dense.
  std::int64_t k_begin = 0;
  std::int64_t cache_row = 0;     ///< Batch entry of k and v when dense.
  std::int64_t rows_q = 0;        ///< Rows of q that are the sequence's, used or not.
  std::int64_t seqlen_q = 0;      ///< Rows that are used.
  std::int64_t seqlen_cache = 0;  ///< Tokens before the append, left padding included.
  std::int64_t seqlen_new = 0;
  std::int64_t leftpad_k = 0;
  std::int64_t seqlen_k = 0;  ///< Keys: cached and new tokens without the left padding.
};

[[nodiscard]] Sequence sequence_of(const Inputs& inputs, std::int64_t b);

/// causal:           j <= i + seqlen_k - seqlen_q
/// window (l, r):    i + shift - l <= j <= i + shift + r with shift = seqlen_k - seqlen_q
[[nodiscard]] inline bool sees(const AttentionProblem& problem, const Sequence& sequence,
                               std::int64_t i, std::int64_t j) {
  const std::int64_t diagonal = i + sequence.seqlen_k - sequence.seqlen_q;
  if (j < 0 || j >= sequence.seqlen_k) return false;
  if (problem.causal && j > diagonal) return false;
  if (problem.window_size_left >= 0 && diagonal - j > problem.window_size_left) return false;
  if (problem.window_size_right >= 0 && j - diagonal > problem.window_size_right) return false;
  return true;
}

}  // namespace foveal::reference
