#include "cuda/portable/append/args.hpp"

#include "core/integer.hpp"
#include "cuda/device_rules.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::append {
namespace {

/// Steps that are worth a block: each of its threads has four.
constexpr std::int64_t kStepsPerBlock = 4 * kThreads;

std::int32_t vector_width(DType dtype) {
  return static_cast<std::int32_t>(16 / dtype_bytes(dtype));
}

RotaryTables rotary_tables(const AttentionProblem& problem, const AttentionTensors& tensors) {
  RotaryTables tables;
  const TensorSpec& cos = problem.rotary_cos;
  const TensorSpec& sin = problem.rotary_sin;
  if (!cos.present()) return tables;
  tables.cos = tensors.rotary_cos;
  tables.sin = tensors.rotary_sin;
  tables.dtype = cos.dtype;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    tables.cos_strides[axis] = cos.strides[axis];
    tables.sin_strides[axis] = sin.strides[axis];
  }
  tables.positions = cos.shape[0];
  tables.interleaved = problem.rotary_interleaved;
  tables.vectorised = has_aligned_rows(cos, tables.cos) && has_aligned_rows(sin, tables.sin);
  return tables;
}

/// Steps of a head; whole vectors where both operands and the split between turned and other
/// elements allow them.
HeadSteps head_steps(std::int64_t rotary_dim, std::int64_t dim, DType dtype, bool aligned) {
  const std::int64_t width = vector_width(dtype);
  HeadSteps steps;
  steps.rotary_dim = static_cast<std::int32_t>(rotary_dim);
  steps.dim = static_cast<std::int32_t>(dim);
  steps.vectorised = aligned && rotary_dim % (2 * width) == 0 && (dim - rotary_dim) % width == 0;
  return steps;
}

void set_blocks(AppendSide& side, DType dtype) {
  const std::int32_t width = side.steps.vectorised ? vector_width(dtype) : 1;
  const std::int64_t steps_per_row = max_of<std::int64_t>(side.nheads * side.steps.count(width), 1);
  side.rows_per_block =
      static_cast<std::int32_t>(max_of<std::int64_t>(kStepsPerBlock / steps_per_row, 1));
  side.num_blocks =
      side.nheads == 0 ? 0 : ceil_div<std::int64_t>(side.num_rows, side.rows_per_block);
}

/// k or v: the operands of the new tokens and of the cache.
struct CacheOperands {
  const TensorSpec& fresh;
  const void* fresh_data;
  const TensorSpec& cache;
  const void* cache_data;
};

AppendSide cache_side(const planner::LaunchContext& context, const CacheOperands& operands,
                      std::int64_t rotary_dim) {
  const AttentionGeometry& geometry = context.geometry;
  AppendSide side;
  side.from = operands.fresh_data;
  // The cache is an output of this pass, though it stands among the inputs of AttentionTensors.
  side.to = const_cast<void*>(operands.cache_data);
  side.from_strides = row_strides(operands.fresh);
  side.to_layout = kv_layout(context.problem, geometry, operands.cache, context.tensors);
  side.nheads = static_cast<std::int32_t>(geometry.nheads_k);
  side.num_rows = operands.cache.numel() == 0 ? 0 : geometry.batch * geometry.seqlen_new;
  const bool aligned = has_aligned_rows(operands.fresh, operands.fresh_data) &&
                       has_aligned_rows(operands.cache, operands.cache_data);
  side.steps = head_steps(rotary_dim, operands.fresh.shape[3], operands.fresh.dtype, aligned);
  set_blocks(side, operands.fresh.dtype);
  return side;
}

AppendSide query_side(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  AppendSide side;
  if (!problem.q_rotated.present()) return side;
  side.from = context.tensors.q;
  side.to = context.tensors.q_rotated;
  side.from_strides = row_strides(problem.q);
  side.to_strides = row_strides(problem.q_rotated);
  side.nheads = static_cast<std::int32_t>(context.geometry.nheads_q);
  side.num_rows = context.geometry.total_q;
  const bool aligned =
      has_aligned_rows(problem.q, side.from) && has_aligned_rows(problem.q_rotated, side.to);
  side.steps =
      head_steps(context.geometry.rotary_dim, context.geometry.headdim, problem.q.dtype, aligned);
  set_blocks(side, problem.q.dtype);
  return side;
}

}  // namespace

AppendArgs make_append_args(const planner::LaunchContext& context) {
  const AttentionProblem& problem = context.problem;
  const AttentionTensors& tensors = context.tensors;
  AppendArgs args;
  args.k = cache_side(context, {problem.k_new, tensors.k_new, problem.k, tensors.k},
                      context.geometry.rotary_dim);
  args.v = cache_side(context, {problem.v_new, tensors.v_new, problem.v, tensors.v}, 0);
  args.q = query_side(context);
  args.lengths = seqlen_source(problem, context.geometry, tensors);
  if (problem.cache_batch_idx.present()) {
    args.cache_batch_idx = static_cast<const std::int32_t*>(tensors.cache_batch_idx);
    args.cache_rows = static_cast<std::int32_t>(problem.k.shape[0]);
  }
  args.batch = static_cast<std::int32_t>(context.geometry.batch);
  args.seqlen_new = context.geometry.seqlen_new;
  args.rotary = rotary_tables(problem, tensors);
  args.q_advances = context.geometry.window.left != algorithm::kUnbounded ||
                    context.geometry.window.right != algorithm::kUnbounded;
  args.dtype = problem.k.dtype;
  return args;
}

}  // namespace foveal::cuda::append
