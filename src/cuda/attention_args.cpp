#include "cuda/attention_args.hpp"

#include "plan/kernel_entry.hpp"

namespace foveal::cuda {
namespace {

/// AttentionTensors keeps inputs const; kernels write only where the pass has an output.
void* writable(const void* data) { return const_cast<void*>(data); }

const float* as_floats(const TensorSpec& spec, const void* data) {
  return spec.present() ? static_cast<const float*>(data) : nullptr;
}

ScoreArgs score_args(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  ScoreArgs score;
  score.softmax_scale = context.geometry.softmax_scale;
  score.softcap = problem.softcap;
  score.window = context.geometry.window;
  if (problem.alibi_slopes.present()) {
    const TensorSpec& slopes = problem.alibi_slopes;
    const auto heads_axis = static_cast<std::size_t>(slopes.rank - 1);
    score.alibi_slopes = static_cast<const float*>(context.tensors.alibi_slopes);
    score.alibi_head_stride = slopes.strides[heads_axis];
    score.alibi_batch_stride = slopes.rank == 2 ? slopes.strides[0] : 0;
  }
  if (problem.bias.present()) {
    score.bias = context.tensors.bias;
    score.bias_dtype = problem.bias.dtype;
    score.bias_strides = bias_strides(problem.bias);
  }
  return score;
}

DropoutArgs dropout_args(const planner::LaunchContext& context) {
  const AttentionTensors& tensors = context.tensors;
  return {.p = context.problem.dropout_p,
          .seed = tensors.dropout_seed,
          .offset = tensors.dropout_offset,
          .seed_ptr = tensors.dropout_seed_ptr,
          .offset_ptr = tensors.dropout_offset_ptr};
}

KeyOperand key_operand(const planner::LaunchContext& context, const TensorSpec& spec,
                       const void* data) {
  return {writable(data), kv_layout(context.problem, context.geometry, spec, context.tensors)};
}

}  // namespace

AttentionArgs make_attention_args(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  const AttentionGeometry& geometry = context.geometry;
  const AttentionTensors& tensors = context.tensors;
  AttentionArgs args;
  args.batch = static_cast<std::int32_t>(geometry.batch);
  args.nheads_q = static_cast<std::int32_t>(geometry.nheads_q);
  args.nheads_k = static_cast<std::int32_t>(geometry.nheads_k);
  args.qhead_per_khead = static_cast<std::int32_t>(geometry.qhead_per_khead);
  args.headdim = static_cast<std::int32_t>(geometry.headdim);
  args.headdim_v = static_cast<std::int32_t>(geometry.headdim_v);
  args.q = {writable(tensors.q), row_strides(problem.q)};
  args.k = key_operand(context, problem.k, tensors.k);
  args.v = key_operand(context, problem.v, tensors.v);
  args.out = {tensors.out, row_strides(problem.out)};
  args.out_dtype = problem.out.dtype;
  if (problem.lse.present()) {
    args.lse = {static_cast<float*>(tensors.lse), lse_strides(problem.lse)};
  }
  args.sinks = as_floats(problem.sinks, tensors.sinks);
  if (args.sinks != nullptr) args.sink_stride = problem.sinks.strides[0];
  args.lengths = seqlen_source(problem, geometry, tensors);
  if (problem.cache_batch_idx.present()) {
    args.cache_batch_idx = static_cast<const std::int32_t*>(tensors.cache_batch_idx);
    args.cache_rows = static_cast<std::int32_t>(problem.k.shape[0]);
  }
  args.score = score_args(context);
  args.dropout = dropout_args(context);
  return args;
}

}  // namespace foveal::cuda
