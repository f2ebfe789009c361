// A problem whose operands exist on the GPU alone: for tests whose tensors are too large to be made
// and checked element by element on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <foveal/plan.hpp>
#include <foveal/problem.hpp>

#include "support/device_memory.hpp"

namespace foveal::test {

/// Enters operand `name`, which lies at `data`, into problem and tensors.
inline void bind_operand(AttentionProblem& problem, AttentionTensors& tensors,
                         std::string_view name, const TensorSpec& spec, void* data) {
  for (const OperandInfo& info : operands()) {
    if (info.name != name) continue;
    problem.*(info.spec) = spec;
    if (info.input != nullptr) {
      tensors.*(info.input) = data;
    } else {
      tensors.*(info.output) = data;
    }
  }
}

/// Memory for a whole operand, every byte `fill`.
inline std::unique_ptr<DeviceBuffer> operand_memory(const TensorSpec& spec, std::uint8_t fill,
                                                    const DeviceStream& stream) {
  const auto bytes = static_cast<std::size_t>(spec.numel() * dtype_bytes(spec.dtype));
  return std::make_unique<DeviceBuffer>(bytes, fill, stream);
}

}  // namespace foveal::test
