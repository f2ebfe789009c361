#include "cuda/portable/bwd/passes.hpp"

#include "cuda/device_rules.hpp"
#include "cuda/portable/bwd/row_passes.cuh"
#include "cuda/runtime/launch_kernel.hpp"

namespace foveal::cuda::bwd {
namespace {

using planner::LaunchContext;

/// Whether rows are whole units of 16 bytes of `dtype`, aligned.
bool in_whole_units(const TensorSpec& spec, const void* data, DType dtype) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return spec.dtype == dtype && has_aligned_rows(spec, data) &&
         spec.shape[last] * dtype_bytes(dtype) % 16 == 0;
}

ElementsInfo elements_info(DType products, const TensorSpec& spec, const void* data) {
  return {spec.dtype, in_whole_units(spec, data, products)};
}

/// Rows that begin at even multiples of the element, with adjacent elements.
bool in_pairs(const TensorSpec& spec, const void* data) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  const std::int64_t pair_bytes = 2 * dtype_bytes(spec.dtype);
  if (spec.strides[last] != 1 || reinterpret_cast<std::uintptr_t>(data) % pair_bytes != 0) {
    return false;
  }
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (spec.shape[axis] > 1 && spec.strides[axis] % 2 != 0) return false;
  }
  return true;
}

GradientInfo gradient_info(const TensorSpec& spec, const void* data) {
  if (!spec.present()) return {};
  return {spec.dtype, in_pairs(spec, data), in_whole_units(spec, data, spec.dtype)};
}

RowOperand row_operand(const TensorSpec& spec, const void* data) {
  if (!spec.present()) return {};
  return {const_cast<void*>(data), row_strides(spec)};
}

KeyOperand key_operand(const LaunchContext& context, const TensorSpec& spec, void* data) {
  if (!spec.present()) return {};
  return {data, kv_layout(context.problem, context.geometry, spec, context.tensors)};
}

}  // namespace

BackwardArgs make_backward_args(const LaunchContext& context, DType products) {
  const AttentionProblem& problem = context.problem;
  const AttentionTensors& tensors = context.tensors;
  const AttentionGeometry& geometry = context.geometry;
  BackwardArgs args;
  args.attention = make_attention_args(context);
  // None without query heads: no row then meets a key.
  if (geometry.nheads_q == 0) args.attention.qhead_per_khead = 0;
  args.dtype = products;
  args.dout = row_operand(problem.dout, tensors.dout);
  if (problem.dlse.present()) {
    args.dlse = {static_cast<float*>(const_cast<void*>(tensors.dlse)), lse_strides(problem.dlse)};
  }
  args.dq = row_operand(problem.dq, tensors.dq);
  args.dk = key_operand(context, problem.dk, tensors.dk);
  args.dv = key_operand(context, problem.dv, tensors.dv);
  args.q_elements = elements_info(products, problem.q, tensors.q);
  args.k_elements = elements_info(products, problem.k, tensors.k);
  args.v_elements = elements_info(products, problem.v, tensors.v);
  args.dout_elements = elements_info(products, problem.dout, tensors.dout);
  args.dq_info = gradient_info(problem.dq, tensors.dq);
  args.dk_info = gradient_info(problem.dk, tensors.dk);
  args.dv_info = gradient_info(problem.dv, tensors.dv);
  args.total_q = geometry.total_q;
  args.rows_per_batch = geometry.packed_q ? 0 : geometry.seqlen_q;
  return args;
}

StatsArgs make_stats_args(const LaunchContext& context, const BackwardArgs& args) {
  const AttentionProblem& problem = context.problem;
  const auto in_eights = [&](const TensorSpec& spec, const void* data) {
    return in_whole_units(spec, data, spec.dtype) && context.geometry.headdim_v % 8 == 0;
  };
  StatsArgs stats{args, in_eights(problem.out, context.tensors.out) &&
                            in_eights(problem.dout, context.tensors.dout)};
  stats.lanes = 1;
  while (stats.lanes < 32 && 8 * stats.lanes < context.geometry.headdim_v) stats.lanes *= 2;
  stats.by_fours = stats.whole_units && args.dtype != DType::kFloat32 &&
                   problem.out.dtype == args.dtype && problem.dout.dtype == args.dtype &&
                   stats.lanes >= kStatsRows &&
                   (args.rows_per_batch == 0 || args.rows_per_batch >= kStatsRows);
  return stats;
}

std::int64_t stats_blocks(const LaunchContext& context, const StatsArgs& args) {
  const AttentionGeometry& geometry = context.geometry;
  std::int64_t groups = geometry.total_q * geometry.nheads_q;
  if (args.by_fours) {
    groups = ceil_div<std::int64_t>(geometry.total_q, kStatsRows) *
             round_up<std::int64_t>(geometry.nheads_q, 32 / args.lanes);
  }
  return min_of(ceil_div<std::int64_t>(groups, kRowThreads / args.lanes), kMaxRowBlocks);
}

Status compute_stats(const LaunchContext& context, const BackwardArgs& args) {
  const StatsArgs stats = make_stats_args(context, args);
  return with_units(stats, [&](auto units) {
    static SharedMemoryGrant grant;
    return launch_kernel("lse and delta", stats_kernel<units.value>, stats,
                         {.num_blocks = stats_blocks(context, stats),
                          .num_threads = kRowThreads,
                          .stream = context.stream},
                         grant);
  });
}

ListArgs make_list_args(const LaunchContext& context, const BackwardArgs& args, Side side, int held,
                        std::size_t part) {
  const std::int64_t bytes = context.config.workspace[part].bytes;
  if (bytes == 0) return {};
  return {.lengths = args.attention.lengths,
          .batch = args.attention.batch,
          .held = held,
          .side = side,
          .entries = context.workspace_part<TileEntry>(part),
          .max_entries = static_cast<std::int32_t>(bytes / 8 - 1)};
}

Status list_tiles(const LaunchContext& context, const BackwardArgs& args, Side side, int held,
                  std::size_t part) {
  static SharedMemoryGrant grant;
  const ListArgs list = make_list_args(context, args, side, held, part);
  if (list.entries == nullptr) return Status::ok();
  return launch_kernel("list of tiles", list_tiles_kernel, list,
                       {.num_blocks = 1, .num_threads = kRowThreads, .stream = context.stream},
                       grant);
}

Status sum_dsinks(const LaunchContext& context, const BackwardArgs& args) {
  static SharedMemoryGrant grant;
  if (!context.problem.dsinks.present()) return Status::ok();
  const DsinksArgs dsinks{args, static_cast<float*>(context.tensors.dsinks),
                          context.problem.dsinks.strides[0]};
  return launch_kernel("gradient of sinks", dsinks_kernel, dsinks,
                       {.num_blocks = context.geometry.nheads_q,
                        .num_threads = kRowThreads,
                        .stream = context.stream},
                       grant);
}

}  // namespace foveal::cuda::bwd
