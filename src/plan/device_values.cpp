#include "plan/device_values.hpp"

#include <new>
#include <vector>

#include "core/environment.hpp"
#include "core/log.hpp"
#include "plan/cuda_runtime.hpp"

namespace foveal::planner {
namespace {

/// From the first element to the last, gaps included.
std::size_t span_elements(const TensorSpec& spec) {
  std::int64_t last = 0;
  for (int axis = 0; axis < spec.rank; ++axis) {
    last += (spec.shape[axis] - 1) * spec.strides[axis];
  }
  return static_cast<std::size_t>(last + 1);
}

}  // namespace

bool checks_device_values() { return environment_integer("FOVEAL_CHECK").value_or(0) != 0; }

Status check_device_values(const AttentionProblem& problem, const AttentionTensors& tensors,
                           void* stream) try {
  FOVEAL_ASSIGN_OR_RETURN(capturing, cuda::is_capturing(stream));
  if (capturing) {
    log_message(LogLevel::kWarning, "FOVEAL_CHECK: nothing is checked while a graph is captured");
    return Status::ok();
  }
  AttentionTensors readable = tensors;
  std::vector<std::vector<std::int32_t>> copies;
  for (const OperandInfo& operand : operands()) {
    const TensorSpec& spec = problem.*operand.spec;
    if (!spec.present() || spec.numel() == 0 || spec.dtype != DType::kInt32) continue;
    std::vector<std::int32_t>& copy = copies.emplace_back(span_elements(spec));
    FOVEAL_RETURN_IF_ERROR(cuda::read_back(copy.data(), operand.data(tensors),
                                           copy.size() * sizeof(std::int32_t), stream));
    readable.*operand.input = copy.data();
  }
  return validate(problem, readable);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("out of memory while FOVEAL_CHECK read lengths and pages");
}

}  // namespace foveal::planner
