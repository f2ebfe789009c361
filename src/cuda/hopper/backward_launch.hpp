// From a plan's context to a backward kernel's operands; not there in builds without sm_90a.
#pragma once

#include <cstdint>

#include <foveal/status.hpp>

#include "cuda/attention_args.hpp"
#include "cuda/hopper/copy_box.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "plan/kernel_entry.hpp"

namespace foveal::cuda::hopper {

/// What strides could not tell: whether the copy engine can address every operand.
[[nodiscard]] bool can_copy_backward(const AttentionTensors& tensors);

/// portable_bwd in the same workspace, as the plan foresaw.
[[nodiscard]] Status launch_portable_backward(const planner::LaunchContext& context);

/// Of q and dout.
[[nodiscard]] Status describe_rows(const AttentionGeometry& geometry, const RowOperand& operand,
                                   std::int64_t columns, const CopyBox& box, TensorMap& map);

/// Of k and v.
[[nodiscard]] Status describe_keys(const AttentionGeometry& geometry, const KeyOperand& operand,
                                   std::int64_t columns, const CopyBox& box, TensorMap& map);

}  // namespace foveal::cuda::hopper
