// One row of scores, the step that forward and backward share:
//   s = softmax_scale * q.k;  s = softcap * tanh(s / softcap);  s += bias;  masked keys left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/append.hpp"
#include "reference/inputs.hpp"
#include "reference/visibility.hpp"

namespace foveal::reference {

[[nodiscard]] double dot(std::span<const double> a, std::span<const double> b);

/// sum += factor * values
void add_scaled(std::span<double> sum, double factor, std::span<const double> values);

/// A key that a row sees. Keys that it doesn't see appear nowhere, so what they hold, NaN included,
/// takes no part in any arithmetic.
struct VisibleKey {
  std::int64_t j = 0;
  double score = 0.0;
  double cap_derivative = 1.0;  ///< Of softcap, at this key: 1 - tanh^2.
  double keep = 1.0;            ///< Dropout's factor of the weight: 0 or 1 / (1 - dropout_p).
};

/// One row of q: row i of query head h.
struct RowIndex {
  std::int64_t h = 0;
  std::int64_t i = 0;
};

/// Into `visible` the keys that the row sees, in order. A bool mask that is 0 and a bias of -inf
/// both hide a key.
void score_row(const Inputs& inputs, const Sequence& sequence, RowIndex row,
               std::span<const double> q, const KeyRows& k, std::vector<VisibleKey>& visible);

/// log(sum_j exp(score_j) + exp(sink_h)); -inf for a row with neither key nor sink.
[[nodiscard]] double log_sum_exp(const Inputs& inputs, std::int64_t h,
                                 std::span<const VisibleKey> visible);

/// Softmax's weight of a score; 0 in a row whose lse is -inf.
[[nodiscard]] double weight(double score, double lse);

}  // namespace foveal::reference
