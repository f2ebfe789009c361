// lse = log(sum_j exp(s_j) [+ exp(sink)]);  p = exp(s - lse);  out = dropout(p) @ v
#include "reference/forward.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "reference/append.hpp"
#include "reference/parallel.hpp"
#include "reference/scores.hpp"

namespace foveal::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

/// Rows of q are counted flat, [batch * seqlen_q] or [total_q]; lse is [batch, nheads_q, seqlen_q]
/// or [nheads_q, total_q].
struct Rows {
  explicit Rows(const Inputs& inputs)
      : packed(inputs.q.rank() == 3), per_batch(inputs.q.extent(packed ? 0 : 1)) {}

  [[nodiscard]] std::int64_t flat(const Sequence& sequence, std::int64_t i) const {
    return (packed ? sequence.q_begin : sequence.b * per_batch) + i;
  }
  [[nodiscard]] std::int64_t lse_index(const Inputs& inputs, std::int64_t flat_row,
                                       std::int64_t h) const {
    if (packed) return h * per_batch + flat_row;
    const std::int64_t b = flat_row / per_batch;
    return (b * inputs.nheads_q + h) * per_batch + flat_row % per_batch;
  }

  bool packed;
  std::int64_t per_batch;
};

struct ForwardJob {
  const Inputs& inputs;
  const Rows rows;
  const std::vector<bool> wanted;  ///< By flat row.
  std::vector<double>& out;
  std::vector<double>& lse;
};

/// The wanted rows of one sequence under the query heads of one KV head.
void attend(const ForwardJob& job, const Sequence& sequence, std::int64_t head_k) {
  const Inputs& inputs = job.inputs;
  const KeyRows k = read_keys(inputs, sequence, head_k);
  const KeyRows v = read_values(inputs, sequence, head_k);
  std::vector<double> q(static_cast<std::size_t>(inputs.headdim));
  std::vector<VisibleKey> visible;

  const std::int64_t group = inputs.qhead_per_khead();
  for (std::int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const std::int64_t flat_row = job.rows.flat(sequence, i);
      if (!job.wanted[static_cast<std::size_t>(flat_row)]) continue;
      read_query(inputs, sequence, i, h, q);
      score_row(inputs, sequence, {.h = h, .i = i}, q, k, visible);

      const double lse = log_sum_exp(inputs, h, visible);
      job.lse[static_cast<std::size_t>(job.rows.lse_index(inputs, flat_row, h))] = lse;
      const std::span<double> out =
          slice(job.out, (flat_row * inputs.nheads_q + h) * inputs.headdim_v, inputs.headdim_v);
      for (const VisibleKey& key : visible) {
        add_scaled(out, key.keep * weight(key.score, lse), v.row(key.j));
      }
    }
  }
}

bool any_wanted(const ForwardJob& job, const Sequence& sequence) {
  const auto begin = job.wanted.begin() + job.rows.flat(sequence, 0);
  return std::find(begin, begin + sequence.seqlen_q, true) != begin + sequence.seqlen_q;
}

/// Rows start as those that see nothing; those that nobody asked for as NaN.
void fill_unseen(const ForwardJob& job) {
  const std::int64_t row_size = job.inputs.nheads_q * job.inputs.headdim_v;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(job.wanted.size()); ++row) {
    const bool wanted = job.wanted[static_cast<std::size_t>(row)];
    std::ranges::fill(slice(job.out, row * row_size, row_size), wanted ? 0.0 : kNaN);
    for (std::int64_t h = 0; h < job.inputs.nheads_q; ++h) {
      job.lse[static_cast<std::size_t>(job.rows.lse_index(job.inputs, row, h))] =
          wanted ? kNegativeInfinity : kNaN;
    }
  }
}

std::vector<bool> wanted_rows(std::int64_t num_rows, std::span<const std::int64_t> rows) {
  std::vector<bool> wanted(static_cast<std::size_t>(num_rows), rows.empty());
  for (const std::int64_t row : rows) wanted[static_cast<std::size_t>(row)] = true;
  return wanted;
}

}  // namespace

void forward(const Inputs& inputs, const OracleOptions& options, OracleResult& result) {
  const Rows rows(inputs);
  const std::int64_t num_rows = rows.packed ? rows.per_batch : inputs.batch * rows.per_batch;
  result.out.resize(static_cast<std::size_t>(num_rows * inputs.nheads_q * inputs.headdim_v));
  std::vector<double> lse(static_cast<std::size_t>(num_rows * inputs.nheads_q));
  const ForwardJob job{inputs, rows, wanted_rows(num_rows, options.rows), result.out, lse};
  fill_unseen(job);

  for_each_task(inputs.batch * inputs.nheads_k, options.num_threads, [&](std::int64_t task) {
    const Sequence sequence = sequence_of(inputs, task / inputs.nheads_k);
    if (any_wanted(job, sequence)) attend(job, sequence, task % inputs.nheads_k);
  });
  if (inputs.problem.lse.present()) result.lse = std::move(lse);
}

}  // namespace foveal::reference
