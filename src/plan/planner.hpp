// From a problem and a device's description to the chosen kernels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <foveal/plan.hpp>

#include "plan/kernel_entry.hpp"

namespace foveal::planner {

/// What the environment says about planning; part of the cache's key.
struct Overrides {
  std::string force_kernel;  ///< FOVEAL_FORCE_KERNEL: names, separated by commas.
  std::string cpu_isa;       ///< FOVEAL_CPU_ISA; device_info() heeds it.
  std::string max_smem;      ///< FOVEAL_MAX_SMEM; device_info() heeds it.

  bool operator==(const Overrides&) const = default;
};
[[nodiscard]] Overrides read_overrides();

/// One kernel launch of a plan.
struct PlanStep {
  const KernelEntry* entry = nullptr;
  AttentionProblem
      problem;  ///< The step's own: an append before a forward is a problem of its own.
  AttentionGeometry geometry;
  KernelConfig config;
  std::int64_t workspace_offset = 0;
};

struct PlanState {
  AttentionProblem problem;
  DeviceInfo device;
  std::vector<PlanStep> steps;
  Explanation explanation;
  std::int64_t workspace_bytes = 0;
  std::int64_t q_rotated_offset = -1;  ///< In the workspace, where a step rotates q; -1: nowhere.
};

/// Chooses among the kernels of the table. The state's `steps` are empty when no kernel can, and
/// the explanation says why; only an invalid problem or override is an error.
[[nodiscard]] Result<PlanState> make_plan(const AttentionProblem& problem, const DeviceInfo& device,
                                          const Overrides& overrides);

}  // namespace foveal::planner
