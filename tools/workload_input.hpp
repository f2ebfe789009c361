// The tensors of a manifest's workload: random inputs from its seed, and the problems over them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <foveal/problem.hpp>
#include <foveal/status.hpp>

#include "tools/aligned_buffer.hpp"
#include "tools/attention_results.hpp"
#include "tools/manifest.hpp"

namespace foveal::tools {

/// A workload in memory. Every pointer of `tensors` leads into one of `buffers`.
struct WorkloadInput {
  AttentionProblem forward;                  ///< With lse where a backward needs it.
  std::optional<AttentionProblem> backward;  ///< Of the passes backward and train.
  AttentionTensors tensors;
  std::vector<AlignedBuffer> buffers;

  /// Inputs and results, once.
  [[nodiscard]] std::int64_t tensor_bytes() const;
};

/// Draws q, k, v, dout and sinks from the seed. What lies past effective lengths and in pages that
/// no sequence uses is NaN; so are the results until a kernel writes them.
Result<WorkloadInput> make_workload_input(const Workload& workload);

/// The same values at other addresses, so that a repeated call doesn't find them in a cache.
Result<WorkloadInput> clone(const WorkloadInput& input);

}  // namespace foveal::tools
