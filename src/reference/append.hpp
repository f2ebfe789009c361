// The cache as it is after an append, and q after the rotary embedding. The caller's tensors are
// not written: a token that the append would store is read from k_new and v_new in its place, and
// in double, without the rounding to the cache's dtype.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <foveal/experimental.hpp>

#include "reference/inputs.hpp"
#include "reference/visibility.hpp"

namespace foveal::reference {

/// values[begin, begin + count)
template <class Vector>
[[nodiscard]] auto slice(Vector& values, std::int64_t begin, std::int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

/// Query row i of head h, rotated where the problem has a rotary embedding.
void read_query(const Inputs& inputs, const Sequence& sequence, std::int64_t i, std::int64_t h,
                std::span<double> values);

/// K or V of one sequence and KV head, or gradients of theirs: `count` rows, key 0 first.
struct KeyRows {
  KeyRows(std::int64_t count, std::int64_t dim_in)
      : dim(dim_in), values(static_cast<std::size_t>(count * dim_in)) {}

  [[nodiscard]] std::span<const double> row(std::int64_t j) const {
    return slice(values, j * dim, dim);
  }
  [[nodiscard]] std::span<double> row(std::int64_t j) { return slice(values, j * dim, dim); }

  std::int64_t dim;
  std::vector<double> values;
};

[[nodiscard]] KeyRows read_keys(const Inputs& inputs, const Sequence& sequence,
                                std::int64_t head_k);
[[nodiscard]] KeyRows read_values(const Inputs& inputs, const Sequence& sequence,
                                  std::int64_t head_k);

/// k_cache and v_cache, and q_rotated where the problem asks for it.
void append(const Inputs& inputs, OracleResult& result);

}  // namespace foveal::reference
