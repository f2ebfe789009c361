#include "cuda/hopper/backward_launch.hpp"

#if defined(FOVEAL_WITH_HOPPER)

#include "plan/kernel_table.hpp"

namespace foveal::cuda::hopper {

bool can_copy_backward(const AttentionTensors& tensors) {
  return is_aligned(tensors.q, kCopyAlignment) && is_aligned(tensors.k, kCopyAlignment) &&
         is_aligned(tensors.v, kCopyAlignment) && is_aligned(tensors.dout, kCopyAlignment);
}

Status launch_portable_backward(const planner::LaunchContext& context) {
  return kPortableBackward.launch({.problem = context.problem,
                                   .geometry = context.geometry,
                                   .config = context.config.stand_in.front(),
                                   .tensors = context.tensors,
                                   .workspace = context.workspace,
                                   .stream = context.stream});
}

Status describe_rows(const AttentionGeometry& geometry, const RowOperand& operand,
                     std::int64_t columns, const CopyBox& box, TensorMap& map) {
  const RowStrides& strides = operand.strides;
  return encode_tensor_map(
      {.data = operand.data,
       .extents = {columns, geometry.packed_q ? geometry.total_q : geometry.seqlen_q,
                   geometry.nheads_q, geometry.packed_q ? 1 : geometry.batch},
       .strides = {strides.row, strides.head, strides.batch},
       .box_columns = box.columns,
       .box_rows = box.rows},
      map);
}

Status describe_keys(const AttentionGeometry& geometry, const KeyOperand& operand,
                     std::int64_t columns, const CopyBox& box, TensorMap& map) {
  const algorithm::KvLayout& layout = operand.layout;
  return encode_tensor_map(
      {.data = operand.data,
       .extents = {columns, geometry.packed_k ? geometry.total_k : geometry.seqlen_k,
                   geometry.nheads_k, geometry.packed_k ? 1 : geometry.batch},
       .strides = {layout.row_stride, layout.head_stride, layout.page_stride},
       .box_columns = box.columns,
       .box_rows = box.rows},
      map);
}

}  // namespace foveal::cuda::hopper

#endif
