#include "tools/gpu_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

namespace foveal::tools {
namespace {

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// The bytes between an operand's first and last element.
HostRange range_of(const TensorSpec& spec, const void* data) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(spec.rank); ++axis) {
    const std::int64_t far = (spec.shape[axis] - 1) * spec.strides[axis];
    low += std::min<std::int64_t>(far, 0);
    high += std::max<std::int64_t>(far, 0);
  }
  const std::int64_t width = dtype_bytes(spec.dtype);
  return {static_cast<const std::byte*>(data) + low * width,
          static_cast<std::size_t>((high - low + 1) * width)};
}

/// Whether a pass writes the operand, though the name stands among the inputs.
bool is_written(const AttentionProblem& problem, const OperandInfo& operand) {
  const std::string_view name = operand.name;
  if (name == "k" || name == "v") return problem.k_new.present();
  if (name == "out" || name == "lse") return problem.pass != Pass::kBackward;
  return operand.output != nullptr;
}

}  // namespace

std::vector<HostRange> operand_ranges(std::span<const AttentionProblem> problems,
                                      const AttentionTensors& tensors) {
  std::vector<HostRange> ranges;
  for (const AttentionProblem& problem : problems) {
    for (const OperandInfo& operand : operands()) {
      const TensorSpec& spec = problem.*(operand.spec);
      const void* data = operand.data(tensors);
      if (data != nullptr && spec.numel() > 0) ranges.push_back(range_of(spec, data));
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const HostRange& a, const HostRange& b) {
    return number_of(a.begin) < number_of(b.begin);
  });
  std::vector<HostRange> merged;
  for (const HostRange& range : ranges) {
    if (merged.empty() ||
        number_of(merged.back().begin) + merged.back().bytes <= number_of(range.begin)) {
      merged.push_back(range);
      continue;
    }
    const std::size_t end = number_of(range.begin) + range.bytes - number_of(merged.back().begin);
    merged.back().bytes = std::max(merged.back().bytes, end);
  }
  return merged;
}

Result<GpuTensors> GpuTensors::copy_of(std::span<const AttentionProblem> problems,
                                       const AttentionTensors& host, GpuSession& session) {
  GpuTensors made;
  made.ranges_ = operand_ranges(problems, host);
  for (const HostRange& range : made.ranges_) {
    FOVEAL_ASSIGN_OR_RETURN(
        buffer, session.allocate(static_cast<std::int64_t>(range.bytes), "a copy of the tensors"));
    FOVEAL_RETURN_IF_ERROR(session.copy(buffer.data(), range.begin, range.bytes));
    made.buffers_.push_back(std::move(buffer));
  }
  made.tensors_ = host;
  for (const OperandInfo& operand : operands()) {
    if (operand.input != nullptr) {
      made.tensors_.*operand.input = made.address_of(host.*operand.input);
    } else {
      made.tensors_.*operand.output = made.address_of(host.*operand.output);
    }
  }
  return made;
}

/// Null for operands without elements.
std::byte* GpuTensors::address_of(const void* host) const {
  for (std::size_t i = 0; i < ranges_.size() && host != nullptr; ++i) {
    const std::uintptr_t begin = number_of(ranges_[i].begin);
    if (number_of(host) < begin || number_of(host) >= begin + ranges_[i].bytes) continue;
    return buffers_[i].data() + (number_of(host) - begin);
  }
  return nullptr;
}

Status GpuTensors::download(std::span<const AttentionProblem> problems,
                            const AttentionTensors& host, GpuSession& session) const {
  for (const AttentionProblem& problem : problems) {
    for (const OperandInfo& operand : operands()) {
      const TensorSpec& spec = problem.*(operand.spec);
      const void* data = operand.data(host);
      if (data == nullptr || spec.numel() == 0 || !is_written(problem, operand)) continue;
      const HostRange range = range_of(spec, data);
      FOVEAL_RETURN_IF_ERROR(
          session.copy(const_cast<std::byte*>(range.begin), address_of(range.begin), range.bytes));
    }
  }
  return Status::ok();
}

}  // namespace foveal::tools
