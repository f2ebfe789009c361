// delta = rowsum(dout * out)
// dp    = dropout(dout @ v^T)              dv     = dropout(p)^T @ dout
// ds    = p * (dp - delta + dlse)          dbias  = ds, summed over the axes that bias repeats
// dscore = ds * (1 - tanh^2) * scale       dq     = dscore @ k,  dk = dscore^T @ q
//                                          dsink  = -sum_i exp(sink - lse_i) (delta_i - dlse_i)
#include "reference/backward.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

#include "reference/append.hpp"
#include "reference/parallel.hpp"
#include "reference/scores.hpp"

namespace foveal::reference {
namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

struct BackwardJob {
  const Inputs& inputs;
  const bool use_given_out_and_lse;
  OracleResult& result;
  std::vector<double>& dsinks_by_batch;  ///< [batch, nheads_q]
};

/// One sequence and KV head: its keys, their gradients, and what one row needs.
struct KeyHead {
  KeyHead(const Inputs& inputs, const Sequence& sequence_in, std::int64_t head_k_in)
      : sequence(sequence_in),
        head_k(head_k_in),
        k(read_keys(inputs, sequence, head_k)),
        v(read_values(inputs, sequence, head_k)),
        dk(sequence.seqlen_k, inputs.headdim),
        dv(sequence.seqlen_k, inputs.headdim_v),
        q(static_cast<std::size_t>(inputs.headdim)),
        dq(static_cast<std::size_t>(inputs.headdim)),
        out(static_cast<std::size_t>(inputs.headdim_v)),
        dout(static_cast<std::size_t>(inputs.headdim_v)) {}

  Sequence sequence;
  std::int64_t head_k;
  KeyRows k, v, dk, dv;
  std::vector<double> q, dq, out, dout;
  std::vector<VisibleKey> visible;
};

/// Into head.out; returns the lse.
double out_and_lse(const BackwardJob& job, KeyHead& head, RowIndex row) {
  const Sequence& sequence = head.sequence;
  if (job.use_given_out_and_lse) {
    job.inputs.out.read_vector(sequence.b, sequence.q_begin + row.i, row.h, head.out);
    return job.inputs.lse.at_row(sequence.b, row.h, sequence.q_begin + row.i);
  }
  const double lse = log_sum_exp(job.inputs, row.h, head.visible);
  std::ranges::fill(head.out, 0.0);
  for (const VisibleKey& key : head.visible) {
    add_scaled(head.out, key.keep * weight(key.score, lse), head.v.row(key.j));
  }
  return lse;
}

/// Adds ds of a pair to the element of dbias that the pair's bias came from.
void add_dbias(const BackwardJob& job, const Sequence& sequence, RowIndex row, std::int64_t j,
               double ds) {
  if (job.result.dbias.empty()) return;
  const TensorSpec& spec = job.inputs.problem.dbias;
  const std::array<std::int64_t, 4> index{sequence.b, row.h, row.i, j};
  std::int64_t flat = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    flat = flat * spec.shape[axis] + (spec.shape[axis] == 1 ? 0 : index[axis]);
  }
  job.result.dbias[static_cast<std::size_t>(flat)] += ds;
}

/// Gradients of one row into head.dq, and onto head.dk, head.dv, dbias and dsinks.
void backward_row(const BackwardJob& job, KeyHead& head, RowIndex row) {
  const Inputs& inputs = job.inputs;
  const Sequence& sequence = head.sequence;
  std::ranges::fill(head.dq, 0.0);
  read_query(inputs, sequence, row.i, row.h, head.q);
  score_row(inputs, sequence, row, head.q, head.k, head.visible);
  const double lse = out_and_lse(job, head, row);
  if (lse == kNegativeInfinity) return;  // sees neither key nor sink

  inputs.dout.read_vector(sequence.b, sequence.q_begin + row.i, row.h, head.dout);
  const double dlse =
      inputs.dlse.present() ? inputs.dlse.at_row(sequence.b, row.h, sequence.q_begin + row.i) : 0.0;
  const double delta = dot(head.dout, head.out);
  for (const VisibleKey& key : head.visible) {
    const double p = weight(key.score, lse);
    const double dp = key.keep * dot(head.dout, head.v.row(key.j));
    const double ds = p * (dp - delta + dlse);
    const double dscore = ds * key.cap_derivative * inputs.softmax_scale;
    add_scaled(head.dq, dscore, head.k.row(key.j));
    add_scaled(head.dk.row(key.j), dscore, head.q);
    add_scaled(head.dv.row(key.j), key.keep * p, head.dout);
    add_dbias(job, sequence, row, key.j, ds);
  }
  if (inputs.sinks.present()) {
    job.dsinks_by_batch[static_cast<std::size_t>(sequence.b * inputs.nheads_q + row.h)] -=
        weight(inputs.sinks.at(row.h), lse) * (delta - dlse);
  }
}

/// Writes a vector of a gradient laid out as [batch, rows, heads, dim] or [total, heads, dim].
void store(std::vector<double>& gradient, const OperandReader& like, std::int64_t batch,
           std::int64_t row, std::int64_t head, std::span<const double> values) {
  if (gradient.empty()) return;
  const int axis = like.rank() - 3;
  const std::int64_t flat_row = axis == 0 ? row : batch * like.extent(1) + row;
  const auto dim = static_cast<std::int64_t>(values.size());
  const std::int64_t begin = (flat_row * like.extent(axis + 1) + head) * dim;
  std::ranges::copy(values, slice(gradient, begin, dim).begin());
}

void backward_key_head(const BackwardJob& job, std::int64_t b, std::int64_t head_k) {
  const Inputs& inputs = job.inputs;
  KeyHead head(inputs, sequence_of(inputs, b), head_k);
  const Sequence& sequence = head.sequence;
  const std::int64_t group = inputs.qhead_per_khead();
  for (std::int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      backward_row(job, head, {.h = h, .i = i});
      store(job.result.dq, inputs.q, b, sequence.q_begin + i, h, head.dq);
    }
  }
  for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
    const std::int64_t row = sequence.k_begin + sequence.leftpad_k + j;
    store(job.result.dk, inputs.k, b, row, head_k, head.dk.row(j));
    store(job.result.dv, inputs.v, b, row, head_k, head.dv.row(j));
  }
}

/// Zeros for the whole of a gradient, where it is asked for.
std::vector<double> zeros(const TensorSpec& spec) {
  return std::vector<double>(static_cast<std::size_t>(spec.numel()));
}

}  // namespace

void backward(const Inputs& inputs, const OracleOptions& options, OracleResult& result) {
  const AttentionProblem& problem = inputs.problem;
  result.dq = zeros(problem.dq);
  result.dk = zeros(problem.dk);
  result.dv = zeros(problem.dv);
  result.dbias = zeros(problem.dbias);
  std::vector<double> dsinks_by_batch(static_cast<std::size_t>(inputs.batch * inputs.nheads_q));
  const BackwardJob job{inputs, options.use_given_out_and_lse, result, dsinks_by_batch};

  // A dbias that repeats over batch or heads gets sums from several KV heads: these form one task,
  // so that the order of the sum doesn't hang on the threads.
  const bool join_batch = problem.dbias.present() && problem.dbias.shape[0] == 1;
  const bool join_heads = problem.dbias.present() && problem.dbias.shape[1] == 1;
  const std::int64_t batch_tasks = join_batch ? 1 : inputs.batch;
  const std::int64_t head_tasks = join_heads ? 1 : inputs.nheads_k;
  for_each_task(batch_tasks * head_tasks, options.num_threads, [&](std::int64_t task) {
    for (std::int64_t b = task / head_tasks; b < inputs.batch; b += batch_tasks) {
      for (std::int64_t head = task % head_tasks; head < inputs.nheads_k; head += head_tasks) {
        backward_key_head(job, b, head);
      }
    }
  });

  result.dsinks = zeros(problem.dsinks);
  for (std::size_t i = 0; !result.dsinks.empty() && i < dsinks_by_batch.size(); ++i) {
    result.dsinks[i % result.dsinks.size()] += dsinks_by_batch[i];
  }
}

}  // namespace foveal::reference
