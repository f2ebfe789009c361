#include "reference/inputs.hpp"

#include <cmath>

namespace foveal::reference {
namespace {

std::int64_t batch_of(const AttentionProblem& problem) {
  if (problem.cu_seqlens_q.present()) return problem.cu_seqlens_q.shape[0] - 1;
  if (problem.q.present()) return problem.q.shape[0];
  return problem.k_new.shape[0];
}

/// Axes from the end, so that packed and dense operands read alike.
std::int64_t extent_from_end(const TensorSpec& spec, int axis) {
  return spec.rank < axis ? 0 : spec.shape[static_cast<std::size_t>(spec.rank - axis)];
}

}  // namespace

Inputs::Inputs(const AttentionProblem& problem_in, const AttentionTensors& tensors)
    : problem(problem_in),
      q(problem.q, tensors.q),
      k(problem.k, tensors.k),
      v(problem.v, tensors.v),
      out(problem.out, tensors.out),
      lse(problem.lse, tensors.lse),
      dout(problem.dout, tensors.dout),
      dlse(problem.dlse, tensors.dlse),
      bias(problem.bias, tensors.bias),
      sinks(problem.sinks, tensors.sinks),
      alibi_slopes(problem.alibi_slopes, tensors.alibi_slopes),
      cu_seqlens_q(problem.cu_seqlens_q, tensors.cu_seqlens_q),
      cu_seqlens_k(problem.cu_seqlens_k, tensors.cu_seqlens_k),
      seqused_q(problem.seqused_q, tensors.seqused_q),
      seqused_k(problem.seqused_k, tensors.seqused_k),
      leftpad_k(problem.leftpad_k, tensors.leftpad_k),
      block_table(problem.block_table, tensors.block_table),
      cache_batch_idx(problem.cache_batch_idx, tensors.cache_batch_idx),
      k_new(problem.k_new, tensors.k_new),
      v_new(problem.v_new, tensors.v_new),
      rotary_cos(problem.rotary_cos, tensors.rotary_cos),
      rotary_sin(problem.rotary_sin, tensors.rotary_sin),
      out_a(problem.out_a, tensors.out_a),
      lse_a(problem.lse_a, tensors.lse_a),
      out_b(problem.out_b, tensors.out_b),
      lse_b(problem.lse_b, tensors.lse_b),
      batch(batch_of(problem)),
      nheads_q(extent_from_end(problem.q, 2)),
      nheads_k(extent_from_end(problem.k, 2)),
      headdim(extent_from_end(problem.k, 1)),
      headdim_v(extent_from_end(problem.v, 1)) {
  softmax_scale = problem.softmax_scale ? static_cast<double>(*problem.softmax_scale)
                                        : 1.0 / std::sqrt(static_cast<double>(headdim));
  dropout = algorithm::make_dropout(
      problem.dropout_p,
      tensors.dropout_seed_ptr != nullptr ? *tensors.dropout_seed_ptr : tensors.dropout_seed,
      tensors.dropout_offset_ptr != nullptr ? *tensors.dropout_offset_ptr : tensors.dropout_offset);
  dropout_keep_scale =
      problem.dropout_p < 1.0f ? 1.0 / (1.0 - static_cast<double>(problem.dropout_p)) : 0.0;
}

}  // namespace foveal::reference
