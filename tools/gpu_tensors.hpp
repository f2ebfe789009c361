// The operands of a problem in a GPU's memory, as copies of those on the host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/gpu_session.hpp"

namespace foveal::tools {

/// Host memory of one or more operands: slices of one tensor share it.
struct HostRange {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

/// The memory that the operands of the problems take, none of it twice, by address.
std::vector<HostRange> operand_ranges(std::span<const AttentionProblem> problems,
                                      const AttentionTensors& tensors);

class GpuTensors {
 public:
  /// Copies all operands of the problems, which share `host`.
  static Result<GpuTensors> copy_of(std::span<const AttentionProblem> problems,
                                    const AttentionTensors& host, GpuSession& session);

  [[nodiscard]] const AttentionTensors& tensors() const { return tensors_; }

  /// What the problems write comes back to the host: results, and a cache that is appended to.
  Status download(std::span<const AttentionProblem> problems, const AttentionTensors& host,
                  GpuSession& session) const;

 private:
  [[nodiscard]] std::byte* address_of(const void* host) const;

  std::vector<HostRange> ranges_;
  std::vector<GpuBuffer> buffers_;  ///< One for each of ranges_.
  AttentionTensors tensors_;
};

}  // namespace foveal::tools
