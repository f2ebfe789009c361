// A Case in memory: a Workbench with every operand of it filled, and the way from a sequence's own
// coordinates to the elements. Whatever no result may depend on is poison: rows past the lengths,
// keys that no row sees, left padding, unused pages and table entries, gaps between strides.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/case.hpp"
#include "support/workbench.hpp"

namespace foveal::test {

/// Where one sequence lies. Rows of q count from q_begin; rows of k, left padding included, from
/// k_begin within cache_row, or through the pages.
struct Sequence {
  SeqLens lens;
  std::int64_t q_begin = 0;
  std::int64_t k_begin = 0;
  std::int64_t capacity_q = 0;  ///< Rows of q that are its own, in use or not.
  std::int64_t capacity_k = 0;
  std::int64_t leftpad = 0;
  std::int64_t cached = 0;  ///< Rows of k in use before the append, left padding included.
  std::int64_t cache_row = 0;
  std::vector<std::int32_t> pages;
};

class BuiltCase {
 public:
  explicit BuiltCase(const Case& c);
  BuiltCase(const BuiltCase&) = delete;  // tensors point into it
  BuiltCase& operator=(const BuiltCase&) = delete;

  Case c;
  Workbench bench;
  std::vector<Sequence> sequences;

  /// Element of q, out and what is shaped like them.
  [[nodiscard]] Index q_index(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const;
  /// Element of k, v and their gradients, by row of the sequence's storage.
  [[nodiscard]] Index k_row_index(std::int64_t b, std::int64_t row, std::int64_t h,
                                  std::int64_t d) const;
  /// The same by key: key 0 is the first after the left padding.
  [[nodiscard]] Index key_index(std::int64_t b, std::int64_t j, std::int64_t h,
                                std::int64_t d) const;
  [[nodiscard]] Index lse_index(std::int64_t b, std::int64_t h, std::int64_t i) const;
  /// Element of bias or dbias, broadcast dimensions at 0.
  [[nodiscard]] Index bias_index(std::int64_t b, std::int64_t h, std::int64_t i,
                                 std::int64_t j) const;
  [[nodiscard]] double slope(std::int64_t b, std::int64_t h) const;

  using RowValue =
      std::function<double(std::int64_t b, std::int64_t row, std::int64_t h, std::int64_t d)>;
  /// Rows in use of q, dout, out_a, ... or keys in use of k, v; not the appended ones, which are
  /// filled by key as well, through k_new and v_new.
  void fill_queries(std::string_view name, const RowValue& value);
  void fill_keys(std::string_view name, const RowValue& value);

  /// Backward: out and lse anew from the oracle's forward pass, after other inputs have changed.
  void compute_forward();

  /// The forward problem of a backward case: same inputs, no outputs bound.
  [[nodiscard]] AttentionProblem forward_problem() const;

  /// Elements of k and v that an append writes.
  [[nodiscard]] ChangedElements appended_elements() const;

  [[nodiscard]] Status run() {
    return bench.run({.kernel = c.kernel, .num_threads = c.num_threads});
  }

  [[nodiscard]] double at(std::string_view name, const Index& index) const {
    return bench.at(name).get(index);
  }

  std::array<std::uint64_t, 2> dropout_state{};  ///< Seed and offset, where given by pointer.
};

/// Makes and fills every operand of `built.c`; only the constructor of BuiltCase calls it.
void build_operands(BuiltCase& built);

/// Why a case can't be built; empty when it can. Says nothing of what kernels support.
[[nodiscard]] std::string illegal_reason(const Case& c);

/// Elements of the longest possible q and k of a case: what its bias broadcasts to.
[[nodiscard]] std::int64_t dense_rows_q(const Case& c);
[[nodiscard]] std::int64_t dense_rows_k(const Case& c);

}  // namespace foveal::test
