// A workload's results against the fp64 oracle, before anything is timed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <foveal/status.hpp>

#include "tools/manifest.hpp"
#include "tools/workload_input.hpp"

namespace foveal::tools {

struct ResultError {
  std::string result;         ///< "out", "dq", ...
  std::int64_t compared = 0;  ///< Elements.
  bool finite = true;         ///< Wherever the oracle is.
  double rel_frobenius = 0;
  double max_abs = 0;
  bool passed = false;
};

struct WorkloadCheck {
  std::vector<ResultError> errors;
  /// What was compared: "everything", or "kv heads 0 and 15, every 37th row".
  std::string coverage;

  [[nodiscard]] bool passed() const;
};

/// Compares the results in `input` with the oracle. Where the oracle would take too long, the first
/// and last KV head stand for all, and of a forward pass evenly spread rows.
Result<WorkloadCheck> check_workload(const WorkloadInput& input, const AccuracyLimits& limits,
                                     std::int32_t num_threads);

}  // namespace foveal::tools
