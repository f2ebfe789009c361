#include "reference/scores.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace foveal::reference {
namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

/// Bias and ALiBi of one pair; -inf hides the key.
double added_to_score(const Inputs& inputs, const Sequence& sequence, RowIndex row,
                      std::int64_t j) {
  double sum = 0.0;
  if (inputs.bias.present()) {
    const double bias = inputs.bias.broadcast_at({sequence.b, row.h, row.i, j});
    const bool is_mask = inputs.bias.dtype() == DType::kBool;
    sum += is_mask ? (bias == 0.0 ? kNegativeInfinity : 0.0) : bias;
  }
  if (inputs.alibi_slopes.present()) {
    const double slope = inputs.alibi_slopes.rank() == 1
                             ? inputs.alibi_slopes.at(row.h)
                             : inputs.alibi_slopes.at(sequence.b, row.h);
    const std::int64_t shift = sequence.seqlen_k - sequence.seqlen_q;
    sum -= slope * std::abs(static_cast<double>(row.i + shift - j));
  }
  return sum;
}

}  // namespace

double dot(std::span<const double> a, std::span<const double> b) {
  // Several sums, so that the loop can use vector registers without reordering any of them.
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const std::size_t whole = a.size() - a.size() % kLanes;
  for (std::size_t d = 0; d < whole; d += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  for (std::size_t d = whole; d < a.size(); ++d) total += a[d] * b[d];
  return total;
}

void add_scaled(std::span<double> sum, double factor, std::span<const double> values) {
  for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += factor * values[d];
}

void score_row(const Inputs& inputs, const Sequence& sequence, RowIndex row,
               std::span<const double> q, const KeyRows& k, std::vector<VisibleKey>& visible) {
  const double softcap = inputs.problem.softcap;
  const std::int64_t batch_head = sequence.b * inputs.nheads_q + row.h;
  visible.clear();
  for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
    if (!sees(inputs.problem, sequence, row.i, j)) continue;
    const double added = added_to_score(inputs, sequence, row, j);
    if (added == kNegativeInfinity) continue;

    VisibleKey key{.j = j, .score = inputs.softmax_scale * dot(q, k.row(j))};
    if (softcap > 0.0) {
      const double tanh = std::tanh(key.score / softcap);
      key.score = softcap * tanh;
      key.cap_derivative = 1.0 - tanh * tanh;
    }
    key.score += added;
    if (inputs.dropout.enabled()) {
      const bool keeps = algorithm::dropout_keeps(inputs.dropout, batch_head, row.i, j);
      key.keep = keeps ? inputs.dropout_keep_scale : 0.0;
    }
    visible.push_back(key);
  }
}

double log_sum_exp(const Inputs& inputs, std::int64_t h, std::span<const VisibleKey> visible) {
  const double sink = inputs.sinks.present() ? inputs.sinks.at(h) : kNegativeInfinity;
  double largest = sink;
  for (const VisibleKey& key : visible) largest = key.score > largest ? key.score : largest;
  // A NaN score passes by the maximum and arrives through the sum.
  const double offset = largest == kNegativeInfinity ? 0.0 : largest;
  double sum = std::exp(sink - offset);
  for (const VisibleKey& key : visible) sum += std::exp(key.score - offset);
  return sum == 0.0 ? kNegativeInfinity : offset + std::log(sum);
}

double weight(double score, double lse) {
  return lse == kNegativeInfinity ? 0.0 : std::exp(score - lse);
}

}  // namespace foveal::reference
