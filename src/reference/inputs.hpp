// What the oracle computes from: a problem, a reader for each operand, and the sizes that the
// formulas name. Read from the specs themselves, not through the planner's geometry.
#pragma once

#include <cstdint>

#include <foveal/problem.hpp>

#include "algorithm/dropout.hpp"
#include "reference/operand_reader.hpp"

namespace foveal::reference {

struct Inputs {
  Inputs(const AttentionProblem& problem, const AttentionTensors& tensors);

  const AttentionProblem& problem;

  OperandReader q, k, v, out, lse, dout, dlse;
  OperandReader bias, sinks, alibi_slopes;
  OperandReader cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k;
  OperandReader block_table, cache_batch_idx;
  OperandReader k_new, v_new, rotary_cos, rotary_sin;
  OperandReader out_a, lse_a, out_b, lse_b;

  std::int64_t batch = 0;
  std::int64_t nheads_q = 0;  ///< 0 in an append pass without q.
  std::int64_t nheads_k = 0;
  std::int64_t headdim = 0;
  std::int64_t headdim_v = 0;
  double softmax_scale = 1.0;
  algorithm::Dropout dropout;       ///< Decides which weights are dropped; a pure function.
  double dropout_keep_scale = 1.0;  ///< 1 / (1 - dropout_p); 0 where everything is dropped.

  /// Query heads that read one KV head: h reads h / qhead_per_khead.
  [[nodiscard]] std::int64_t qhead_per_khead() const {
    return nheads_k == 0 ? 0 : nheads_q / nheads_k;
  }
};

}  // namespace foveal::reference
