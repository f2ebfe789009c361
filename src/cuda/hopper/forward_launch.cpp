#include "cuda/hopper/forward_launch.hpp"

#include <cstddef>
#include <cstdint>

#if defined(FOVEAL_WITH_HOPPER)

#include "cuda/hopper/forward_rules.hpp"
#include "cuda/hopper/fwd/score_cap.hpp"
#include "cuda/portable/decode/launch.hpp"
#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {
namespace {

/// Whether out's rows can be stored `bytes` at a time.
bool rows_begin_at(const TensorSpec& spec, const void* data, std::int64_t bytes) {
  const std::int64_t unit = bytes / dtype_bytes(spec.dtype);
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  if (!is_aligned(data, bytes) || (spec.strides[last] != 1 && spec.shape[last] != 1)) return false;
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (spec.shape[axis] > 1 && spec.strides[axis] % unit != 0) return false;
  }
  return true;
}

/// Extents of 0 are of tensors from which nothing is read.
std::int64_t at_least_one(std::int64_t extent) { return max_of<std::int64_t>(extent, 1); }

Status describe_queries(const planner::LaunchContext& context, const CopyBox& box, TensorMap& map) {
  const AttentionGeometry& geometry = context.geometry;
  const RowStrides strides = row_strides(context.problem.q);
  const std::int64_t rows = geometry.packed_q ? geometry.total_q : geometry.seqlen_q;
  return encode_tensor_map({.data = context.tensors.q,
                            .extents = {geometry.headdim, rows, geometry.nheads_q,
                                        geometry.packed_q ? 1 : geometry.batch},
                            .strides = {strides.row, strides.head, strides.batch},
                            .box_columns = box.columns,
                            .box_rows = box.rows},
                           map);
}

Status describe_keys(const planner::LaunchContext& context, const TensorSpec& spec,
                     const KeyOperand& operand, const CopyBox& box, TensorMap& map) {
  const AttentionGeometry& geometry = context.geometry;
  const algorithm::KvLayout& layout = operand.layout;
  const bool packed = geometry.packed_k;
  const auto columns = static_cast<std::size_t>(spec.rank - 1);
  const bool empty = spec.numel() == 0;
  return encode_tensor_map(
      {.data = empty ? context.tensors.q : operand.data,
       .extents = {spec.shape[columns], at_least_one(spec.shape[columns - 2]), geometry.nheads_k,
                   packed ? 1 : at_least_one(spec.shape[0])},
       .strides = {layout.row_stride, layout.head_stride, layout.page_stride},
       .box_columns = box.columns,
       .box_rows = box.rows},
      map);
}

/// A side of the window in 32 bits: beyond any length it is unbounded.
std::int32_t narrow(std::int64_t side) {
  return static_cast<std::int32_t>(
      min_of<std::int64_t>(side, algorithm::kUnboundedOf<std::int32_t>));
}

void set_options(const planner::LaunchContext& context, ForwardArgs& args) {
  const AttentionProblem& problem = context.problem;
  const AttentionGeometry& geometry = context.geometry;
  args.window = {narrow(geometry.window.left), narrow(geometry.window.right)};
  args.scale_first = scales_first(problem, geometry);
  args.scale_log2 = geometry.softmax_scale * 1.4426950408889634f;
  if (problem.softcap > 0) args.cap = score_cap(geometry.softmax_scale, problem.softcap);
  const TensorSpec& out = problem.out;
  void* data = context.tensors.out;
  args.out_whole_units =
      out.dtype == problem.q.dtype && geometry.headdim_v % 8 == 0 && rows_begin_at(out, data, 16);
  args.out_in_pairs = rows_begin_at(out, data, 2 * dtype_bytes(out.dtype));
}

/// What strides could not tell: an operand that the copy engine can't address.
bool can_copy(const AttentionTensors& tensors) {
  return is_aligned(tensors.q, kCopyAlignment) && is_aligned(tensors.k, kCopyAlignment) &&
         is_aligned(tensors.v, kCopyAlignment);
}

/// portable_fwd, as the plan foresaw.
Status launch_stand_in(const planner::LaunchContext& context) {
  return kPortableForward.launch({.problem = context.problem,
                                  .geometry = context.geometry,
                                  .config = context.config.stand_in.front(),
                                  .tensors = context.tensors,
                                  .workspace = nullptr,
                                  .stream = context.stream});
}

}  // namespace

Status launch_tiles(const planner::LaunchContext& context, const ForwardSchedule& schedule,
                    const OperandBoxes& boxes, LaunchTiles launch_instance) {
  if (context.config.num_blocks == 0) return Status::ok();
  if (!can_copy(context.tensors)) return launch_stand_in(context);
  FOVEAL_ASSERT(launch_instance != nullptr);
  ForwardArgs args;
  args.attention = make_attention_args(context);
  args.schedule = schedule;
  args.box_rows = boxes.k.rows;
  set_options(context, args);
  FOVEAL_RETURN_IF_ERROR(describe_queries(context, boxes.q, args.q));
  FOVEAL_RETURN_IF_ERROR(
      describe_keys(context, context.problem.k, args.attention.k, boxes.k, args.k));
  FOVEAL_RETURN_IF_ERROR(
      describe_keys(context, context.problem.v, args.attention.v, boxes.v, args.v));
  if (!context.config.workspace.empty()) {
    args.begun = context.workspace_part<unsigned long long>(0);
    args.nonce = static_cast<std::uint32_t>(decode::make_nonce()) | 1;  // 0 is a cleared counter
  }
  return launch_instance(args, context.config.num_blocks, context.stream);
}

}  // namespace foveal::cuda::hopper

#endif
